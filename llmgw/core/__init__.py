"""Decisions, pure: no await, no clock, no I/O. State and the time come in, data with a reason goes out."""
