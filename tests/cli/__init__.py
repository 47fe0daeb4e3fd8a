"""The command line as a person meets it: a subprocess, its exit status, its words."""
