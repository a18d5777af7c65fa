"""The paths of an action's cases: which of them may be absent, and the bounds that declarations set on their values.

These bounds may be wider than the schema's, never narrower: the schema alone decides whether a value is valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gavel_rules.authoring.samples.attributes import ATTRIBUTES, counter_domain
from gavel_rules.authoring.samples.constraints import Constraints, Domain
from gavel_rules.authoring.samples.values import resolve_schema
from gavel_rules.language.cel.tree_queries import find_presence_tests
from gavel_rules.language.cel.vocabulary import ValueType
from gavel_rules.language.rule_set import CompiledAction, FactDeclaration
from gavel_rules.values import INTEGER_MAX


def all_cases(action: CompiledAction, other_versions: Sequence[CompiledAction]) -> Constraints:
    """Return the set of all cases of an action, with the paths that other versions of it read."""
    optional: dict[str, tuple[str, ...]] = {}
    domains = {path: domain for path, (_, domain) in ATTRIBUTES.items()}
    for version in (action, *other_versions):
        for read, counter in zip(version.counter_reads, version.read_counters, strict=True):
            domains[read.variable] = counter_domain(counter)
    scope = action.environment.scope

    def walk(type_: ValueType, path: str, along: tuple[str, ...], part: dict[str, Any] | None, root: Mapping[str, Any]) -> None:
        for name, field in type_.fields.items():
            below = f"{path}.{name}"
            steps = along if field.required else (*along, below)
            optional[below] = steps
            schema = None
            if part is not None:
                schema = resolve_schema(part.get("properties", {}).get(name), root)
                domain = _schema_domain(schema)
                if domain is not None:
                    domains[below] = domain
            walk(field.type, below, steps, schema, root)

    walk(scope["params"], "params", (), resolve_schema(action.params_schema, action.params_schema), action.params_schema)
    declared = {fact.name: fact for fact in action.facts}
    for name, field in scope["facts"].fields.items():
        path = f"facts.{name}"
        optional[path] = () if field.required else (path,)
        schema = fact_schema(declared[name])
        whole = resolve_schema(schema, schema)
        domain = _schema_domain(whole) if declared[name].schema is not None else None
        if domain is not None:
            domains[path] = domain
        walk(field.type, path, optional[path], whole, schema)
    for path, type_ in action.environment.types.items():
        if type_.kind in ("int", "double") and path in optional:
            known = domains.get(path, Domain(integer=type_.kind == "int"))
            # Admission refuses numbers beyond these, whatever the schema allows.
            domains[path] = known.intersect(Domain(low=-INTEGER_MAX, high=INTEGER_MAX)) or replace(known, allowed=frozenset())
    for version in (action, *other_versions):
        for condition in version.conditions:
            for path in find_presence_tests(condition.tree):
                optional.setdefault(path, (path,))
        for path in version.environment.types:
            if path.startswith(("params.", "facts.")):
                optional.setdefault(path, (path,))
    return Constraints(optional, domains)


def fact_schema(fact: FactDeclaration) -> dict[str, Any]:
    """Return the JSON Schema of what rules see of a declared fact."""
    if fact.subjects:
        one = fact_schema(fact._replace(subjects=""))
        definitions = {"$defs": one["$defs"]} if "$defs" in one else {}
        return {"type": "array", "maxItems": fact.subjects_max, "items": one, **definitions}
    if fact.schema is not None:
        return fact.schema.schema
    return {"type": fact.value_type, **({"maxLength": fact.length_max} if fact.length_max else {})}


def _schema_domain(schema: Mapping[str, Any]) -> Domain | None:
    """Return the domain that a schema certainly keeps a value in; None if it sets no literal and no bound."""
    literals = [schema["const"]] if "const" in schema else schema.get("enum")
    domain: Domain | None = Domain(integer=schema.get("type") == "integer")
    if isinstance(literals, list) and literals and all(isinstance(value, str | bool | int | float) for value in literals):
        domain = Domain(allowed=frozenset(literals), integer=schema.get("type") == "integer")
    for keyword, operator in (("minimum", "$gte"), ("exclusiveMinimum", "$gt"), ("maximum", "$lte"), ("exclusiveMaximum", "$lt")):
        if domain is not None and isinstance(schema.get(keyword), int | float) and schema.get("type") in ("number", "integer"):
            domain = domain.bound(operator, schema[keyword])
    return domain if domain != Domain() else None
