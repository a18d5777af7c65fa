"""Metrics and spans of calls."""
