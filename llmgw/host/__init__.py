"""This machine: what is done to it and looked at on it on an operator's word."""
