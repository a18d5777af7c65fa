"""What a rule set declares, as decisions read and quote it: its rules, and the facts that they may rest on.

Plain values without behaviour of their own, made once when a document is compiled and never changed.
"""

from __future__ import annotations

from typing import NamedTuple

from gavel_rules.values import number_problem


class Rule(NamedTuple):
    """One rule, as arbitration quotes it."""

    id: str
    priority: int
    effect: str  # "approve", "reject" or "review"
    reason_code: str  # "" for an approval
    condition: str  # as its author wrote it


class FactDeclaration(NamedTuple):
    """A fact that an action's rules may read, and the evidence that it takes."""

    name: str
    key: str
    value_type: str  # "string", "number", "integer" or "boolean"
    min_trust: int  # the least trusted tier that will do
    max_age_ms: int
    sources: frozenset[str]  # empty: any
    optional: bool
    subject: str = ""  # the template of whose fact it is, as written; empty: the proposal's subject's


def is_of_type(value: object, value_type: str) -> bool:
    """Whether a value is of a fact's declared type. An integer may come as a float without a fraction, as the wire has it."""
    if value_type == "string":
        return isinstance(value, str)
    if value_type == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or number_problem(value):  # a union would be made anew at every look
        return False
    return value_type == "number" or value == int(value)
