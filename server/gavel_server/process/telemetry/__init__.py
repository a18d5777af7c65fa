"""Traces and metrics of a server, and their export. Nothing is measured or exported unless it is configured."""
