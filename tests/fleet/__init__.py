"""A fleet of real nodes on one machine, and what is shown on it."""
