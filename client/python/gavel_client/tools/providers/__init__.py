"""The providers that ship (constitution 004 §4.2)."""
