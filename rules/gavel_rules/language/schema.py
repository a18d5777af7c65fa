"""An action's params schema: JSON Schema 2020-12, held to what one process can check alone, in bounded time.

jsonschema-rs checks values; this module decides which schemas it is given. References stay inside the schema and may not
recurse, and a schema's size with all references followed is bounded, for nested choices over references would else take
exponential time on small values. Regular expressions run on a linear-time engine. Keywords that the specification does
not know are refused: a misspelt `exclusiveMinimum` must not silently allow everything.

The schema also gives each param its type for CEL, and turns the wire's floats into the integers it declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import jsonschema_rs

from gavel_rules.errors import CaseError
from gavel_rules.language.patterns import measure
from gavel_rules.language.source import Path
from gavel_rules.language.suggestions import suggestion
from gavel_rules.language.vocabulary import BOOL, DOUBLE, DYN, INT, STRING, Field, ValueType
from gavel_rules.values import size_of

SCHEMA_PARTS_MAX: Final = 2_000
# What checking one value may take: its size (parts, and 64 characters of text as one) times the schema's parts. Beyond, it does not fit.
CHECK_WORK_MAX: Final = 5_000_000
# A schema of so few parts is within that for all that a message can hold, but for keywords that compare items with each other.
SMALL_SCHEMA_PARTS: Final = 100
# What naming every single violation may take. The library copies what is wrong for each, and again for each choice that it tried.
DETAIL_WORK_MAX: Final = 5_000
TOO_LARGE: Final = "too-large"
# The module that a panic of the library names as its own.
_PANICS: Final = "pyo3_runtime"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

# What a keyword's value is: one schema, schemas by name, a list of schemas, or no schema.
_ONE: Final = frozenset(
    [
        "items",
        "additionalProperties",
        "contains",
        "not",
        "if",
        "then",
        "else",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "contentSchema",
    ]
)
_NAMED: Final = frozenset(("properties", "patternProperties", "$defs", "dependentSchemas"))
_LISTED: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
# Keywords that want to know what was looked at by these others, which the library asks again for that: at most so many times in all.
_UNEVALUATED: Final = frozenset(("unevaluatedItems", "unevaluatedProperties"))
_ASKED_AGAIN: Final = frozenset(("$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "contains"))
_TIMES_ASKED: Final = 3
_PLAIN: Final = frozenset(
    [
        "$schema",
        "$ref",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "type",
        "enum",
        "const",
        "multipleOf",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "maxContains",
        "minContains",
        "maxProperties",
        "minProperties",
        "required",
        "dependentRequired",
        "format",
        "contentEncoding",
        "contentMediaType",
    ]
)
_KEYWORDS: Final = sorted(_ONE | _NAMED | _LISTED | _PLAIN)
_ELSEWHERE: Final = frozenset(["$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"])

Report = Callable[[Path, str, str, str], None]  # path inside the schema, code, message, suggestion


@dataclass(frozen=True, slots=True)
class ParamsSchema:
    """A compiled params schema."""

    type: ValueType
    closed: bool  # no other properties than the typed ones are allowed
    parts: int  # with all references followed
    _validator: jsonschema_rs.Draft202012Validator
    _of_properties: jsonschema_rs.Draft202012Validator | None  # of `properties` alone; None where references need more than that
    _retyped: tuple[tuple[str, ValueType], ...]  # the properties whose values are not typed as they come

    def violations(self, params: dict[str, object]) -> tuple[tuple[str, str], ...]:
        """Return (JSON pointer, keyword) of everything that does not fit, sorted; empty when all fits.

        A property that is missing, or not allowed, is what the pointer names. Of large params only the properties at the top
        that do not fit are named, with the keyword `properties`, or ("", TOO_LARGE) where it is none of them by itself; so it is
        for params that are too large to be checked at all. Raises CaseError where the library itself fails.
        """
        try:
            return self._looked_over(params)
        except BaseException as error:
            # The library's panics are no Exceptions: one would end what serves the whole bus.
            if type(error).__module__ == _PANICS:
                raise CaseError("the JSON Schema library failed on a proposal's params") from error
            raise

    def _looked_over(self, params: dict[str, object]) -> tuple[tuple[str, str], ...]:
        if self.parts > SMALL_SCHEMA_PARTS and size_of(params) * self.parts > CHECK_WORK_MAX:
            return (("", TOO_LARGE),)
        if self._validator.is_valid(params):
            return ()
        if size_of(params) * self.parts <= DETAIL_WORK_MAX:
            return tuple(sorted(_violations(self._validator, params)))
        names = [
            name for name, value in params.items() if self._of_properties is not None and not self._of_properties.is_valid({name: value})
        ]
        return tuple(sorted((_pointer([name]), "properties") for name in names)) or (("", TOO_LARGE),)

    def typed(self, params: dict[str, object]) -> dict[str, object]:
        """Return valid params with declared integers as int and declared numbers as float."""
        typed = dict(params)
        for name, type_ in self._retyped:
            if name in typed:
                typed[name] = _typed(typed[name], type_)
        return typed


def _violations(validator: jsonschema_rs.Draft202012Validator, value: dict[str, object]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for error in validator.iter_errors(value):
        kind = error.kind
        names: list[str] = []
        if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
            names = [kind.property]
        elif isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
            names = kind.unexpected
        places = [[*error.instance_path, name] for name in names] or [error.instance_path]
        found.update((_pointer(place), str(kind.name)) for place in places)
    return found


def compile_schema(schema: object, report: Report) -> ParamsSchema | None:
    """Return the compiled schema, or None with everything that is wrong reported."""
    problems = 0

    def note(path: Path, code: str, message: str, suggestion: str) -> None:
        nonlocal problems
        problems += 1
        report(path, code, message, suggestion)

    if not isinstance(schema, dict) or schema.get("type") != "object":
        note((), "schema-not-object", "params must be a JSON Schema of type object", "write `type: object` at its top")
        return None
    _check_keywords(schema, (), note)
    if problems:
        return None
    _check_shape(schema, note)
    parts = 0 if problems else _checked_size(schema, note)
    if not parts:
        return None
    try:
        validator = _validator(schema)
    except jsonschema_rs.ValidationError as error:
        note(
            tuple(error.instance_path),
            "schema-invalid",
            "the schema cannot be compiled: most likely a regular expression that is malformed or not linear-time",
            "look-around and back-references are not supported",
        )
        return None
    try:
        of_properties = _validator({keyword: schema[keyword] for keyword in ("properties", "$defs") if keyword in schema})
    except jsonschema_rs.ValidationError:
        of_properties = None
    type_ = _type_of(schema, schema)
    retyped = tuple((name, field.type) for name, field in type_.fields.items() if field.type.kind not in _AS_THEY_COME)
    return ParamsSchema(type_, schema.get("additionalProperties") is False, parts, validator, of_properties, retyped)


def _validator(schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(schema, offline=True, validate_formats=False, pattern_options=jsonschema_rs.RegexOptions())


def salvaged_type(schema: object) -> ValueType:
    """Return what can be said of the params of a broken schema: its properties, with the types that are plain to see.

    Where not even the properties can be read, params are "dyn": taken as they come.
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or not isinstance(properties, dict):
        return DYN
    required = schema.get("required")
    names = required if isinstance(required, list) else list(properties)
    types = {name: part.get("type") if isinstance(part, dict) else None for name, part in properties.items()}
    return ValueType(
        "object",
        fields={
            name: Field(_PLAIN_TYPES.get(type_, DYN) if isinstance(type_, str) else DYN, name in names) for name, type_ in types.items()
        },
    )


