"""An action's params schema, compiled: it validates params and gives them their types.

jsonschema-rs validates, with regular expressions on a linear-time engine. `schema_check` decides which schemas it is given, and
`schema_types` gives each param its type for CEL. The wire carries all numbers as floats; here declared integers become ints again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jsonschema_rs

from gavel_rules.errors import CaseError
from gavel_rules.language.cel.vocabulary import Field, ValueType
from gavel_rules.language.document.schema_check import Report, check_schema
from gavel_rules.language.document.schema_patterns import PatternCost, find_pattern_costs, spare_long_texts
from gavel_rules.language.document.schema_types import type_of_schema
from gavel_rules.values import size_of

# Limit of the work to validate one value: the size of the value (its parts; 64 characters of text count as one) times the parts of the
# schema. A larger value is a violation.
CHECK_WORK_MAX: Final = 5_000_000
# Schemas with fewer parts stay within CHECK_WORK_MAX for every value that a message can hold, unless a keyword compares items with each
# other.
SMALL_SCHEMA_PARTS: Final = 100
# Limit of the work to name every violation. The library copies the invalid value for each violation, and once more for each choice that it
# tried.
DETAIL_WORK_MAX: Final = 5_000
TOO_LARGE: Final = "too-large"
# The module that defines the exception of the library's panics.
_PANICS: Final = "pyo3_runtime"


@dataclass(frozen=True, slots=True)
class ParamsSchema:
    """A compiled params schema."""

    type: ValueType
    closed: bool  # other properties than those of `type` are refused
    parts: int  # with all references followed
    pattern_costs: tuple[PatternCost, ...]  # of validating one value
    _validator: jsonschema_rs.Draft202012Validator
    _validator_of_long_texts: jsonschema_rs.Draft202012Validator  # which searches patterns also in texts that are too long
    _of_properties: jsonschema_rs.Draft202012Validator | None  # of `properties` alone; None if it does not compile by itself
    _retyped: Mapping[str, ValueType]  # the properties whose values need conversion

    def violations(self, params: dict[str, object], *, searches_long_texts: bool = False) -> tuple[tuple[str, str], ...]:
        """Return (JSON pointer, keyword) of every violation, sorted.

        `searches_long_texts`: a text that is longer than its maxLength may also violate the pattern beside it. The search may take long.

        The pointer of a missing or refused property names that property. For large params only the invalid properties at the top are
        returned, with the keyword `properties`, or ("", TOO_LARGE) if none of them is invalid by itself. Params that are too large to
        validate also give ("", TOO_LARGE). Raises CaseError if the library fails.
        """
        try:
            return self._find_violations(params, searches_long_texts)
        except BaseException as error:
            # A panic of the library is a BaseException, and would stop the task that serves the bus.
            if type(error).__module__ == _PANICS:
                raise CaseError("the JSON Schema library failed on a proposal's params") from error
            raise

    def _find_violations(self, params: dict[str, object], searches_long_texts: bool) -> tuple[tuple[str, str], ...]:
        if self.parts > SMALL_SCHEMA_PARTS and size_of(params) * self.parts > CHECK_WORK_MAX:
            return (("", TOO_LARGE),)
        if self._validator.is_valid(params):
            return ()
        if size_of(params) * self.parts <= DETAIL_WORK_MAX:
            return tuple(sorted(_violations(self._validator_of_long_texts if searches_long_texts else self._validator, params)))
        names = [
            name for name, value in params.items() if self._of_properties is not None and not self._of_properties.is_valid({name: value})
        ]
        return tuple(sorted((_pointer([name]), "properties") for name in names)) or (("", TOO_LARGE),)

    def typed(self, params: dict[str, object]) -> dict[str, object]:
        """Return valid params with declared integers as int and declared numbers as float."""
        typed = dict(params)
        for name, type_ in self._retyped.items():
            if name in typed:
                typed[name] = _convert(typed[name], type_)
        return typed

    def typed_param(self, name: str, value: object) -> object:
        """Return the value of one param as `typed` gives it."""
        type_ = self._retyped.get(name)
        return value if type_ is None else _convert(value, type_)


def _violations(validator: jsonschema_rs.Draft202012Validator, value: dict[str, object]) -> set[tuple[str, str]]:
    violations: set[tuple[str, str]] = set()
    for error in validator.iter_errors(value):
        kind = error.kind
        names: list[str] = []
        if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
            names = [kind.property]
        elif isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
            names = kind.unexpected
        places = [[*error.instance_path, name] for name in names] or [error.instance_path]
        violations.update((_pointer(place), str(kind.name)) for place in places)
    return violations


def compile_schema(schema: object, report: Report) -> ParamsSchema | None:
    """Return the compiled schema; None with its mistakes reported."""
    parts = check_schema(schema, report)
    if not parts:
        return None
    assert isinstance(schema, dict)  # noqa: S101  # any other value is a mistake
    try:
        validator_of_long_texts = validator = _validator(schema)
    except jsonschema_rs.ValidationError as error:
        report(
            tuple(error.instance_path),
            "schema-invalid",
            "the schema cannot be compiled: most likely a regular expression that is malformed or not linear-time",
            "look-around and back-references are not supported",
        )
        return None
    spared = spare_long_texts(schema)
    if spared is not schema:
        validator = _validator(spared)
    try:
        of_properties = _validator({keyword: spared[keyword] for keyword in ("properties", "$defs") if keyword in spared})
    except jsonschema_rs.ValidationError:
        of_properties = None
    type_ = type_of_schema(schema, schema)
    retyped = {name: field.type for name, field in type_.fields.items() if field.type.kind not in _UNCONVERTED}
    costs = find_pattern_costs(schema, DETAIL_WORK_MAX // parts)
    return ParamsSchema(
        type_, schema.get("additionalProperties") is False, parts, costs, validator, validator_of_long_texts, of_properties, retyped
    )


def _validator(schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(schema, offline=True, validate_formats=False, pattern_options=jsonschema_rs.RegexOptions())


# Kinds of values that need no conversion from the wire.
_UNCONVERTED: Final = frozenset(("string", "bool", "dyn"))


def _convert(value: object, type_: ValueType) -> object:
    match type_.kind:
        case "int":
            return int(value) if isinstance(value, float) else value
        case "double":
            return float(value) if isinstance(value, int) else value
        case "object":
            return _convert_fields(value, type_.fields) if isinstance(value, dict) else value
        case "list" | "map" if type_.element is not None and type_.element.kind not in _UNCONVERTED:
            element = type_.element
            if isinstance(value, list):
                return [_convert(item, element) for item in value]
            if isinstance(value, dict):
                return {name: _convert(item, element) for name, item in value.items()}
    return value


def _convert_fields(value: dict[str, object], fields: Mapping[str, Field]) -> dict[str, object]:
    # Loops over the value, which may have few of the declared fields.
    typed = dict(value)
    for name, item in value.items():
        field = fields.get(name)
        if field is not None and field.type.kind not in _UNCONVERTED:
            typed[name] = _convert(item, field.type)
    return typed


def _pointer(path: list[str | int]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
