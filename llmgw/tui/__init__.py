"""The dashboard: a client of the admin API that renders one immutable snapshot and decides nothing."""
