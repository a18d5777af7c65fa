"""The builder of sample cases: a complete case from values for some of its paths, with the plainest values for the rest."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import islice, product
from typing import Any, Final, NamedTuple

from gavel_rules.authoring.samples.attributes import attribute_of, attribute_schema, build_case, complete_attributes, is_attribute
from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.authoring.samples.hints import NO_HINTS, Hints, Reference, collect_hints, collect_hints_of
from gavel_rules.authoring.samples.paths import fact_schema
from gavel_rules.authoring.samples.seeds import Seed, seed_values
from gavel_rules.authoring.samples.values import VALUES_MAX, Sampler, deduplicate, resolve_schema, value_key
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.engines.case import Case
from gavel_rules.language.fact_declaration import case_value, is_case_value
from gavel_rules.language.rule_set import CompiledAction
from gavel_rules.values import size_of

TEMPLATE_VALUES_MAX: Final = 6  # values of each path that a template refers to
# Steps of a Budget: to build and check each part of a case, besides its fixed cost; to compare each part of a value.
CASE_STEPS: Final = 20
PART_STEPS: Final = 3
VALUE_STEPS: Final = 3


class _Absent:
    """The type of ABSENT."""


# The value of an optional path that is absent.
ABSENT: Final = _Absent()
Assignment = dict[str, object]


class SampleCase(NamedTuple):
    """A case, its params and facts as JSON values, and the assignment that it was built from."""

    params: dict[str, object]
    facts: dict[str, object]
    case: Case
    assignment: Mapping[str, object]


class CaseBuilder:
    """Builds cases of one action. The conditions of its `other_versions` and the `expressions` give hints as well.

    The budget pays for the size of the values. Once it is exhausted, nothing is built. The values of `seeds` are tried too.
    """

    def __init__(
        self,
        action: CompiledAction,
        other_versions: Sequence[CompiledAction],
        budget: Budget,
        seeds: Sequence[Seed] = (),
        expressions: Sequence[ScopedExpression] = (),
    ) -> None:
        self.action = action
        self.budget = budget
        self._seeds = seeds
        self.hints: dict[str, Hints] = collect_hints_of(expressions)
        for version in (action, *other_versions):
            for condition in version.conditions:
                for path, hints in collect_hints(condition.tree, version.environment.types).items():
                    self.hints[path] = self.hints.get(path, NO_HINTS).merge(hints)
        self._sampler = Sampler(action.params_schema, self.hints, budget)
        declarations = [fact for version in (*other_versions, action) for fact in version.facts]
        self._fact_schemas = {fact.name: fact_schema(fact) for fact in declarations}
        self._fact_samplers = {name: Sampler(schema, self.hints, budget) for name, schema in self._fact_schemas.items()}
        self._expand_templates()
        self._values: dict[str, list[object]] = {}
        self._fits: dict[tuple[str, str], bool] = {}
        values = [*self._sampler.values(action.params_schema, "params"), *(dict(seed.params) for seed in seeds)]
        self._params = next((value for value in values if isinstance(value, dict) and not action.violations(value)), None)
        self.steps_per_case = CASE_STEPS + PART_STEPS * size_of(self._params) + len(action.facts)

    def values(self, path: str) -> list[object]:
        """Return values to try for a path, the plainest first."""
        values = self._values.get(path)
        if values is None:
            default = [attribute_of(path)[0]] if is_attribute(path) else []
            samples = [*default, *self._sampler_of(path).values(self._schema(path), path)]
            values = self._values[path] = list(deduplicate([*samples[:1], *seed_values(self._seeds, path)[:VALUES_MAX], *samples[1:]]))
        return values

    def fits(self, path: str, value: object) -> bool:
        """Return whether the schema allows a value at a path, in the plainest params. False once the budget is exhausted."""
        if not path.startswith("params.") or self._params is None:
            return True
        key = (path, value_key(value))
        if key not in self._fits:
            if not self.budget.take(self.steps_per_case):
                return False
            params = copy.deepcopy(self._params)
            self._set(params, path, value)
            self._fits[key] = not self.action.violations(params)
        return self._fits[key]

    def build(self, assignment: Assignment) -> SampleCase | None:
        """Return the plainest case with these values; None if the schema or the attributes do not allow them together."""
        if self._params is None or not self.budget.take(self.steps_per_case + VALUE_STEPS * size_of(list(assignment.values()))):
            return None
        params = copy.deepcopy(self._params)
        facts: dict[str, object] = {
            fact.name: copy.deepcopy(value)
            for fact in self.action.facts
            if not fact.optional
            for value in self.values(f"facts.{fact.name}")[:1]
        }
        assigned_attributes: Assignment = {}
        for path in sorted(assignment):
            value = assignment[path]
            if path.startswith("params."):
                self._set(params, path, value)
            elif path.startswith("facts."):
                self._set(facts, path, value)
            else:
                assigned_attributes[path] = value
        # A counter gives a number in every case that does not assign one.
        reads = {read.variable: attribute_of(read.variable)[0] for read in self.action.counter_reads}
        attributes = complete_attributes({**reads, **assigned_attributes}, len(facts))
        if attributes is None or self.action.violations(params):
            return None
        # Facts of one type are checked where cases are compared; a path inside of a fact may not fit the whole.
        structured = {fact.name: fact for fact in self.action.facts if (fact.schema is not None or fact.subjects) and fact.name in facts}
        if any(not is_case_value(facts[name], fact) for name, fact in structured.items()):
            return None
        typed_facts = {name: case_value(value, structured[name]) if name in structured else value for name, value in facts.items()}
        return SampleCase(params, facts, build_case(self.action.typed_params(params), typed_facts, attributes), dict(assignment))

    def _set(self, container_data: dict[str, object], path: str, value: object) -> None:
        """Set or remove a path of params or facts. Missing objects around it are created as the schema requires."""
        root, *steps = path.split(".")
        container: Any = container_data
        for depth, step in enumerate(steps[:-1]):
            if not isinstance(container.get(step), dict):
                if value is ABSENT:
                    return
                prefix = ".".join((root, *steps[: depth + 1]))
                container[step] = next((copy.deepcopy(one) for one in self.values(prefix) if isinstance(one, dict)), {})
            container = container[step]
        if value is ABSENT:
            container.pop(steps[-1], None)
        else:
            container[steps[-1]] = copy.deepcopy(value)

    def _schema(self, path: str) -> object:
        """Return the schema of a path's values."""
        if is_attribute(path):
            return attribute_schema(path, self._kind(path))
        steps = path.replace("[]", ".[]").split(".")[1:]
        whole: Mapping[str, Any] = self.action.params_schema
        if path.startswith("facts."):
            whole = self._fact_schemas.get(steps[0], {})
            steps = steps[1:]
        part: object = whole
        for step in steps:
            schema = resolve_schema(part, whole)
            items = schema.get("items", schema.get("additionalProperties", {}))
            part = items if step == "[]" else schema.get("properties", {}).get(step, schema.get("additionalProperties", {}))
        return part

    def _sampler_of(self, path: str) -> Sampler:
        """Return the sampler whose schema a path is in: references stay inside of one schema."""
        fact = path.replace("[]", "").split(".")[1] if path.startswith("facts.") else ""
        return self._fact_samplers.get(fact, self._sampler)

    def _kind(self, path: str) -> str:
        type_ = self.action.environment.types.get(path)
        return type_.kind if type_ is not None else "double"

    def _expand_templates(self) -> None:
        """Add the texts of the templates to the hints, with the plainest values of the paths that they contain."""
        for path, hints in list(self.hints.items()):
            for template in hints.templates:
                options = [[part] if isinstance(part, str) else self._plainest_texts(part.path) for part in template]
                texts = ["".join(parts) for parts in islice(product(*options), VALUES_MAX)]
                self.hints[path] = self.hints[path].with_constants(texts)
                if len(template) == 1 and isinstance(template[0], Reference):
                    beginnings = (text[:length] for text in self._plainest_texts(path) for length in (1, 2, 3))
                    other = template[0].path
                    self.hints[other] = self.hints.get(other, NO_HINTS).with_constants(beginnings)

    def _plainest_texts(self, path: str) -> list[str]:
        values = self._sampler_of(path).values(self._schema(path), path)[:TEMPLATE_VALUES_MAX]
        return [value for value in values if isinstance(value, str)]
