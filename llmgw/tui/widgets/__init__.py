"""One widget a file. Each is given a snapshot and shows it."""
