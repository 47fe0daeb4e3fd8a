"""`llmgw doctor`: real damage, real processes in the way, real full disks; and nothing written, whatever it meets."""
