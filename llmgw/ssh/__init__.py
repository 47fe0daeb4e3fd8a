"""One SSH connection a node: the only importer of asyncssh."""
