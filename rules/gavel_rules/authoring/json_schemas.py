"""JSON Schemas (2020-12) of rule sets and of test suites, with which editors complete, explain and check documents.

They are generated from the models that the compiler reads documents with, and shipped in `schemas/`. A test compares the two;
`make schemas` writes them again. A schema describes the form only. The compiler also checks names, the types of conditions and
everything else that depends on more than one place of a document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final, Literal

from pydantic import BaseModel

from gavel_rules.authoring.grants.suite import GrantSuitePart
from gavel_rules.authoring.suites.models import CasePart
from gavel_rules.identity.models import GrantsPart
from gavel_rules.language.document.models import RuleSetPart

SchemaName = Literal["rule-set", "test", "grants", "grants-test"]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TITLES: Final[Mapping[SchemaName, str]] = {
    "rule-set": "Gavel rule set",
    "test": "Tests of a Gavel rule set",
    "grants": "Gavel grants",
    "grants-test": "Tests of Gavel grants",
}
# Items of lists, which are never patched: their required keys stay required.
_UNPATCHED: Final = frozenset({"HintCase", "DerivedCase"})
_SCALARS: Final[list[dict[str, Any]]] = [{"type": name} for name in ("string", "number", "boolean", "array", "null")]


def shipped_schema(name: SchemaName) -> str:
    """Return the text of a shipped schema."""
    return files("gavel_rules").joinpath("schemas", f"{name}.json").read_text(encoding="utf-8")


def generate_schema(name: SchemaName) -> str:
    """Return the text of a schema, generated from the models."""
    match name:
        case "rule-set":
            schema = _rule_set_schema()
        case "test":
            schema = _suite_schema()
        case "grants":
            schema = _model_schema(GrantsPart)
        case "grants-test":
            schema = _model_schema(GrantSuitePart)
    return json.dumps({"$schema": _DIALECT, "title": _TITLES[name], **schema}, ensure_ascii=False, indent=2) + "\n"


def _rule_set_schema() -> dict[str, Any]:
    schema = _model_schema(RuleSetPart)
    parts = schema["$defs"]
    parts["ActionPart"]["properties"]["params"].update(
        {"required": ["type"], "properties": {"type": {"const": "object"}, "properties": {"type": "object"}}}
    )
    parts["ActionPart"].update({"required": [], "anyOf": [{"required": ["params"]}, {"required": ["use"]}]})
    shared = {key: value for key, value in parts["ActionPart"].items() if key not in ("required", "anyOf")}
    shared["properties"] = {key: value for key, value in shared["properties"].items() if key != "use"}
    parts["SharedPart"] = {**shared, "description": "Parts of actions, for actions to use."}
    literal = {"type": ["number", "string", "boolean"]}
    constant = {"anyOf": [literal, {"type": "array", "items": literal}]}
    for part in (schema, parts["LibraryPart"]):
        part["properties"]["shared"]["additionalProperties"] = {"$ref": "#/$defs/SharedPart"}
        part["properties"]["constants"]["additionalProperties"] = constant
    parts["RulePart"]["oneOf"] = [{"required": ["action"]}, {"required": ["actions"]}]
    parts["FactPart"]["dependentRequired"] = {"subjects": ["max"], "max": ["subjects"]}
    parts["FactPart"]["oneOf"] = [{"required": ["type"]}, {"required": ["value"]}]
    is_refusal = {"properties": {"effect": {"enum": ["reject", "review"]}}, "required": ["effect"]}
    has_reason_code = {"required": ["reason_code"]}
    parts["RulePart"].update({"if": is_refusal, "then": has_reason_code, "else": {"not": has_reason_code}})
    is_review = {"properties": {"effect": {"const": "review"}}, "required": ["effect"]}
    parts["RulePart"]["dependentSchemas"] = {"review": is_review}
    return schema


def _suite_schema() -> dict[str, Any]:
    case = _model_schema(CasePart)
    parts = case.pop("$defs")
    for name, part in parts.items():
        if name not in _UNPATCHED:
            _relax(part)
    _relax(case)
    facts = case["properties"]["facts"]
    facts["anyOf"][0]["additionalProperties"] = {"anyOf": [{"$ref": "#/$defs/FactCase"}, *_SCALARS]}
    shared = case["properties"]
    return {
        "type": "object",
        "description": case["description"],
        "required": ["gavel", "tests"],
        "anyOf": [{"required": ["cases"]}, {"required": ["tables"]}],
        "additionalProperties": False,
        "properties": {
            "gavel": {"const": "v1", "description": "Version of the format."},
            "tests": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
                "description": "The rule set's file, relative to this one; or several, which are in force together.",
            },
            "description": {"type": "string", "description": "For people."},
            "defaults": {"description": "Keys that every case inherits.", "anyOf": [{"$ref": "#/$defs/Shared"}, {"type": "null"}]},
            "cases": {"description": "Cases, one by one.", "type": ["array", "null"], "items": {"$ref": "#/$defs/Case"}},
            "tables": {"description": "Cases, as rows of tables.", "type": ["array", "null"], "items": {"$ref": "#/$defs/Table"}},
        },
        "$defs": {
            **parts,
            "Shared": {"type": "object", "additionalProperties": False, "properties": shared},
            "Case": {
                "type": "object",
                "description": case["description"],
                "required": ["name"],
                "additionalProperties": False,
                "properties": {"name": _NAME, **shared},
            },
            "Table": {
                "type": "object",
                "description": "Cases that share keys, one per row.",
                "required": ["name", "columns", "rows"],
                "additionalProperties": False,
                "properties": {"name": _NAME, **shared, "columns": _columns(case, parts), "rows": _ROWS},
            },
        },
    }


_NAME: Final[dict[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 200,
    "description": "What must hold, in a few words; unique in the suite.",
}
_ROWS: Final[dict[str, Any]] = {
    "type": ["array", "null"],
    "description": "A cell for every column, null in a cell that has no value.",
    "items": {"type": "array"},
}


def _columns(case: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    known = {"enum": ["name", *_dotted_keys(case, parts)]}
    return {
        "type": "array",
        "description": "The key that each cell of a row sets, like params.amount or expect.outcome.",
        "items": {"type": "string", "anyOf": [known, {"pattern": r"^(params|facts|execution\.result|expect\.compensation\.params)\..+$"}]},
    }


def _dotted_keys(part: dict[str, Any], parts: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of a part, and the dotted keys of the parts below it."""
    for name, field in part["properties"].items():
        yield name
        reference = field["anyOf"][0].get("$ref", "").removeprefix("#/$defs/")
        if reference:
            yield from (f"{name}.{inner}" for inner in _dotted_keys(parts[reference], parts))


def _model_schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    for part in [schema, *schema.get("$defs", {}).values()]:
        part.pop("title", None)
        for field in part["properties"].values():
            field.pop("title", None)
            if "$ref" in field:  # pydantic omits the description if the field adds none of its own
                field.setdefault("description", schema["$defs"][field["$ref"].rpartition("/")[2]]["description"])
            if "patternProperties" in field:
                field["additionalProperties"] = False
    return schema


def _relax(part: dict[str, Any]) -> None:
    """Make a part of a case a patch: every key is optional, and null removes it."""
    part.pop("required", None)
    for name, field in part["properties"].items():
        annotations = {key: field.pop(key) for key in ("description", "default") if key in field}
        options = field["anyOf"] if list(field) == ["anyOf"] else [field]
        if {"type": "null"} not in options:
            options = [*options, {"type": "null"}]
        part["properties"][name] = {"anyOf": options, **annotations}
