"""A rule set document: its identity, its parts, and every mistake of form in it at once (seeds 002 §6.2).

This module reads the document into the models of `parts` and knows how rules refer to actions. What expressions mean is left to
`checking`. What this build cannot obey is checked all the same, and refused by name rather than obeyed by half.

A document's digest is SHA-256 over its canonical JSON (RFC 8785): layout, comments and the order of keys do not matter.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import rfc8785
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gavel_rules.errors import GavelRulesError
from gavel_rules.events import GAVEL
from gavel_rules.language.cel_library import FUNCTIONS
from gavel_rules.language.parts import (
    RULES_PER_ACTION_MAX,
    ActionPart,
    CompensationPart,
    DerivationPart,
    FactPart,
    OnPart,
    Part,
    RejectionLimitsPart,
    RetryPart,
    RulePart,
    RuleSetPart,
    VersionsPart,
)
from gavel_rules.language.source import DocumentMessage, Messages, Path, Source
from gavel_rules.language.suggestions import suggestion
from gavel_rules.language.vocabulary import PRESENCE_MAPS, ROOTS, TYPE_NAMES, spellable
from gavel_rules.reasons import RESERVED


class DocumentError(GavelRulesError):
    """A rule set document is invalid. `messages` names every mistake, by place."""

    def __init__(self, messages: tuple[DocumentMessage, ...]) -> None:
        super().__init__("\n".join(message.format("<document>") for message in messages))
        self.messages = messages


def canonical_json(data: object) -> str:
    """Return data as canonical JSON (RFC 8785)."""
    return rfc8785.dumps(data).decode()  # type: ignore[arg-type]  # source.py lets only JSON through


def digest_of(canonical: str) -> str:
    """Return "sha256:" and 64 hex digits."""
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def read_document(source: Source, messages: Messages) -> RuleSetPart | None:
    """Return the document's parts, with every mistake of form recorded; None where there is nothing to go on with.

    With mistakes, the parts hold what could be read, and attributes may be missing: enough to look for more mistakes.
    """
    if not isinstance(source.data, dict):
        if not len(messages):
            messages.add(source.place(()), "wrong-type", "a rule set document is a mapping", "start with `gavel: v1`")
        return None
    part = _Salvage(source, messages).read(RuleSetPart, source.data, ())
    assert isinstance(part, RuleSetPart)  # noqa: S101  # a mapping always gives one
    _check_names(part, source, messages)
    _check_rules(part, source, messages)
    _check_derivations(part, source, messages)
    return part


class _Salvage:
    """Reads parts of a document; of a part with mistakes it keeps what is sound."""

    def __init__(self, source: Source, messages: Messages) -> None:
        self._source = source
        self._messages = messages

    def read(self, model: type[Part], data: object, path: Path) -> Part | None:
        try:
            return model.model_validate(data)
        except ValidationError as error:
            found = error.errors(include_url=False)
        if not isinstance(data, dict):
            if path not in self._source.broken:
                self._messages.add(self._source.place(path), "wrong-type", f"{_named(path)} must be a mapping", "")
            return None
        below = _PARTS_OF.get(model, {})
        bad = set()
        for details in found:
            place = details["loc"]
            bad.add(place[0])
            # What is wrong inside of a part is found again when that part is read.
            if place[0] not in below or len(place) == 1 or place[-1] == "[key]":
                _report({**details, "loc": (*path, *place)}, model, self._source, self._messages)
        sound = {name: value for name, value in data.items() if name in model.model_fields and name not in bad and name not in below}
        if model is RuleSetPart:
            sound["variables"] = _sound_variables(data.get("variables"), found)
        for name, part_model in below.items():
            if name in data:
                sound[name] = self._read_parts(part_model, data[name], (*path, name))
        return model.model_construct(_fields_set=set(data), **sound)

    def _read_parts(self, model: type[Part], data: object, path: Path) -> object:
        if model in _SINGLE_PARTS:
            # What is no mapping has been reported with the part around it.
            return (self.read(model, data, path) if isinstance(data, dict) else None) or model.model_construct()
        if model in (RulePart, DerivationPart):
            return [self.read(model, item, (*path, index)) for index, item in enumerate(data)] if isinstance(data, list) else []
        if not isinstance(data, dict):
            return {}
        parts = {name: self.read(model, item, (*path, name)) for name, item in data.items()}
        return {name: part if part is not None else model.model_construct() for name, part in parts.items()}


def _sound_variables(data: object, found: list[ErrorDetails]) -> dict[str, str]:
    """Return the variables in which no mistake of form was found."""
    bad = {details["loc"][1] for details in found if details["loc"][0] == "variables" and len(details["loc"]) > 1}
    return {name: text for name, text in data.items() if name not in bad and isinstance(text, str)} if isinstance(data, dict) else {}


def _named(path: Path) -> str:
    return ".".join(map(str, path)) or "the document"


# What pydantic calls a mistake -> our code. Anything else is a wrong type.
_CODES: Final[Mapping[str, str]] = {
    "missing": "missing-key",
    "extra_forbidden": "unknown-key",
    "literal_error": "unknown-value",
    "string_pattern_mismatch": "bad-name",
    "string_too_short": "out-of-range",
    "string_too_long": "out-of-range",
    "too_short": "out-of-range",
    "too_long": "out-of-range",
    "greater_than": "out-of-range",
    "greater_than_equal": "out-of-range",
    "less_than": "out-of-range",
    "less_than_equal": "out-of-range",
}
_PARTS_OF: Final[Mapping[type[Part], Mapping[str, type[Part]]]] = {
    RuleSetPart: {"actions": ActionPart, "rules": RulePart, "derivations": DerivationPart},
    ActionPart: {
        "facts": FactPart,
        "retry": RetryPart,
        "versions": VersionsPart,
        "rejection_limits": RejectionLimitsPart,
        "compensation": CompensationPart,
    },
    DerivationPart: {"on": OnPart},
}
_SINGLE_PARTS: Final = (RetryPart, VersionsPart, RejectionLimitsPart, CompensationPart, OnPart)


def code_of_mistake(kind: str) -> str:
    """Return our code for a mistake of form, by what pydantic calls it."""
    return _CODES.get(kind, "wrong-type")


def said(details: ErrorDetails) -> str:
    """Return what pydantic says of a value, in the words of documents."""
    if details["type"] in ("model_type", "dict_type"):
        return "input should be a mapping"
    return _lower(details["msg"])


def advice(details: ErrorDetails) -> str:
    """Return what to do about a value of another type than the key takes; "" where the message says it."""
    if details["input"] is None:
        return "nothing stands here: write a value, or remove the key"
    if details["type"] == "list_type" and details["loc"][-1] in VersionsPart.model_fields:
        return "quote it"
    if details["type"].startswith("int_") and str(details["loc"][-1]).endswith("_ms"):
        return "write milliseconds, e.g. 60000"
    return _ADVICE.get(details["type"], "")


_ADVICE: Final[Mapping[str, str]] = {
    "string_type": "quote it",
    "list_type": "write a list, e.g. [one, two]",
    "bool_type": "write true or false",
    "model_type": "write its keys, e.g. {key: value}",
    "dict_type": "write its keys, e.g. {key: value}",
}


def _report(details: ErrorDetails, model: type[Part], source: Source, messages: Messages) -> None:
    path: Path = details["loc"]
    if path in source.broken:
        return
    code = code_of_mistake(details["type"])
    if path and path[-1] == "[key]":
        path = path[:-1]
        place = source.key_place(path)
        messages.add(place, "bad-name", f"{path[-1]!r} is not an action", _NAMING["action"])
    elif code == "missing-key":
        messages.add(source.key_place(path[:-1]), code, f"the key {path[-1]} is missing", "add it")
    elif code == "unknown-key":
        known = sorted(model.model_fields)
        messages.add(source.key_place(path), code, f"no such key here: {path[-1]}", suggestion(str(path[-1]), known, len(messages)))
    elif code == "bad-name":
        name = str(next(step for step in reversed(path) if isinstance(step, str)))
        messages.add(source.place(path), code, f"{details['input']!r} is not a valid {name}", _NAMING[name])
    else:
        messages.add(source.place(path), code, f"{_named(path)}: {said(details)}", advice(details))


_NAMING: Final = defaultdict(
    lambda: "use 1 to 128 of A-Z a-z 0-9 _ . -",
    reason_code="write it like ORDER_CANCELLED",
    key="use lower-case letters, digits, _ and - in parts joined by dots, like order.status",
    action="use lower-case letters, digits, _ and - in parts joined by dots, like refund.create",
    **dict.fromkeys(VersionsPart.model_fields, "use printable ASCII characters"),
)


def _lower(text: str) -> str:
    return re.sub(r"^[A-Z](?![A-Z])", lambda first: first.group().lower(), text)


def _check_names(part: RuleSetPart, source: Source, messages: Messages) -> None:
    if getattr(part, "rule_set", None) == "gavel":
        messages.add(source.place(("rule_set",)), "reserved-name", "the name gavel is Gavel's own", "choose another one")
    for name, action in _actions(part).items():
        for fact in getattr(action, "facts", {}):
            if not spellable(fact):
                messages.add(
                    source.key_place(("actions", name, "facts", fact)),
                    "bad-name",
                    f"conditions cannot spell a fact named {fact!r}",
                    _SPELLING,
                )
    for name in getattr(part, "variables", {}):
        path: Path = ("variables", name)
        if not spellable(name):
            messages.add(source.key_place(path), "bad-name", f"conditions cannot spell a variable named {name!r}", _SPELLING)
        elif name in ROOTS or name in TYPE_NAMES or name in PRESENCE_MAPS.values() or name in FUNCTIONS:
            messages.add(source.key_place(path), "shadowed-name", f"{name} already has a meaning", "name the variable otherwise")


_SPELLING: Final = "use 1 to 64 letters, digits and _, not starting with a digit, and no word of CEL itself"


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
    for name, of_action in priorities.items():
        if len(of_action) > RULES_PER_ACTION_MAX:
            messages.add(
                source.key_place(("actions", name)),
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
                source.place((*path, "id")), "reserved-name", f"ids that begin with {GAVEL}. are Gavel's own", "choose another one"
            )
        key = getattr(derivation, "key", None)
        if key is not None and key.startswith(_RESERVED_KEYS):
            message = f"the key {key} is Gavel's own, like all that begin with {' or '.join(_RESERVED_KEYS)}"
            messages.add(source.place((*path, "key")), "reserved-name", message, "choose another one")
        on = getattr(derivation, "on", None)
        action, status = getattr(on, "action", None), getattr(on, "status", None)
        if action is not None and action not in actions:
            _report_undeclared(action, (*path, "on", "action"), actions, source, messages)
        if None not in (action, status, key):
            other = places.setdefault((action, status, key), derivation_id or f"number {index}")
            if other != (derivation_id or f"number {index}"):
                message = f"derivation {other} gives {key} for this action and status too"
                messages.add(source.place((*path, "key")), "duplicate-derivation", message, "one report gives a key one value")


# Keys of facts that Gavel publishes itself: about itself, and for every execution.
_RESERVED_KEYS: Final = (f"{GAVEL}.", "execution.")


def _report_undeclared(action: str, path: Path, actions: list[str], source: Source, messages: Messages) -> None:
    message = f"the action {action} is not declared under `actions`"
    messages.add(source.place(path), "undeclared-action", message, suggestion(action, actions, len(messages)))


def _check_id(own_id: str | None, ids: set[str], path: Path, source: Source, messages: Messages, kind: str = "rule") -> None:
    if own_id is None:
        return
    if own_id in ids:
        messages.add(source.place((*path, "id")), "duplicate-id", f"another {kind} has the id {own_id}", "ids are unique in a rule set")
    ids.add(own_id)


def _check_place(rule: RulePart, priorities: dict[str, dict[int, str]], path: Path, source: Source, messages: Messages) -> None:
    """Check which action a rule belongs to, and its rank there."""
    action = getattr(rule, "action", None)
    priority = getattr(rule, "priority", None)
    if action is None:
        return
    of_action = priorities.get(action)
    if of_action is None:
        _report_undeclared(action, (*path, "action"), sorted(priorities), source, messages)
    elif priority in of_action:
        messages.add(
            source.place((*path, "priority")),
            "duplicate-priority",
            f"rule {of_action[priority]} has priority {priority} too",
            "priorities are unique among the rules of an action: ties would be undecided",
        )
    elif priority is not None:
        of_action[priority] = getattr(rule, "id", f"number {path[-1]}")


def _check_reason_code(rule: RulePart, path: Path, source: Source, messages: Messages) -> None:
    effect = getattr(rule, "effect", None)
    reason_code = getattr(rule, "reason_code", None)
    given = "reason_code" in rule.model_fields_set
    if effect == "approve" and given:
        messages.add(source.key_place((*path, "reason_code")), "unwanted-reason-code", "an approval has no reason code", "remove it")
    elif effect in ("reject", "review") and not given:
        messages.add(
            source.place(path),
            "missing-reason-code",
            f"a rule with effect {effect} needs a reason_code",
            "agents react to it: add reason_code: WHAT_IS_WRONG",
        )
    elif reason_code in RESERVED:
        messages.add(source.place((*path, "reason_code")), "reserved-reason-code", f"{reason_code} is Gavel's own", "choose another one")


def _actions(part: RuleSetPart) -> Mapping[str, ActionPart]:
    return getattr(part, "actions", {})
