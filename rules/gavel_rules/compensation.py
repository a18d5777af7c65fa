"""Checking what a rule set says of compensations: the action that makes a half-done execution good (seeds 002 §7).

The action need not be declared in the same rule set. Where it is, the params that the expressions give are held to its schema
as far as types go; whether a value fits is known when there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gavel_rules.conditions import Condition
from gavel_rules.schema import ParamsSchema, suggestion
from gavel_rules.vocabulary import ValueType

Report = Callable[[str, str, str, str], None]  # the param or "", code, message, suggestion

# What CEL may give for a param of some type. Numbers travel as doubles.
_GIVES: Final[Mapping[str, tuple[str, ...]]] = {
    "string": ("STRING",),
    "bool": ("BOOL",),
    "int": ("INT", "UINT"),
    "double": ("DOUBLE", "INT", "UINT"),
    "list": ("LIST",),
    "map": ("MAP",),
    "object": ("MAP",),
}
_JSON: Final = frozenset(kind for kinds in _GIVES.values() for kind in kinds)
_NAMES: Final[Mapping[str, str]] = {
    "bool": "a boolean",
    "int": "an integer",
    "double": "a number",
    "object": "an object",
    "map": "an object",
}


def check_compensation(action: str, params: Mapping[str, Condition], target: ParamsSchema | None, report: Report) -> None:
    """Report everything that does not fit in the params of a compensation; `target` is its action's schema, where that is declared."""
    for name, condition in params.items():
        given = condition.result.partition("<")[0].upper()
        if given == "DYN":
            continue
        if given not in _JSON:
            report(name, "type-error", f"a param cannot be a {given.lower()}", "string(x) gives text")
        elif target is not None and name in target.type.fields:
            _check_type(name, given, target.type.fields[name].type, report)
    if target is None:
        return
    known = sorted(target.type.fields)
    for name in params:
        if target.closed and name not in target.type.fields:
            report(name, "unknown-name", f"{action} has no param {name}", suggestion(name, known))
    for name in known:
        if target.type.fields[name].required and name not in params:
            report("", "missing-key", f"the param {name} of {action} is missing", "add it")


def _check_type(name: str, given: str, wanted: ValueType, report: Report) -> None:
    accepted = _GIVES.get(wanted.kind)
    if accepted is not None and given not in accepted:
        named = _NAMES.get(wanted.kind, f"a {wanted.kind}")
        report(name, "type-error", f"the param {name} is {named}, and the expression gives {given.lower()}", "")