_TYPES: Final = ["array", "boolean", "integer", "null", "number", "object", "string"]
_PLAIN_TYPES: Final[Mapping[str, ValueType]] = {"string": STRING, "integer": INT, "number": DOUBLE, "boolean": BOOL}


def _check_keywords(schema: object, path: Path, note: Report) -> None:
    for part, place in _walk(schema, path):
        for keyword, value in part.items():
            at = (*place, keyword)
            if keyword in _ELSEWHERE:
                note(at, "schema-keyword", f"the keyword {keyword} is not supported", "refer to `#/$defs/…` with `$ref`")
            elif keyword not in _PLAIN and keyword not in _ONE and keyword not in _NAMED and keyword not in _LISTED:
                note(at, "schema-keyword", f"JSON Schema 2020-12 knows no keyword {keyword!r}", suggestion(keyword, _KEYWORDS))
            elif keyword == "$schema" and value != DIALECT:
                note(at, "schema-keyword", "only JSON Schema 2020-12 is supported", f"remove $schema, or write {DIALECT}")
            elif keyword == "$ref" and not (value == "#" or (isinstance(value, str) and value.startswith("#/"))):
                note(at, "schema-reference", f"the reference {value!r} leaves the schema", "copy what it names under `$defs`")


def _check_shape(schema: dict[str, Any], note: Report) -> None:
    """Hold the schema to the specification's own meta-schema."""
    seen = set()
    for error in _META_SCHEMA.iter_errors(schema):
        path = tuple(error.instance_path)
        if path not in seen:
            seen.add(path)
            note(path, "schema-invalid", *_shape_problem(error, str(path[-1]) if path else "the schema"))


