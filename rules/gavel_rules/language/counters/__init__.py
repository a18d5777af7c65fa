"""Counters of a rule set: which events they count, in which groups, and for how long."""
