"""Gavel's functional core: decisions, derived facts and projections as pure functions of the log.

Nothing here knows a clock, a socket, a thread or a source of randomness; time and identifiers are arguments. A replay of the log therefore
reproduces every decision (constitution §8).
"""
