"""The schema of a declared fact's values: evidence with structure.

A fact declares the JSON Schema of its values under `value`, as an action does for its params. A value that does not fit is not usable
evidence, whoever published it. The schema is checked and compiled as a property of params schemas is: see `params_schema`.
"""

from __future__ import annotations

from typing import Any, Final

from gavel_rules.errors import CaseError
from gavel_rules.language.cel.vocabulary import ValueType
from gavel_rules.language.document.canonical_form import to_canonical_json
from gavel_rules.language.document.diagnostics import Path
from gavel_rules.language.document.params_schema import ParamsSchema, compile_schema
from gavel_rules.language.document.schema_check import Report
from gavel_rules.language.document.schema_patterns import PatternCost

_NAME: Final = "value"
_POINTER: Final = f"/{_NAME}"


class FactSchema:
    """A compiled schema of a fact's values. Schemas with equal texts are equal."""

    def __init__(self, schema: dict[str, Any], compiled: ParamsSchema) -> None:
        self.schema: Final = schema
        self._compiled: Final = compiled  # of {"value": …}
        self._text: Final = to_canonical_json(schema)

    @property
    def type(self) -> ValueType:
        """The type of the values for CEL."""
        return self._compiled.type.fields[_NAME].type

    @property
    def pattern_costs(self) -> tuple[PatternCost, ...]:
        """The cost of each pattern when one value is validated; paths begin in the fact's schema."""
        return tuple(cost._replace(path=_inside(cost.path)) for cost in self._compiled.pattern_costs)

    def violation(self, value: object) -> str:
        """Return the first violation of a value as "/3 violates maxLength"; "" if the value fits the schema."""
        try:
            violations = self._compiled.violations({_NAME: value})
        except CaseError:
            return "cannot be checked"  # fails closed: a value that nobody can check is not evidence
        if not violations:
            return ""
        pointer, keyword = violations[0]
        place = pointer.removeprefix(_POINTER)
        return f"{place} violates {keyword}" if place else f"violates {keyword}"

    def typed(self, value: object) -> object:
        """Return a value that fits, with declared integers as int and declared numbers as float."""
        return self._compiled.typed({_NAME: value})[_NAME]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FactSchema) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def compile_fact_schema(schema: object, report: Report) -> FactSchema | None:
    """Return the compiled schema of a fact's values; None with its mistakes reported."""
    if not isinstance(schema, dict):
        return None  # reported with the document's form

    def report_inside(path: Path, code: str, message: str, suggestion: str) -> None:
        report(_inside(path), code, message, suggestion)

    of_value = {name: part for name, part in schema.items() if name != "$defs"}
    whole: dict[str, Any] = {"type": "object", "required": [_NAME], "properties": {_NAME: of_value}}
    if "$defs" in schema:
        whole["$defs"] = schema["$defs"]
    compiled = compile_schema(whole, report_inside)
    return None if compiled is None else FactSchema(schema, compiled)


def _inside(path: Path) -> Path:
    """Return the path in a fact's schema of a part of the schema around it."""
    return path[2:] if path[:2] == ("properties", _NAME) else path
