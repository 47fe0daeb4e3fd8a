"""The command line: one file a noun. Commands are clients of the admin API; they decide nothing."""
