"""Recorded machines: what their files and tools say, and what the probe makes of it."""
