"""Exports of a log: formats of other systems, files that a run can resume, and how far a run has come."""
