"""The loops' own decisions that need no node."""
