"""Declared facts, as arbitration reads them."""

from __future__ import annotations

from typing import NamedTuple

from gavel_rules.language.document.fact_schema import FactSchema
from gavel_rules.values import number_problem


class FactDeclaration(NamedTuple):
    """A fact that an action's rules may read, with the evidence that it requires."""

    name: str
    key: str
    value_type: str  # "string", "number", "integer" or "boolean"; "" if a schema says it
    min_trust: int  # the least trusted tier accepted
    max_age_ms: int
    sources: frozenset[str]  # producers and tools accepted; empty: any
    optional: bool
    subject: str = ""  # the subject template as written; empty: the proposal's subject
    length_max: int = 0  # of a string, in characters; 0: only messages bound it
    schema: FactSchema | None = None  # of values with structure
    subjects: str = ""  # the template of a list of subjects as written; empty: the fact is of one subject
    subjects_max: int = 0


def fits(value: object, declaration: FactDeclaration) -> bool:
    """Report whether a value is what a fact's declaration says: of its type and length, or valid by its schema."""
    schema = declaration.schema
    if schema is not None:
        return not schema.violation(value)
    return is_of_type(value, declaration.value_type, declaration.length_max)


def typed(value: object, declaration: FactDeclaration) -> object:
    """Return a value that fits as rules see it: with the integers and numbers inside it as it is declared."""
    schema = declaration.schema
    if schema is not None:
        return schema.typed(value)
    return int(value) if declaration.value_type == "integer" and isinstance(value, float) else value


def is_case_value(value: object, declaration: FactDeclaration) -> bool:
    """Report whether a value is what rules may see of a fact: of a fact of many subjects, the list of their values."""
    if not declaration.subjects:
        return fits(value, declaration)
    return isinstance(value, list) and len(value) <= declaration.subjects_max and all(fits(item, declaration) for item in value)


def case_value(value: object, declaration: FactDeclaration) -> object:
    """Return a value for which `is_case_value` holds, typed as its declaration says."""
    if declaration.subjects and isinstance(value, list):
        return [typed(item, declaration) for item in value]
    return typed(value, declaration)


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
