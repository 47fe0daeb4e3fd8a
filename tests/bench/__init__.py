"""Measurements: `make bench`. Every figure is a ratio against something measured in the same run."""
