"""Reads a rule set document into its models, and reports every mistake of form at once (constitution §6.2).

The form includes names, ids and priorities that must be unique, and rules that must refer to declared actions. `action_checker` checks
the meaning of expressions.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gavel_rules.events.kinds import GAVEL
from gavel_rules.language.cel.library import FUNCTIONS
from gavel_rules.language.cel.variables import constant_literal
from gavel_rules.language.cel.vocabulary import ADDED_ROOTS, PRESENCE_MAPS, ROOTS, TYPE_NAMES, is_spellable
from gavel_rules.language.cel.zones import encode_zone
from gavel_rules.language.document.composition import compose, library_digest
from gavel_rules.language.document.diagnostics import Messages, Path
from gavel_rules.language.document.model_errors import (
    describe_error,
    diagnostic_code,
    is_misspelt,
    suggest_expression,
    suggest_fix,
    suggest_key,
)
from gavel_rules.language.document.models import (
    LANGUAGE_VERSIONS,
    RULES_PER_ACTION_MAX,
    ActionPart,
    CalendarPart,
    CompensationPart,
    CounterPart,
    DerivationPart,
    FactPart,
    OnPart,
    Part,
    RejectionLimitsPart,
    RetryPart,
    ReviewPart,
    RulePart,
    RuleSetPart,
    VersionsPart,
    matches_action,
    zones_of,
)
from gavel_rules.language.document.source import Source
from gavel_rules.reason_codes import RESERVED_CODES
from gavel_rules.text import NAME_LENGTH_MAX, clip, suggestion


def read_document(source: Source, messages: Messages) -> RuleSetPart | None:
    """Return the document's models and record every mistake of form; None if it is no rule set in a known version of the language.

    After a mistake the models hold only the sound parts, and attributes may be missing. That is enough to find further mistakes.
    """
    if not isinstance(source.data, dict):
        if not len(messages):
            messages.add(source.locate(()), "wrong-type", "the document is not a mapping", "start with `gavel: v1`")
        return None
    if "library" in source.data and "rule_set" not in source.data:
        message = f"the document is a library, with the digest {library_digest(source.data)}"
        messages.add(source.locate_key(("library",)), "missing-key", message, "give a rule set that imports it; it is checked there")
        return None
    if not _is_version_known(source.data, source, messages):
        return None
    if source.data.get("gavel") != "v1":
        _compose(source, messages)
    part = _PartialReader(source, messages).read(RuleSetPart, source.composed, ())
    assert isinstance(part, RuleSetPart)  # noqa: S101  # a mapping always gives one
    if not _check_version(part, source, messages):
        return None
    _check_names(part, source, messages)
    _check_constants(part, source, messages)
    _check_zones(part, source, messages)
    _check_facts(part, source, messages)
    _check_rules(part, source, messages)
    _check_derivations(part, source, messages)
    return part


def _is_version_known(document: dict[str, object], source: Source, messages: Messages) -> bool:
    """Refuse a document in another version of the language: what else it says has no meaning. A missing one is reported with its form."""
    version = document.get("gavel")
    if version is None or version in LANGUAGE_VERSIONS or ("gavel",) in source.broken_paths:
        return True
    versions = " and ".join(LANGUAGE_VERSIONS)
    message = f"gavel: the language has the versions {versions}, not {clip(json.dumps(version, ensure_ascii=False), NAME_LENGTH_MAX)}"
    messages.add(source.locate(("gavel",)), "unknown-value", message, f"write `gavel: {LANGUAGE_VERSIONS[-1]}`")
    return False


def _compose(source: Source, messages: Messages) -> None:
    """Write out what the document imports, and what its actions share."""
    assert isinstance(source.data, dict)  # noqa: S101  # the caller has looked

    def note(path: Path, code: str, message: str, hint: str) -> None:
        messages.add(source.locate_key(path), code, message, hint)

    composition = compose(source.data, note)
    source.compose(composition.data, composition.origins)


class _PartialReader:
    """Reads parts of a document; a part with mistakes keeps its sound attributes."""

    def __init__(self, source: Source, messages: Messages) -> None:
        self._source = source
        self._messages = messages

    def read(self, model: type[Part], data: object, path: Path) -> Part | None:
        try:
            return model.model_validate(data)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        if not isinstance(data, dict):
            if path not in self._source.broken_paths:
                self._messages.add(self._source.locate(path), "wrong-type", f"{_path_text(path)} must be a mapping", "")
            return None
        below = _PARTS_OF.get(model, {})
        bad = set()
        for details in errors:
            place = details["loc"]
            bad.add(place[0])
            if details["type"] == "missing" and len(place) == 1 and is_misspelt(str(place[0]), data, model):
                continue
            # Mistakes inside a nested part are found again when that part is read.
            if place[0] not in below or len(place) == 1 or place[-1] == "[key]":
                _report({**details, "loc": (*path, *place)}, model, self._source, self._messages)
        sound = {name: value for name, value in data.items() if name in model.model_fields and name not in bad and name not in below}
        if model is RuleSetPart:
            sound["variables"] = _sound_variables(data.get("variables"), errors)
        for name, part_model in below.items():
            if name in data:
                sound[name] = self._read_parts(part_model, data[name], (*path, name))
        part = model.model_construct(_fields_set=set(data), **sound)
        for key in bad.difference(below, sound):
            # Not even a default stands in for a value with a mistake.
            part.__dict__.pop(str(key), None)
        return part

    def _read_parts(self, model: type[Part], data: object, path: Path) -> object:
        if model in _SINGLE_PARTS:
            # A value that is not a mapping is reported with the part around it.
            return (self.read(model, data, path) if isinstance(data, dict) else None) or model.model_construct()
        if model in (RulePart, DerivationPart):
            return [self.read(model, item, (*path, index)) for index, item in enumerate(data)] if isinstance(data, list) else []
        if not isinstance(data, dict):
            return {}
        parts = {name: self.read(model, item, (*path, name)) for name, item in data.items()}
        return {name: part if part is not None else model.model_construct() for name, part in parts.items()}


def _sound_variables(data: object, errors: list[ErrorDetails]) -> dict[str, str]:
    """Return the variables without a mistake of form."""
    bad = {details["loc"][1] for details in errors if details["loc"][0] == "variables" and len(details["loc"]) > 1}
    return {name: text for name, text in data.items() if name not in bad and isinstance(text, str)} if isinstance(data, dict) else {}


def _path_text(path: Path) -> str:
    return ".".join(map(str, path)) or "the document"


_PARTS_OF: Final[Mapping[type[Part], Mapping[str, type[Part]]]] = {
    RuleSetPart: {"actions": ActionPart, "counters": CounterPart, "rules": RulePart, "derivations": DerivationPart},
    CounterPart: {"calendar": CalendarPart},
    ActionPart: {
        "facts": FactPart,
        "retry": RetryPart,
        "versions": VersionsPart,
        "rejection_limits": RejectionLimitsPart,
        "compensation": CompensationPart,
        "review": ReviewPart,
    },
    RulePart: {"review": ReviewPart},
    DerivationPart: {"on": OnPart},
}
_SINGLE_PARTS: Final = (CalendarPart, RetryPart, VersionsPart, RejectionLimitsPart, CompensationPart, ReviewPart, OnPart)


def _report(details: ErrorDetails, model: type[Part], source: Source, messages: Messages) -> None:
    path: Path = details["loc"]
    if path in source.broken_paths:
        return
    code = diagnostic_code(details["type"])
    if path and path[-1] == "[key]":
        path = path[:-1]
        name = {"documents": "digest", "counters": "counter"}.get(str(path[0]), "action")
        messages.add(source.locate_key(path), "bad-name", f"{path[-1]!r} is not a valid {name}", _NAMING[name])
    elif code == "missing-key":
        messages.add(source.locate_key(path[:-1]), code, f"the key {path[-1]} is missing", "add it")
    elif code == "unknown-key":
        messages.add(source.locate_key(path), code, f"no such key here: {path[-1]}", suggest_key(str(path[-1]), model, len(messages)))
    elif code == "bad-name":
        name = str(next(step for step in reversed(path) if isinstance(step, str)))
        name = {"actions": "action", "offsets": "offset"}.get(name, name)
        messages.add(source.locate(path), code, f"{details['input']!r} is not a valid {name}", _NAMING[name])
    else:
        hint = suggest_expression(details) or suggest_fix(details)
        messages.add(source.locate(path), code, f"{_path_text(source.written_path(path))}: {describe_error(details)}", hint)


_NAMING: Final = defaultdict(
    lambda: "use 1 to 128 of A-Z a-z 0-9 _ . -",
    reason_code="write it like ORDER_CANCELLED",
    key="use lower-case letters, digits, _ and - in parts joined by dots, like order.status",
    digest="write sha256: and 64 of 0-9 a-f; `gavel rules bundle` names the digest of an imported file",
    action="use lower-case letters, digits, _ and - in parts joined by dots, like refund.create; where several are meant, refund.* or *",
    counter="use a lower-case letter, then at most 62 of a-z 0-9 _",
    time_zone='write UTC, an offset like "+02:00", or zones.NAME of a zone of the document; `gavel rules zones` writes one',
    offset='write the time from which it holds and the offset, like "2026-03-29T01:00:00Z +02:00"',
    groups="use 1 to 128 printable ASCII characters without spaces",
    escalate_to="use 1 to 128 printable ASCII characters without spaces",
    **dict.fromkeys(VersionsPart.model_fields, "use printable ASCII characters"),
)


# Keys of the second version: of the document, of its actions, of its rules, and of its derivations.
_ADDED_KEYS: Final = ("counters", "shared", "constants", "zones", "calendars", "imports", "documents")
_ADDED_ACTION_KEYS: Final = ("use",)
_ADDED_RULE_KEYS: Final = ("actions", "detail")
_ADDED_DERIVATION_KEYS: Final = ("subject",)


def _check_version(part: RuleSetPart, source: Source, messages: Messages) -> bool:
    """Refuse the keys of the second version in documents of the first. Returns whether there are none: what reads them has no meaning."""
    if getattr(part, "gavel", "v2") != "v1":
        return True
    paths: list[Path] = [(key,) for key in _ADDED_KEYS if key in part.model_fields_set]
    for name, action in _actions(part).items():
        paths.extend(("actions", name, key) for key in _ADDED_ACTION_KEYS if key in action.model_fields_set)
    for index, rule in enumerate(getattr(part, "rules", ())):
        if rule is not None:
            paths.extend(("rules", index, key) for key in _ADDED_RULE_KEYS if key in rule.model_fields_set)
    for index, derivation in enumerate(getattr(part, "derivations", ())):
        if derivation is not None:
            paths.extend(("derivations", index, key) for key in _ADDED_DERIVATION_KEYS if key in derivation.model_fields_set)
    for path in paths:
        message = f"no such key here: {path[-1]} needs the language's second version"
        messages.add(source.locate_key(path), "unknown-key", message, "write `gavel: v2`")
    return not paths


def _check_constants(part: RuleSetPart, source: Source, messages: Messages) -> None:
    """Check the names and the values of constants."""
    for name, value in getattr(part, "constants", {}).items():
        path: Path = ("constants", name)
        if not is_spellable(name):
            messages.add(source.locate_key(path), "bad-name", f"the name {name!r} of a constant is not an identifier", _SPELLING)
        elif not constant_literal(value) and source.written_path(path) not in source.broken_paths:
            message = f"constants.{name} is not a number, a text, a boolean or a list of these"
            messages.add(source.locate(path), "wrong-type", message, "write an expression under `variables`")


def _check_names(part: RuleSetPart, source: Source, messages: Messages) -> None:
    if getattr(part, "rule_set", None) == "gavel":
        messages.add(source.locate(("rule_set",)), "reserved-name", "the name gavel is reserved for Gavel", "choose another one")
    for name, action in _actions(part).items():
        for fact in getattr(action, "facts", {}):
            if not is_spellable(fact):
                messages.add(
                    source.locate_key(("actions", name, "facts", fact)),
                    "bad-name",
                    f"the fact name {fact!r} is not an identifier",
                    _SPELLING,
                )
    for name in getattr(part, "variables", {}):
        path: Path = ("variables", name)
        if not is_spellable(name):
            messages.add(source.locate_key(path), "bad-name", f"the variable name {name!r} is not an identifier", _SPELLING)
        elif name in ROOTS or name in TYPE_NAMES or name in PRESENCE_MAPS.values() or name in FUNCTIONS or _is_added_root(part, name):
            messages.add(source.locate_key(path), "shadowed-name", f"{name} already has a meaning", "choose another name for the variable")


def _check_zones(part: RuleSetPart, source: Source, messages: Messages) -> None:
    """Check the names of zones and calendars, and that the times of zones ascend."""
    for key in ("zones", "calendars"):
        for name in getattr(part, key, {}):
            if not is_spellable(name):
                messages.add(source.locate_key((key, name)), "bad-name", f"the name {name!r} is not an identifier", _SPELLING)
    for name, zone in zones_of(part).items():
        if not encode_zone(zone.offsets, zone.until):
            message = f"the times of zones.{name} do not exist, or do not ascend from 1970 on"
            messages.add(source.locate(("zones", name)), "out-of-range", message, "write it with `gavel rules zones`")


def _is_added_root(part: RuleSetPart, name: str) -> bool:
    return name in ADDED_ROOTS and getattr(part, "gavel", "v1") == "v2"


def _check_facts(part: RuleSetPart, source: Source, messages: Messages) -> None:
    """Check that each declared fact has one description of its values, and only the keys that go with it."""
    for name, action in _actions(part).items():
        for fact_name, fact in getattr(action, "facts", {}).items():
            path: Path = ("actions", name, "facts", fact_name)
            written = fact.model_fields_set
            if "value" in written and getattr(part, "gavel", "v2") == "v1":
                message = "no such key here: values with structure need the language's second version"
                messages.add(source.locate_key((*path, "value")), "unknown-key", message, "write `gavel: v2`")
            elif "value" in written and "type" in written:
                message = f"facts.{fact_name} has a `type` and a `value`"
                messages.add(source.locate_key((*path, "type")), "unknown-key", message, "remove `type`: the schema under `value` says it")
            elif not written & {"value", "type"}:
                messages.add(source.locate_key(path), "missing-key", "the key type is missing", "add it")
            _check_subjects(part, fact, path, source, messages)
            if getattr(fact, "max_length", None) and ("value" in written or getattr(fact, "type", "string") not in ("string", None)):
                hint = "write maxLength in its `value`" if "value" in written else "remove it"
                message = (
                    f"facts.{fact_name} is not a string, so it has no max_length"
                    if "value" not in written
                    else (f"facts.{fact_name} has a schema, so it has no max_length")
                )
                messages.add(source.locate_key((*path, "max_length")), "unknown-key", message, hint)


def _check_subjects(part: RuleSetPart, fact: FactPart, path: Path, source: Source, messages: Messages) -> None:
    """Check the keys of a fact of many subjects."""
    written = fact.model_fields_set
    if "subjects" not in written:
        if "max" in written:
            messages.add(source.locate_key((*path, "max")), "unknown-key", "only a fact with `subjects` has a max", "remove it")
        return
    if getattr(part, "gavel", "v2") == "v1":
        message = "no such key here: facts of many subjects need the language's second version"
        messages.add(source.locate_key((*path, "subjects")), "unknown-key", message, "write `gavel: v2`")
    elif "subject" in written:
        messages.add(source.locate_key((*path, "subject")), "unknown-key", "the fact has a `subject` and `subjects`", "remove one of them")
    elif "max" not in written:
        messages.add(source.locate_key(path), "missing-key", "the key max is missing", "say how many subjects there may be")


_SPELLING: Final = "use 1 to 64 letters, digits and _, not a digit first, and not a word of CEL"


def _check_rules(part: RuleSetPart, source: Source, messages: Messages) -> None:
    ids: set[str] = set()
    priorities: dict[str, dict[int, str]] = {name: {} for name in _actions(part)}
    for index, rule in enumerate(getattr(part, "rules", ())):
        if rule is None:
            continue
        path: Path = ("rules", index)
        _check_id(getattr(rule, "id", None), ids, path, source, messages)
        _check_place(rule, priorities, path, source, messages)
        _check_reason_code(rule, path, source, messages)
        _check_review(rule, path, source, messages)
    for name, of_action in priorities.items():
        if len(of_action) > RULES_PER_ACTION_MAX:
            messages.add(
                source.locate_key(("actions", name)),
                "too-many-rules",
                f"{name} has {len(of_action)} rules; the limit is {RULES_PER_ACTION_MAX}",
                "join conditions with || or in",
            )


def _check_derivations(part: RuleSetPart, source: Source, messages: Messages) -> None:
    actions = sorted(_actions(part))
    ids: set[str] = set()
    places: dict[tuple[object, ...], str] = {}
    for index, derivation in enumerate(getattr(part, "derivations", ())):
        if derivation is None:
            continue
        path: Path = ("derivations", index)
        derivation_id = getattr(derivation, "id", None)
        _check_id(derivation_id, ids, path, source, messages, "derivation")
        if derivation_id is not None and derivation_id.startswith(f"{GAVEL}."):
            messages.add(
                source.locate((*path, "id")), "reserved-name", f"ids that begin with {GAVEL}. are reserved for Gavel", "choose another one"
            )
        key = getattr(derivation, "key", None)
        if key is not None and key.startswith(_RESERVED_KEYS):
            message = f"the key {key} is reserved for Gavel, like all keys that begin with {' or '.join(_RESERVED_KEYS)}"
            messages.add(source.locate((*path, "key")), "reserved-name", message, "choose another one")
        on = getattr(derivation, "on", None)
        action, status = getattr(on, "action", None), getattr(on, "status", None)
        if action is not None and action not in actions:
            _report_undeclared(action, (*path, "on", "action"), actions, source, messages)
        if None not in (action, status, key):
            place = (action, status, key, getattr(derivation, "subject", None) or "subject")
            other = places.setdefault(place, derivation_id or f"number {index}")
            if other != (derivation_id or f"number {index}"):
                message = f"derivation {other} already gives {key} for this action and status"
                hint = "a report gives a key of a subject only one value"
                messages.add(source.locate((*path, "key")), "duplicate-derivation", message, hint)


# The keys of facts that Gavel publishes: about itself, and for every execution.
_RESERVED_KEYS: Final = (f"{GAVEL}.", "execution.")


def _report_undeclared(action: str, path: Path, actions: list[str], source: Source, messages: Messages) -> None:
    message = f"the action {action} is not declared under `actions`"
    messages.add(source.locate(path), "undeclared-action", message, suggestion(action, actions, len(messages)))


def _check_id(own_id: str | None, ids: set[str], path: Path, source: Source, messages: Messages, kind: str = "rule") -> None:
    if own_id is None:
        return
    if own_id in ids:
        messages.add(source.locate((*path, "id")), "duplicate-id", f"another {kind} has the id {own_id}", "ids are unique in a rule set")
    ids.add(own_id)


def _check_place(rule: RulePart, priorities: dict[str, dict[int, str]], path: Path, source: Source, messages: Messages) -> None:
    """Check that the actions of a rule exist, and that no other rule of an action has its priority."""
    priority = getattr(rule, "priority", None)
    written = rule.model_fields_set
    if "actions" in written and "action" in written:
        messages.add(source.locate_key((*path, "actions")), "unknown-key", "the rule has an `action` and `actions`", "remove one of them")
        return
    if not written & {"actions", "action"} and not any(is_misspelt(name, written, RulePart) for name in ("actions", "action")):
        messages.add(source.locate_key(path), "missing-key", "the key action is missing", "add it")
    if getattr(rule, "action", None) is not None:
        patterns = [(rule.action or "", (*path, "action"))]
    else:
        patterns = [(pattern, (*path, "actions", index)) for index, pattern in enumerate(getattr(rule, "actions", None) or ())]
    for pattern, place in patterns:
        if not any(matches_action(pattern, action) for action in priorities):
            _report_undeclared(pattern, place, sorted(priorities), source, messages)
    for action, of_action in priorities.items():
        if any(matches_action(pattern, action) for pattern, _ in patterns):
            _check_priority(rule, priority, of_action, path, source, messages)


def _check_priority(
    rule: RulePart, priority: int | None, of_action: dict[int, str], path: Path, source: Source, messages: Messages
) -> None:
    """Check that no rule of an action has the priority of a rule, and remember it."""
    if priority in of_action:
        messages.add(
            source.locate((*path, "priority")),
            "duplicate-priority",
            f"rule {of_action[priority]} has priority {priority} too",
            "priorities are unique among the rules of an action: ties would be undecided",
        )
    elif priority is not None:
        of_action[priority] = getattr(rule, "id", f"number {path[-1]}")


def _check_reason_code(rule: RulePart, path: Path, source: Source, messages: Messages) -> None:
    effect = getattr(rule, "effect", None)
    reason_code = getattr(rule, "reason_code", None)
    has_reason_code = "reason_code" in rule.model_fields_set or is_misspelt("reason_code", rule.model_fields_set, RulePart)
    if effect == "approve" and has_reason_code:
        messages.add(source.locate_key((*path, "reason_code")), "unwanted-reason-code", "an approval has no reason code", "remove it")
    elif effect in ("reject", "review") and not has_reason_code:
        messages.add(
            source.locate(path),
            "missing-reason-code",
            f"a rule with effect {effect} needs a reason_code",
            "agents react to it: add reason_code: WHAT_IS_WRONG",
        )
    elif reason_code in RESERVED_CODES:
        messages.add(
            source.locate((*path, "reason_code")), "reserved-reason-code", f"{reason_code} is reserved for Gavel", "choose another one"
        )


def _check_review(rule: RulePart, path: Path, source: Source, messages: Messages) -> None:
    effect = getattr(rule, "effect", None)
    if effect in ("approve", "reject") and "review" in rule.model_fields_set:
        message = f"a rule with effect {effect} opens no review"
        messages.add(source.locate_key((*path, "review")), "unwanted-review", message, "remove it, or set it on a rule with effect: review")


def _actions(part: RuleSetPart) -> Mapping[str, ActionPart]:
    return getattr(part, "actions", {})
