"""One screen a file: the dashboard itself, and what is laid over it."""
