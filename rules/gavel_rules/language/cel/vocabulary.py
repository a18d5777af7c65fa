"""The names that CEL expressions of a rule set may use, with their types.

A scope is a tree of named types: `params` from the action's JSON Schema, `facts` from its declarations, and Gavel's own names for
the proposal, subject, producer, evidence and trace. For CEL it is flattened into variables with dotted names ("params.amount"), so
the library type-checks every field. `has()` cannot test such a variable (ADR 0012): `checker` hands the library two maps of the
values that are present instead, `Params` and `Facts`, which no author can name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gavel_rules.limits import PRINCIPAL_GROUP_LENGTH_MAX, PRINCIPAL_GROUPS_MAX, PRODUCER_ID_LENGTH_MAX, VERSION_LENGTH_MAX

_NO_FIELDS: Final[Mapping[str, Field]] = MappingProxyType({})

# CEL's reserved words, which cannot name a variable or a fact.
RESERVED_WORDS: Final = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "false",
        "for",
        "function",
        "if",
        "import",
        "in",
        "let",
        "loop",
        "package",
        "namespace",
        "null",
        "return",
        "true",
        "var",
        "void",
        "while",
    ]
)
# The names of CEL's own types, which are values in it.
TYPE_NAMES: Final = frozenset(["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type"])
# Every root name that some scope of the language's first version has.
ROOTS: Final = frozenset(["params", "facts", "proposal", "subject", "producer", "evidence", "trace", "now", "execution", "decision"])
# Names that the second version adds at the root.
ADDED_ROOTS: Final = frozenset(["history", "constants", "zones", "calendars"])
# The root of the counters, as authors write it and as the root of the variables that stand for reads of them: see `counter_reads`.
HISTORY: Final = "history"
COUNTER_READS: Final = "History"
BOUNDS_NAMED_MAX: Final = 8  # in a suggestion
# The keys of JSON Schema that bound a value, by its kind.
_BOUNDS: Final[Mapping[str, str]] = MappingProxyType({"string": "maxLength", "list": "maxItems", "map": "maxProperties"})
IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

# The maps of present values, by the root that they stand for. Both names have the same length: see `checker`.
PRESENCE_MAPS: Final[Mapping[str, str]] = MappingProxyType({"params": "Params", "facts": "Facts"})


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of value. `kind` is "bool", "int", "double", "string", "timestamp", "list", "map", "object", "scope", "counter" or "dyn".

    A list or map has an `element`. An object has typed `fields`, and so has a string with parts (`subject`). A scope is not a value:
    only its fields can be read. A counter is a function of `size_max` arguments (None: a mistake hides how many) that gives an `element`.
    "dyn" is a value whose type the schema leaves open. Of the others `size_max` is the greatest number of characters, elements or entries
    of a valid value; None if only the size of messages bounds it.
    """

    kind: str
    element: ValueType | None = None
    fields: Mapping[str, Field] = field(default_factory=lambda: _NO_FIELDS)
    size_max: int | None = None

    def cel(self) -> str:
        """Return the type in CEL's notation."""
        if self.kind == "list":
            return f"list<{self.element.cel() if self.element is not None else 'dyn'}>"
        if self.kind in ("map", "object"):
            return f"map<string,{self.element.cel() if self.element is not None else 'dyn'}>"
        return self.kind


@dataclass(frozen=True, slots=True)
class Field:
    """A named part of a value: its type, and whether every valid value has it."""

    type: ValueType
    required: bool = True


BOOL: Final = ValueType("bool")
INT: Final = ValueType("int")
DOUBLE: Final = ValueType("double")
STRING: Final = ValueType("string")
TIMESTAMP: Final = ValueType("timestamp")
DYN: Final = ValueType("dyn")

# By the type that a fact is declared with.
FACT_TYPES: Final[Mapping[str, ValueType]] = {"string": STRING, "number": DOUBLE, "integer": INT, "boolean": BOOL}


def _scope(**types: ValueType) -> ValueType:
    return ValueType("scope", fields={name: Field(type_) for name, type_ in types.items()})


def _text(length_max: int) -> ValueType:
    return ValueType("string", size_max=length_max)


_SUBJECT: Final = ValueType("string", fields={"type": Field(_text(64)), "id": Field(_text(256))}, size_max=64 + 1 + 256)
_PRODUCER: Final = _scope(type=_text(128), id=_text(PRODUCER_ID_LENGTH_MAX), version=_text(VERSION_LENGTH_MAX))
_GROUPS: Final = ValueType("list", _text(PRINCIPAL_GROUP_LENGTH_MAX), size_max=PRINCIPAL_GROUPS_MAX)
# Of the language's second version.
_PROPOSER: Final = ValueType("scope", fields={**_PRODUCER.fields, "groups": Field(_GROUPS)})


def condition_scope(
    params: ValueType, facts: Mapping[str, Field], counters: Mapping[str, ValueType] | None = None
) -> Mapping[str, ValueType]:
    """Return the scope of a rule's condition. `params` of type "dyn", from a broken schema, may have any field.

    `counters` are those of the document, by name; None in the language's first version.
    """
    history = {} if counters is None else {HISTORY: _scope(**counters)}
    return {
        **history,
        "params": _params(params),
        "facts": ValueType("scope", fields=facts),
        "proposal": _scope(risk=DOUBLE, cost=DOUBLE, confidence=DOUBLE, priority=INT, expected_outcome=STRING),
        "subject": _SUBJECT,
        "producer": _PRODUCER if counters is None else _PROPOSER,
        "evidence": _scope(count=INT, worst_trust=INT, oldest_age_ms=INT),
        "trace": _scope(consecutive_rejections=INT),
        "now": TIMESTAMP,
    }


