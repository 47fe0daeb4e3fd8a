"""Bytes ↔ model, both ways, with a cap on everything that comes from outside. No I/O."""