def _shape_problem(error: jsonschema_rs.ValidationError, keyword: str) -> tuple[str, str]:
    """Return what is wrong with the value of a keyword, and what to do."""
    if keyword == "type" and isinstance(error.instance, str):
        return f"JSON Schema has no type {error.instance!r}", suggestion(error.instance, _TYPES)
    types = getattr(error.kind, "types", ())
    if types:
        return f"{keyword} must be of type {' or '.join(types)}", ""
    return f"breaks JSON Schema's own rule {error.kind.name!r} for this keyword", "see json-schema.org"


def _checked_size(schema: dict[str, Any], note: Report) -> int:
    """Return how many parts a schema has with its references followed; 0 with what is wrong with them reported.

    A part counts as often as the library looks at it: what nests `unevaluatedProperties` in one another would take it any time.
    """
    sizes: dict[str, int] = {}
    open_references: set[str] = set()
    sound = True

    def size(part: object, path: Path) -> int:
        nonlocal sound
        if not isinstance(part, dict):
            return 1
        total = 1
        times = _TIMES_ASKED if part.keys() & _UNEVALUATED else 1
        reference = part.get("$ref")
        if isinstance(reference, str):
            total += times * size_of_reference(reference, (*path, "$ref"))
        for below, place in _parts(part, path):
            keyword = place[len(path)]
            if keyword != "$defs":
                total += size(below, place) * (times if keyword in _ASKED_AGAIN else 1)
        return total

    def size_of_reference(reference: str, path: Path) -> int:
        nonlocal sound
        if reference in open_references or reference == "#":
            sound = False
            note(path, "schema-reference", f"the reference {reference!r} recurses", "write the nested schema out, to the depth you need")
            return 1
        if reference not in sizes:
            try:
                target = resolve(schema, reference)
            except LookupError:
                sound = False
                note(path, "schema-reference", f"the reference {reference!r} names nothing", "it must name a part of this schema")
                return 1
            open_references.add(reference)
            sizes[reference] = size(target, path)
            open_references.discard(reference)
        return sizes[reference]

    total = size(schema, ()) + sum(size(below, place) for below, place in _parts(schema, ()) if place[0] == "$defs")
    if sound and total > SCHEMA_PARTS_MAX:
        sound = False
        again = any(part.keys() & _UNEVALUATED for part, _ in _walk(schema, ()))
        note(
            (),
            "schema-too-large",
            f"with references followed, the schema has {total} parts; the limit is {SCHEMA_PARTS_MAX}",
            f"what stands beside {' or '.join(sorted(_UNEVALUATED))} counts {_TIMES_ASKED} times" if again else "simplify it",
        )
    return total if sound else 0


