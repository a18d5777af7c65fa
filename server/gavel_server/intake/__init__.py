"""Intake: validation of requests, and their conversion into commands of the core."""
