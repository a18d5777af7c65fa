"""What cases of an action are made of: which paths they have, which of these may be absent, and what is certain of their values.

All of it follows from declarations, and from what conditions read. It says less than a schema does, and nothing that it does not:
whether a value is allowed is for the schema to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gavel_rules.language.attributes import ATTRIBUTES
from gavel_rules.language.constraints import Domain
from gavel_rules.language.reading import presences
from gavel_rules.language.ruleset import CompiledAction
from gavel_rules.language.samples import resolved
from gavel_rules.language.vocabulary import ValueType
from gavel_rules.values import INTEGER_MAX


def structure(action: CompiledAction, beside: Sequence[CompiledAction]) -> tuple[dict[str, tuple[str, ...]], dict[str, Domain]]:
    """Return for each path which optional paths it hangs on, and between which bounds declarations keep its values.

    `beside` are versions of the action that are asked about as well.
    """
    optional: dict[str, tuple[str, ...]] = {}
    domains = {path: domain for path, (_, domain) in ATTRIBUTES.items()}
    scope = action.environment.scope

    def walk(type_: ValueType, path: str, along: tuple[str, ...], part: dict[str, Any] | None) -> None:
        for name, field in type_.fields.items():
            below = f"{path}.{name}"
            steps = along if field.required else (*along, below)
            optional[below] = steps
            schema = None
            if part is not None:
                schema = resolved(part.get("properties", {}).get(name), action.params_schema)
                domain = _domain_of(schema)
                if domain is not None:
                    domains[below] = domain
            walk(field.type, below, steps, schema)

    walk(scope["params"], "params", (), resolved(action.params_schema, action.params_schema))
    walk(scope["facts"], "facts", (), None)
    for path, type_ in action.environment.types.items():
        if type_.kind in ("int", "double") and path in optional:
            known = domains.get(path, Domain(integer=type_.kind == "int"))
            # Beyond these no number is admitted, whatever a schema allows.
            domains[path] = known.common(Domain(low=-INTEGER_MAX, high=INTEGER_MAX)) or replace(known, allowed=frozenset())
    for version in (action, *beside):
        for condition in version.conditions:
            for path in presences(condition.tree):
                optional.setdefault(path, (path,))
        for path in version.environment.types:
            if path.startswith(("params.", "facts.")):
                optional.setdefault(path, (path,))
    return optional, domains


def _domain_of(schema: Mapping[str, Any]) -> Domain | None:
    """Return between which bounds a schema certainly keeps a value; None where it says nothing that matters here."""
    literals = [schema["const"]] if "const" in schema else schema.get("enum")
    domain: Domain | None = Domain(integer=schema.get("type") == "integer")
    if isinstance(literals, list) and literals and all(isinstance(value, str | bool | int | float) for value in literals):
        domain = Domain(allowed=frozenset(literals), integer=schema.get("type") == "integer")
    for keyword, operator in (("minimum", "$gte"), ("exclusiveMinimum", "$gt"), ("maximum", "$lte"), ("exclusiveMaximum", "$lt")):
        if domain is not None and isinstance(schema.get(keyword), int | float) and schema.get("type") in ("number", "integer"):
            domain = domain.bounded(operator, schema[keyword])
    return domain if domain != Domain() else None
