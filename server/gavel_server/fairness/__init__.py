"""Fairness between callers: the keys that identify them, and how they share queues, memory and expensive work."""