def conflict_key_scope(params: ValueType, version: int) -> Mapping[str, ValueType]:
    """Return the scope of a conflict key, which is evaluated before facts are selected."""
    return {"params": _params(params), "subject": _SUBJECT, "producer": _PRODUCER if version == 1 else _PROPOSER}


def subject_scope(params: ValueType, facts: Mapping[str, Field], version: int) -> Mapping[str, ValueType]:
    """Return the scope of a declared fact's subject template. Since the second version it may read the producer."""
    producer = {} if version == 1 else {"producer": _PROPOSER}
    return {**producer, "params": _params(params), "facts": ValueType("scope", fields=facts), "subject": _SUBJECT}


_EXECUTION: Final = ValueType(
    "scope",
    fields={
        "status": Field(STRING),
        "attempt": Field(INT),
        "execution_id": Field(STRING),
        "reason_code": Field(STRING),
        "result": Field(DYN),
        "error": Field(_scope(code=STRING, message=STRING)),
        "completed_steps": Field(ValueType("list", STRING)),
    },
)
_DECISION: Final = _scope(
    decision_id=STRING, proposal_id=STRING, action_type=STRING, policy_id=STRING, policy_version=INT, rule_id=STRING, conflict_key=STRING
)


def compensation_scope(params: ValueType) -> Mapping[str, ValueType]:
    """Return the scope of a compensation's params. The fields of an executor's result are not known in advance."""
    return {"params": _params(params), "execution": _EXECUTION}


def derivation_scope(
    params: ValueType, facts: Mapping[str, Field], counters: Mapping[str, ValueType] | None = None
) -> Mapping[str, ValueType]:
    """Return the scope of a derived fact's value and subject. Facts and counters are as for `condition_scope`."""
    evidence = {} if counters is None else {HISTORY: _scope(**counters), "facts": ValueType("scope", fields=facts)}
    return {**evidence, **compensation_scope(params), "decision": _DECISION, "subject": _SUBJECT}


def counted_event_scope(source: str, params: ValueType | None, value: ValueType) -> Mapping[str, ValueType]:
    """Return the scope of a counter's expressions.

    `source` is the counter's `of`, `params` the type that the params of all its actions share, `value` that of its facts.
    """
    common: dict[str, ValueType] = {"subject": _SUBJECT, "producer": _PRODUCER, "trace": _scope(id=STRING)}
    if source in ("facts", "observations"):
        return {**common, "value": value}
    common["params"] = _params(params if params is not None else ValueType("object"))
    if source == "executions":
        return {**common, "execution": _EXECUTION}
    return common if source == "proposals" else {**common, "outcome": STRING, "reason_code": STRING}


def _params(type_: ValueType) -> ValueType:
    return type_ if type_.kind == "dyn" else ValueType("scope", fields=type_.fields)


def flatten_scope(scope: Mapping[str, ValueType]) -> Iterator[tuple[str, ValueType]]:
    """Yield every CEL variable of a scope: its dotted name and type. Names that CEL cannot spell are left out."""
    for name, type_ in scope.items():
        yield from _flatten(name, type_)


def _flatten(name: str, type_: ValueType) -> Iterator[tuple[str, ValueType]]:
    if type_.kind not in ("scope", "counter"):
        yield name, type_
    for part, field_ in type_.fields.items():
        if is_spellable(part):
            yield from _flatten(f"{name}.{part}", field_.type)


def is_spellable(name: str) -> bool:
    """Report whether a name can stand in a CEL expression."""
    return IDENTIFIER.fullmatch(name) is not None and name not in RESERVED_WORDS


def suggest_bounds(names: Mapping[str, ValueType]) -> str:
    """Return the bounds that the document could declare for the variables of an expression; "" if it declares all."""
    bounds = []
    for name, type_ in sorted(names.items()):
        if name.startswith("facts.") and name.count(".") == 1 and type_.kind == "string" and type_.size_max is None:
            bounds.append(f"max_length for {name}")
        elif name.startswith(("params.", "facts.")):
            bounds.extend(_missing_bounds(name, type_))
    more = f" and {len(bounds) - BOUNDS_NAMED_MAX} more" if len(bounds) > BOUNDS_NAMED_MAX else ""
    return f"declare {', '.join(bounds[:BOUNDS_NAMED_MAX])}{more}" if bounds else ""


def _missing_bounds(name: str, type_: ValueType) -> Iterator[str]:
    """Yield the bounds that a value's schema could declare, for it and for the elements inside of it."""
    if type_.size_max is None and type_.kind in _BOUNDS:
        yield f"{_BOUNDS[type_.kind]} for {name}"
    element = type_.element
    if element is None:
        return
    yield from _missing_bounds(f"the elements of {name}", element)
    for part, field_ in element.fields.items():
        yield from _missing_bounds(f"{name}[].{part}", field_.type)
