"""Compiled grants: the form of a grants document by which permissions are checked. The compiler reports every mistake at its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from pydantic import ValidationError

from gavel_rules.identity.models import GrantPart, GrantsPart, ProducePart
from gavel_rules.identity.patterns import matches
from gavel_rules.identity.principal import Principal
from gavel_rules.identity.rights import RIGHTS, Right
from gavel_rules.language.document.canonical_form import compute_digest, to_canonical_json
from gavel_rules.language.document.diagnostics import DocumentError, Messages, Path
from gavel_rules.language.document.model_errors import describe_error, diagnostic_code, suggest_fix
from gavel_rules.language.document.source import Source
from gavel_rules.text import suggestion

GROUP_PREFIX: Final = "group:"
ANYONE: Final = "*"
# Principals whose grants are remembered; the cache is emptied when it is full.
_PRINCIPALS_MAX: Final = 10_000
# A document may give its name as `grants: NAME`, as a rule set does as `rule_set: NAME`; YAML has no room for a second key `grants`.
_NAME_AS_GRANTS: Final = re.compile(r"""^grants:(?=[ \t]+["']?[A-Za-z0-9_.-])""", re.MULTILINE)
_LIST_OF_GRANTS: Final = re.compile(r"^grants:[ \t]*(#.*|\[.*)?$", re.MULTILINE)


class Grant(NamedTuple):
    """One grant of a document. None: any."""

    number: int  # from 1, in the order of the document
    to: tuple[str, ...]
    rights: frozenset[Right]
    buses: tuple[str, ...] | None
    producer_types: frozenset[str] | None
    producer_ids: tuple[str, ...] | None
    actions: tuple[str, ...] | None
    subjects: tuple[str, ...] | None
    facts: tuple[str, ...] | None
    joins: tuple[str, ...]

    def is_for(self, principal: Principal) -> bool:
        """Return whether a principal is among the callers of this grant.

        A principal whose name looks like a group is not a member of the group.
        """
        return names(self.to, principal)


class CompiledGrants:
    """A grants document, ready to check permissions. Equal digests mean equal permissions."""

    def __init__(self, part: GrantsPart, canonical_json: str) -> None:
        self.name: Final = part.name
        self.version: Final = part.version
        self.canonical_json: Final = canonical_json
        self.digest: Final = compute_digest(canonical_json)
        self.grants: Final = tuple(_grant(number, one) for number, one in enumerate(part.grants, 1))
        self._rights: dict[tuple[str, str, tuple[str, ...], str], frozenset[Right]] = {}
        self._of_caller: dict[tuple[str, str, tuple[str, ...]], tuple[Grant, ...]] = {}

    def of(self, principal: Principal) -> tuple[Grant, ...]:
        """Return the grants of a principal."""
        key = (principal.name, principal.method, principal.groups)
        grants = self._of_caller.get(key)
        if grants is None:
            grants = tuple(grant for grant in self.grants if grant.is_for(principal))
            if len(self._of_caller) >= _PRINCIPALS_MAX:
                self._of_caller.clear()
            self._of_caller[key] = grants
        return grants

    def rights_of(self, principal: Principal, bus: str) -> frozenset[Right]:
        """Return the rights of a principal on a bus, whatever else its grants require."""
        key = (principal.name, principal.method, principal.groups, bus)
        rights = self._rights.get(key)
        if rights is None:
            rights = frozenset(right for grant in self.of(principal) if is_any(grant.buses, bus) for right in grant.rights)
            if len(self._rights) >= _PRINCIPALS_MAX:
                self._rights.clear()
            self._rights[key] = rights
        return rights


def names(callers: Sequence[str], principal: Principal) -> bool:
    """Return whether a list of callers, as `to` has it, names a principal."""
    groups = principal.groups
    for one in callers:
        if one.startswith(GROUP_PREFIX):
            if one[len(GROUP_PREFIX) :] in groups:
                return True
        elif one == ANYONE:
            if not principal.is_anonymous:
                return True
        elif one == principal.name:
            return True
    return False


def is_any(patterns: Sequence[str] | None, text: str) -> bool:
    """Return whether one of the patterns matches a text; None matches every text."""
    return patterns is None or any(matches(pattern, text) for pattern in patterns)


def compile_grants(text: str) -> CompiledGrants:
    """Return the compiled grants of a document in YAML or JSON. Raises DocumentError with every mistake."""
    compiled, messages = check_grants(text)
    if compiled is None:
        raise DocumentError(messages.sorted())
    return compiled


def check_grants(text: str) -> tuple[CompiledGrants | None, Messages]:
    """Return the compiled grants of a document, None if it has mistakes, and the mistakes."""
    messages = Messages()
    source = read_source(text, messages)
    part = _read(source, messages)
    if part is None or len(messages):
        return None, messages
    return CompiledGrants(part, to_canonical_json(source.data)), messages


def read_source(text: str, messages: Messages) -> Source:
    """Return a document's data and places. Its name may be written `name: NAME` or `grants: NAME`."""
    named = _NAME_AS_GRANTS.search(text)
    if named is not None and any(other.start() != named.start() for other in _LIST_OF_GRANTS.finditer(text)):
        # Of the same length: every place stays where it is.
        text = f"{text[: named.start()]}name:  {text[named.end() :]}"
    return Source(text, messages)


def _read(source: Source, messages: Messages) -> GrantsPart | None:
    if not isinstance(source.data, dict):
        if not len(messages):
            messages.add(source.locate(()), "wrong-type", "the document is not a mapping", "start with `gavel: v1`")
        return None
    try:
        return GrantsPart.model_validate(source.data)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            path: Path = details["loc"]
            if path in source.broken_paths:
                continue
            code = diagnostic_code(details["type"])
            key = str(path[-1]) if path else ""
            if code == "missing-key":
                messages.add(source.locate_key(path[:-1]), code, f"the key {key} is missing", "add it")
            elif code == "unknown-key":
                hint = suggestion(key, _keys_at(path), len(messages))
                messages.add(source.locate_key(path), code, f"no such key here: {key}", hint)
            elif code == "unknown-value" and len(path) > 1 and path[-2] == "may":
                hint = suggestion(str(details["input"]), sorted(RIGHTS), len(messages))
                messages.add(source.locate(path), "unknown-right", f"there is no right {details['input']!r}", hint)
            else:
                messages.add(source.locate(path), code, f"{'.'.join(map(str, path))}: {describe_error(details)}", suggest_fix(details))
    return None


def _keys_at(path: Path) -> list[str]:
    model = GrantsPart if len(path) == 1 else ProducePart if len(path) > 3 else GrantPart  # ("grants", 0, KEY)
    return sorted(model.model_fields)


def _grant(number: int, part: GrantPart) -> Grant:
    produce = part.produce
    return Grant(
        number,
        tuple(part.to),
        frozenset(part.may),
        _patterns(part.buses),
        None if produce is None or produce.types is None else frozenset(produce.types),
        None if produce is None else _patterns(produce.ids),
        _patterns(part.actions),
        _patterns(part.subjects),
        _patterns(part.facts),
        tuple(part.joins or ()),
    )


def _patterns(patterns: list[str] | None) -> tuple[str, ...] | None:
    return None if patterns is None else tuple(patterns)
