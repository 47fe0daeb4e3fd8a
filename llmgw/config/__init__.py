"""llmgw.yaml: its types, its defaults, and errors that name file, line and key."""
