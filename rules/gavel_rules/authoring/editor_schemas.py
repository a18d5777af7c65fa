"""JSON Schemas (2020-12) of rule sets and of their tests: what an editor completes, explains and underlines while one writes.

They are made from the models that the compiler itself reads documents with, and shipped in `schemas/`; a test compares the
two, and `make schemas` writes them anew. A schema knows the form alone: what it refuses the compiler refuses too, but names,
types of conditions and everything else that takes more than a look at one place are the compiler's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final, Literal

from pydantic import BaseModel

from gavel_rules.authoring.suite_parts import CasePart
from gavel_rules.language.parts import RuleSetPart

SchemaName = Literal["rule-set", "test"]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TITLES: Final[Mapping[SchemaName, str]] = {"rule-set": "Gavel rule set", "test": "Tests of a Gavel rule set"}
# Parts that stand whole in a list: nothing patches them, so nothing in them may be left out.
_WHOLE: Final = frozenset({"HintCase", "DerivedCase"})
_BARE: Final[list[dict[str, Any]]] = [{"type": name} for name in ("string", "number", "boolean", "array", "null")]


def shipped_schema(name: SchemaName) -> str:
    """Return the text of a schema as it ships."""
    return files("gavel_rules").joinpath("schemas", f"{name}.json").read_text(encoding="utf-8")


def generated_schema(name: SchemaName) -> str:
    """Return the text of a schema as the models give it now."""
    schema = _rule_set() if name == "rule-set" else _suite()
    return json.dumps({"$schema": _DIALECT, "title": _TITLES[name], **schema}, ensure_ascii=False, indent=2) + "\n"


def _rule_set() -> dict[str, Any]:
    schema = _of(RuleSetPart)
    parts = schema["$defs"]
    parts["ActionPart"]["properties"]["params"].update(
        {"required": ["type"], "properties": {"type": {"const": "object"}, "properties": {"type": "object"}}}
    )
    refusing = {"properties": {"effect": {"enum": ["reject", "review"]}}, "required": ["effect"]}
    named = {"required": ["reason_code"]}
    parts["RulePart"].update({"if": refusing, "then": named, "else": {"not": named}})
    return schema


def _suite() -> dict[str, Any]:
    case = _of(CasePart)
    parts = case.pop("$defs")
    for name, part in parts.items():
        if name not in _WHOLE:
            _relax(part)
    _relax(case)
    facts = case["properties"]["facts"]
    facts["anyOf"][0]["additionalProperties"] = {"anyOf": [{"$ref": "#/$defs/FactCase"}, *_BARE]}
    shared = case["properties"]
    return {
        "type": "object",
        "description": case["description"],
        "required": ["gavel", "tests"],
        "anyOf": [{"required": ["cases"]}, {"required": ["tables"]}],
        "additionalProperties": False,
        "properties": {
            "gavel": {"const": "v1", "description": "Version of the format."},
            "tests": {"type": "string", "description": "The rule set's file, relative to this one."},
            "description": {"type": "string", "description": "For people."},
            "defaults": {"description": "What every case starts from.", "anyOf": [{"$ref": "#/$defs/Shared"}, {"type": "null"}]},
            "cases": {"description": "Cases one by one.", "type": ["array", "null"], "items": {"$ref": "#/$defs/Case"}},
            "tables": {"description": "Cases as rows.", "type": ["array", "null"], "items": {"$ref": "#/$defs/Table"}},
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
                "description": "Cases that have much in common: a row each.",
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
    "description": "A cell for every column; null where a cell says nothing.",
    "items": {"type": "array"},
}


def _columns(case: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    known = {"enum": ["name", *_dotted(case, parts)]}
    return {
        "type": "array",
        "description": "What each cell of a row says, like params.amount or expect.outcome.",
        "items": {"type": "string", "anyOf": [known, {"pattern": r"^(params|facts|execution\.result|expect\.compensation\.params)\..+$"}]},
    }


def _dotted(part: dict[str, Any], parts: dict[str, Any]) -> Iterator[str]:
    """Yield the names of a part's keys, and dotted those of the parts below it."""
    for name, field in part["properties"].items():
        yield name
        reference = field["anyOf"][0].get("$ref", "").removeprefix("#/$defs/")
        if reference:
            yield from (f"{name}.{inner}" for inner in _dotted(parts[reference], parts))


def _of(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    for part in [schema, *schema.get("$defs", {}).values()]:
        part.pop("title", None)
        for field in part["properties"].values():
            field.pop("title", None)
            if "$ref" in field:  # pydantic leaves out what the part says of itself in the same words
                field.setdefault("description", schema["$defs"][field["$ref"].rpartition("/")[2]]["description"])
            if "patternProperties" in field:
                field["additionalProperties"] = False
    return schema


def _relax(part: dict[str, Any]) -> None:
    """Let a part of a case be a patch: anything may be left out, and null takes away."""
    part.pop("required", None)
    for name, field in part["properties"].items():
        kept = {key: field.pop(key) for key in ("description", "default") if key in field}
        options = field["anyOf"] if list(field) == ["anyOf"] else [field]
        if {"type": "null"} not in options:
            options = [*options, {"type": "null"}]
        part["properties"][name] = {"anyOf": options, **kept}
