"""The admin API: what the command line, the dashboard and the cluster page are clients of. It decides nothing."""
