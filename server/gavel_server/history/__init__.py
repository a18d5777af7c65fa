"""Reads and proves a whole log."""
