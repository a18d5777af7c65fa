"""Shares of a server: who a caller is, and how callers share queues and expensive work."""
