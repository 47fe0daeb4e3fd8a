"""The stories: what is done to a node, each a sequence of steps that say how far they are."""
