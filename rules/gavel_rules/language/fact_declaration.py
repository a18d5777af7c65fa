"""Declared facts, as arbitration reads them."""

from __future__ import annotations

from typing import NamedTuple

from gavel_rules.values import number_problem


class FactDeclaration(NamedTuple):
    """A fact that an action's rules may read, with the evidence that it requires."""

    name: str
    key: str
    value_type: str  # "string", "number", "integer" or "boolean"
    min_trust: int  # the least trusted tier accepted
    max_age_ms: int
    sources: frozenset[str]  # producers and tools accepted; empty: any
    optional: bool
    subject: str = ""  # the subject template as written; empty: the proposal's subject
    length_max: int = 0  # of a string, in characters; 0: only messages bound it


def is_of_type(value: object, value_type: str, length_max: int = 0) -> bool:
    """Report whether a value is of a fact's declared type, and no longer than `length_max` characters (0: of any length).

    An integer may be a float without a fraction, as it comes off the wire.
    """
    if value_type == "string":
        return isinstance(value, str) and (not length_max or len(value) <= length_max)
    if value_type == "boolean":
        return isinstance(value, bool)
    # A constant tuple, not a union: docs/performance.md#isinstance-tuples.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or number_problem(value):
        return False
    return value_type == "number" or value == int(value)
