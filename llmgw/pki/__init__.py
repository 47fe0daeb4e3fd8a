"""Keys: the only importer of cryptography."""
