"""Calls with several items: each item is admitted and answered separately."""
