"""Audits: what led to the decisions of a trace, and whether they come out the same again (constitution 000, §8)."""