def _walk(schema: object, path: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield every mapping that is a schema, with its path."""
    if isinstance(schema, dict):
        yield schema, path
        for part, place in _parts(schema, path):
            yield from _walk(part, place)


def _parts(schema: dict[str, Any], path: Path) -> Iterator[tuple[object, Path]]:
    """Yield the schemas directly inside a schema, with their paths."""
    for keyword, value in schema.items():
        if keyword in _ONE:
            yield value, (*path, keyword)
        elif keyword in _NAMED and isinstance(value, dict):
            for name, part in value.items():
                yield part, (*path, keyword, name)
        elif keyword in _LISTED and isinstance(value, list):
            for index, part in enumerate(value):
                yield part, (*path, keyword, index)


def resolve(root: object, reference: str) -> object:
    """Return what a local reference names; LookupError when nothing."""
    part = root
    for step in reference.removeprefix("#/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, list) and name.isdigit() and int(name) < len(part):
            part = part[int(name)]
        elif isinstance(part, dict) and name in part:
            part = part[name]
        else:
            raise LookupError(reference)
    return part


def _type_of(schema: object, root: dict[str, Any]) -> ValueType:
    """Return the type that every value of a schema is known to have. References do not recurse: `_checked_size` said so."""
    type_ = _plain_type_of(schema, root)
    if not isinstance(schema, dict) or type_.kind not in _SIZES:
        return type_
    # The meta-schema has made sure that a size is a whole number, if perhaps one with a point: 5.0.
    declared = [int(schema[_SIZES[type_.kind]])] if _SIZES[type_.kind] in schema else []
    if type_.kind == "string":
        literals = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(literals, list):
            declared.append(max((len(literal) for literal in literals if isinstance(literal, str)), default=0))
        if isinstance(schema.get("pattern"), str):
            longest = measure(schema["pattern"]).longest
            declared.extend([longest] if longest is not None else [])
    if type_.size_max is not None:
        declared.append(type_.size_max)  # of what it refers to
    return replace(type_, size_max=min(declared)) if declared else type_


_SIZES: Final[Mapping[str, str]] = {"string": "maxLength", "list": "maxItems", "map": "maxProperties"}


def _plain_type_of(schema: object, root: dict[str, Any]) -> ValueType:
    if not isinstance(schema, dict):
        return DYN
    declared = schema.get("type")
    if isinstance(declared, list) and len(declared) == 1:
        declared = declared[0]
    if declared is None and isinstance(schema.get("$ref"), str):
        return _type_of(resolve(root, schema["$ref"]), root)
    match declared:
        case "string":
            return STRING
        case "integer":
            return INT
        case "number":
            return DOUBLE
        case "boolean":
            return BOOL
        case "array":
            return ValueType("list", DYN if "prefixItems" in schema else _type_of(schema.get("items"), root))
        case "object":
            return _object_type(schema, root)
        case None:
            return _type_of_literals([schema["const"]] if "const" in schema else schema.get("enum"))
    return DYN


def _object_type(schema: dict[str, Any], root: dict[str, Any]) -> ValueType:
    properties = schema.get("properties")
    if not properties:
        # `patternProperties` says otherwise of some names.
        return ValueType("map", DYN if "patternProperties" in schema else _type_of(schema.get("additionalProperties"), root))
    required = frozenset(schema.get("required", ()))
    fields = {name: Field(_type_of(part, root), name in required) for name, part in properties.items()}
    return ValueType("object", fields=fields)


def _type_of_literals(literals: object) -> ValueType:
    if not isinstance(literals, list) or not literals:
        return DYN
    found = {type(literal) for literal in literals}
    if found == {str}:
        return STRING
    if found == {bool}:
        return BOOL
    if found <= {int, float}:
        # 1.0 is an integer, as in JSON Schema: the document's canonical form writes it like 1.
        return INT if all(literal == int(literal) for literal in literals) else DOUBLE
    return DYN


# Kinds of values that are in Python what they are on the wire.
_AS_THEY_COME: Final = frozenset(("string", "bool", "dyn"))


def _typed(value: object, type_: ValueType) -> object:
    match type_.kind:
        case "int":
            return int(value) if isinstance(value, float) else value
        case "double":
            return float(value) if isinstance(value, int) else value
        case "object":
            return _typed_fields(value, type_.fields) if isinstance(value, dict) else value
        case "list" | "map" if type_.element is not None and type_.element.kind not in _AS_THEY_COME:
            element = type_.element
            if isinstance(value, list):
                return [_typed(item, element) for item in value]
            if isinstance(value, dict):
                return {name: _typed(item, element) for name, item in value.items()}
    return value


def _typed_fields(value: dict[str, object], fields: Mapping[str, Field]) -> dict[str, object]:
    # By what the value has, which may be little of what is declared.
    typed = dict(value)
    for name, item in value.items():
        field = fields.get(name)
        if field is not None and field.type.kind not in _AS_THEY_COME:
            typed[name] = _typed(item, field.type)
    return typed


def _pointer(path: list[str | int]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


_META_SCHEMA: Final = jsonschema_rs.Draft202012Validator({"$ref": DIALECT}, offline=True)
