"""Reading of scenario files. All mistakes are reported at once, each as `file:line:column: code: message`.

A file contains its rule sets in full, or names one that ships as {file: NAME}. The lowest version of each is in force from the
start, or only the names in `in_force`; a step activates the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from gavel_rules.language.document.diagnostics import DocumentError, Messages
from gavel_rules.language.document.diagnostics import Path as Place
from gavel_rules.language.document.model_errors import diagnostic_code
from gavel_rules.language.document.source import Source
from gavel_rules.language.rule_set import CompiledRuleSet, compile_rule_set
from gavel_rules.text import suggestion
from pydantic import BaseModel, ValidationError

from tests.scenarios.steps import STEPS, AnyStep, FilePart, Finally, RepeatStep, ScenarioPart, Step, Wait

FOLDER: Final = Path(__file__).parent
SHIPPED: Final = FOLDER.parents[1] / "rules/sets"
# Keys of a step that name an earlier event.
_REFERENCE_KEYS: Final = ("of", "evidence", "cause", "as_of", "decided", "repeat", "renew", "derive")

Model = TypeVar("Model", bound=BaseModel)


class ScenarioFileError(Exception):
    """A scenario file is invalid; the message has a line for every mistake."""


class ScenarioError(AssertionError):
    """A scenario differs from what its file expects; the message lists the place and the differences."""


class RuleSet(NamedTuple):
    """A rule set of a scenario: the text to deploy, and compiled."""

    text: str
    compiled: CompiledRuleSet


class Scenario(NamedTuple):
    """One scenario as read."""

    file: str
    number: int  # in its file, from 1
    must: str
    gate: int | None
    engines_disagree: bool
    rule_sets: tuple[RuleSet, ...]
    in_force: frozenset[str]  # names of the rule sets in force from the start
    steps: tuple[AnyStep, ...]
    lines: tuple[int, ...]  # of each step in the file
    finally_: Finally

    @property
    def id(self) -> str:
        """The id of its tests, e.g. "evidence-3"."""
        return f"{self.file.removesuffix('.yaml')}-{self.number}"


@cache
def load_scenarios() -> tuple[Scenario, ...]:
    """Return the scenarios of all files in this folder. Raises ScenarioFileError."""
    return tuple(scenario for path in sorted(FOLDER.glob("*.yaml")) for scenario in read_scenarios(path.read_text(), path.name))


def read_scenarios(text: str, filename: str) -> list[Scenario]:
    """Return the scenarios of a file. Raises ScenarioFileError with every mistake."""
    messages = Messages()
    reader = _FileReader(Source(text, messages), messages, filename)
    scenarios = list(reader.read())
    if len(messages):
        raise ScenarioFileError("\n".join(message.format(filename) for message in messages.sorted()))
    return scenarios


class _FileReader:
    """Reads one file and collects its mistakes in `messages`."""

    def __init__(self, source: Source, messages: Messages, filename: str) -> None:
        self._source = source
        self._messages = messages
        self._filename = filename

    def read(self) -> Iterator[Scenario]:
        if self._source.data is None:
            return
        part = self._model(FilePart, self._source.data, ())
        if part is None:
            return
        shared = self._rule_sets(part.rule_sets, ("rule_sets",))
        for index, data in enumerate(part.scenarios):
            scenario = self._scenario(data, shared, ("scenarios", index))
            if scenario is not None:
                yield scenario

    def _scenario(self, data: object, shared: tuple[RuleSet, ...], place: Place) -> Scenario | None:
        part = self._model(ScenarioPart, data, place)
        if part is None:
            return None
        own = self._rule_sets(part.rule_sets, (*place, "rule_sets")) if part.rule_sets is not None else shared
        names_of_rule_sets = {rule_set.compiled.policy_id for rule_set in own}
        for index, name in enumerate(part.in_force or ()):
            if name not in names_of_rule_sets:
                hint = suggestion(name, sorted(names_of_rule_sets))
                self._add((*place, "in_force", index), "unknown-name", f"no rule set is named {name}", hint)
        names: set[str] = set()
        steps: list[AnyStep] = []
        lines = []
        for index, item in enumerate(part.steps):
            at = (*place, "steps", index)
            step = self._step(item, at)
            if step is not None:
                self._check_names(step, names, at)
                steps.append(step)
                lines.append(self._source.locate(at)[0])
        self._check_times(steps, lines)
        self._check_finally(part.finally_, names, place)
        return Scenario(
            self._filename,
            int(place[1]) + 1,
            part.must,
            part.gate,
            part.engines == "disagree",
            own,
            frozenset(names_of_rule_sets if part.in_force is None else part.in_force),
            tuple(steps),
            tuple(lines),
            part.finally_,
        )

    def _step(self, data: object, place: Place) -> AnyStep | None:
        if not isinstance(data, dict):
            self._add(place, "wrong-type", "a step is a mapping", "write it like `- fact: status`")
            return None
        verbs = [verb for verb in data if verb in STEPS]
        if len(verbs) > 1 or (not verbs and data.keys() - {"at", "before", "then"}):
            names = " and ".join(verbs) if verbs else "none"
            self._add(place, "unknown-verb", f"a step has one verb, this one has {names}", f"known: {', '.join(sorted(STEPS))}")
            return None
        model = STEPS[verbs[0]] if verbs else Wait
        return self._model(model, data, place)  # type: ignore[return-value]  # STEPS holds the members of AnyStep

    def _check_names(self, step: AnyStep, names: set[str], place: Place) -> None:
        """Report references to events that no earlier step names; then add the names that this step gives to `names`."""
        data = step.model_dump(exclude_none=True)
        references = [(key, data[key]) for key in _REFERENCE_KEYS if isinstance(data.get(key), str)]
        references += [("cites", name) for name in data.get("cites", ())]
        for key, name in references:
            if name not in names and not (key == "of" and f"{name}.decision" in names):
                self._add((*place, key), "unknown-name", f"no step before is named {name}", suggestion(name, sorted(names)))
        for name in _names_of(step):
            if name in names:
                self._add(place, "duplicate-name", f"{name} is named already", "names are unique in a scenario")
            names.add(name)

    def _check_times(self, steps: list[AnyStep], lines: list[int]) -> None:
        now_ms = 0
        for step, line in zip(steps, lines, strict=True):
            if step.at is not None and step.at < now_ms:
                self._messages.add((line, 1), "out-of-range", "time does not go back", "give a later `at`")
            now_ms = step.at if step.at is not None else now_ms

    def _check_finally(self, part: Finally, names: set[str], place: Place) -> None:
        for name in (*(part.pending or ()), *(part.reviews or ())):
            if f"{name}.decision" not in names and name not in names:
                self._add((*place, "finally"), "unknown-name", f"no step is named {name}", suggestion(name, sorted(names)))

    def _rule_sets(self, items: list[Any], place: Place) -> tuple[RuleSet, ...]:
        rule_sets = []
        for index, item in enumerate(items):
            at = (*place, index)
            if not isinstance(item, dict):
                self._add(at, "wrong-type", "a rule set is a mapping", "write it as in a file of its own, or {file: NAME}")
                continue
            if item.keys() == {"file"} and not (SHIPPED / str(item["file"])).is_file():
                known = sorted(path.name for path in SHIPPED.glob("*.yaml"))
                self._add(at, "unknown-name", f"rules/sets has no {item['file']}", suggestion(str(item["file"]), known))
                continue
            text = (SHIPPED / str(item["file"])).read_text() if item.keys() == {"file"} else json.dumps(item)
            try:
                rule_sets.append(RuleSet(text, _compiled(text)))
            except DocumentError as error:
                for message in error.messages:
                    self._add(at, message.code, message.message, message.suggestion)
        return tuple(rule_sets)

    def _model(self, model: type[Model], data: object, place: Place) -> Model | None:
        try:
            return model.model_validate(data)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                self._report(model, details["type"], details["loc"], details["msg"], place)
            return None

    def _report(self, model: type[BaseModel], kind: str, path: tuple[str | int, ...], message: str, place: Place) -> None:
        code = diagnostic_code(kind)
        if code == "unknown-key":
            known = sorted(field.alias or name for name, field in _model_at(model, path[:-1]).model_fields.items())
            self._add((*place, *path), code, f"no such key here: {path[-1]}", suggestion(str(path[-1]), known))
        elif code == "missing-key":
            self._add((*place, *path[:-1]), code, f"the key {path[-1]} is missing", "add it")
        else:
            self._add((*place, *path), code, f"{'.'.join(map(str, path))}: {message.removeprefix('Value error, ')}", "")

    def _add(self, place: Place, code: str, message: str, hint: str) -> None:
        self._messages.add(self._source.locate_key(place), code, message, hint)


@cache
def _compiled(text: str) -> CompiledRuleSet:
    return compile_rule_set(text)


def _names_of(step: Step) -> list[str]:
    """Return the names that a step gives to events."""
    names = [appended.name for appended in (*step.before, *step.then) if appended.name]
    own = getattr(step, step.verb, None) if step.verb and not isinstance(step, RepeatStep) else None
    if step.verb in ("propose", "preflight"):
        names += [str(own), f"{own}.decision"]
    elif step.verb in ("resolve", "revoke"):
        names += [str(own), f"{own}.word"]
    elif step.verb == "tool":
        names += [str(own), f"{own}.call"]
    elif step.verb == "derive":
        names += [f"{own}.fact-{number}" for number in range(1, 10)]
    elif own is not None and step.verb not in ("decided", "renew", "activate", "deactivate"):
        names.append(str(own))
    return names


def _model_at(model: type[BaseModel], path: tuple[str | int, ...]) -> type[BaseModel]:
    """Return the model of the part at `path`, or the nearest one around it."""
    for step in path:
        field = model.model_fields.get(str(step)) or next((one for one in model.model_fields.values() if one.alias == step), None)
        inner = None if field is None else next(_models_in(field.annotation), None)
        model = inner or model
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)


def patch_step(step: Step, changes: Mapping[str, Any]) -> Step:
    """Return a step with some of its keys changed."""
    return type(step).model_validate({**step.model_dump(by_alias=True, exclude_unset=True), **changes})
