"""Calls that wait until a decision has reached a phase: the phase, the wait, and the method."""
