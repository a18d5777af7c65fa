"""Tests of a grants document, beside it: cases that say who must be allowed what, and who must not.

gavel: v1
tests: grants.yaml
cases:
  - {name: agents pay nothing, caller: {name: agents-7, groups: [refund-agents]}, right: execute, action: refund.create, expect: denied}

A case may leave out parts of a call, to say that callers are denied whatever these are. A call that is allowed has all parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, NamedTuple

from gavel.v1.common_pb2 import ProducerType
from pydantic import Field, StringConstraints, ValidationError

from gavel_rules import limits
from gavel_rules.authoring.grants.lint import CALLS_WITH_ACTIONS, CALLS_WITH_SUBJECTS
from gavel_rules.authoring.suites.models import GroupName, SourceName, Subject
from gavel_rules.identity.access import Access, explain_refusal, missing_parts
from gavel_rules.identity.grants import GROUP_PREFIX, CompiledGrants, Grant
from gavel_rules.identity.models import PrincipalName, ProducerTypeName
from gavel_rules.identity.principal import Principal
from gavel_rules.identity.rights import PRODUCING_RIGHTS, Right
from gavel_rules.language.document.diagnostics import DocumentError, Messages, Path
from gavel_rules.language.document.model_errors import describe_error, diagnostic_code, suggest_fix
from gavel_rules.language.document.models import ActionType, FactKey, Part
from gavel_rules.language.document.source import Source
from gavel_rules.text import suggestion

CASES_MAX: Final = 2_000


class CallerCase(Part):
    """The caller of a case."""

    name: PrincipalName
    """Name of the principal."""
    groups: Annotated[list[GroupName], Field(default_factory=list)]
    """Its groups."""
    method: Literal["mtls", "jwt", "token", "unix", "anonymous"] = "token"
    """How it is authenticated."""


class ProducerCase(Part):
    """The producer that the caller names."""

    type: ProducerTypeName
    """Type of the producer."""
    id: SourceName
    """Its id."""


class GrantCase(Part):
    """One case: an access and whether it must be allowed."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """What must hold, in a few words; unique in the suite."""
    caller: CallerCase
    """The caller."""
    right: Right
    """The right that the call needs."""
    bus: Annotated[str, StringConstraints(pattern=f"^{limits.BUS}$")] = "default"
    """The bus."""
    produce: ProducerCase | None = None
    """The producer of the event, if it has one."""
    action: ActionType | None = None
    """The action type of a proposal, execution, review or revocation."""
    subject: Subject | None = None
    """The subject of the event."""
    facts: Annotated[list[FactKey], Field(default_factory=list)]
    """The fact keys of a fact or an observation."""
    expect: Literal["allowed", "denied"]
    """The expected answer."""

    @property
    def principal(self) -> Principal:
        """The caller as a principal."""
        return Principal(self.caller.name, self.caller.method, groups=tuple(self.caller.groups))

    @property
    def access(self) -> Access:
        """The access."""
        producer_type = 0 if self.produce is None else PRODUCER_TYPES.get(self.produce.type, UNKNOWN_TYPE)
        return Access(
            self.right,
            self.bus,
            producer_type,
            "" if self.produce is None else self.produce.id,
            (self.action,) if self.action else (),
            self.subject or "",
            tuple(self.facts),
        )


class GrantSuitePart(Part):
    """Tests of a grants document."""

    gavel: Literal["v1"]
    """Version of the format."""
    tests: Annotated[str, StringConstraints(min_length=1)]
    """The file of the grants, relative to this one."""
    description: str | None = None
    """For people."""
    cases: Annotated[list[GrantCase], Field(min_length=1, max_length=CASES_MAX)]
    """The cases."""


class CaseResult(NamedTuple):
    """The outcome of a case. `failure` says what differs from the expectation; "" if the case passed."""

    case: GrantCase
    line: int
    failure: str


_FORMS: Final = {
    "bus": "write it like default",
    "id": "write it like orders-db",
    "action": "write it like refund.create",
    "subject": "write it like order/123",
    "facts": "write it like order.status",
}
PRODUCER_TYPES: Final = {name.removeprefix("PRODUCER_TYPE_").lower(): number for name, number in ProducerType.items()}
# Of a type that this contract does not have yet.
UNKNOWN_TYPE: Final = -1


class GrantSuite(NamedTuple):
    """A suite with the places of its cases."""

    part: GrantSuitePart
    source: Source

    def run(self, grants: CompiledGrants) -> Iterator[CaseResult]:
        """Yield the result of each case."""
        for index, case in enumerate(self.part.cases):
            line, _ = self.source.locate(("cases", index))
            yield CaseResult(case, line, _failure(case, grants))


def _failure(case: GrantCase, grants: CompiledGrants) -> str:
    """Return what differs from the expectation of a case; "" if nothing does."""
    principal, access = case.principal, case.access
    permitting = explain_permission(grants, principal, access)
    if case.expect == "denied":
        return "expected denied, but it is allowed" if permitting else ""
    if permitting is None:
        return f"expected allowed, but it is denied: {explain_refusal(grants, principal, access)}"
    grant, keys = permitting
    if not keys:
        return ""
    return f"missing-key: grant {grant.number} restricts {' and '.join(keys)}, which the case leaves out; add what a call has there"


def explain_permission(grants: CompiledGrants, principal: Principal, access: Access) -> tuple[Grant, list[str]] | None:
    """Return the first grant that allows an access in full, with no keys; else the one that restricts the fewest keys that are left out.

    A key is "produce", "action" or "subject". Return None if no grant allows the access, whatever these are.
    """
    permitting = [grant for grant in grants.of(principal) if access.right in grant.rights and not missing_parts(grant, access)]
    return min(((grant, _omitted_keys(grant, access)) for grant in permitting), key=lambda one: len(one[1]), default=None)


def _omitted_keys(grant: Grant, access: Access) -> list[str]:
    """Return the keys that an access leaves out although a grant restricts them, and every call of the right has them."""
    right = access.right
    restricts_producer = grant.producer_types is not None or grant.producer_ids is not None
    parts = (
        ("produce", restricts_producer and not access.producer_type, PRODUCING_RIGHTS),
        ("action", grant.actions is not None and not access.actions, CALLS_WITH_ACTIONS),
        ("subject", grant.subjects is not None and not access.subject, CALLS_WITH_SUBJECTS),
    )
    return [key for key, is_omitted, rights in parts if is_omitted and right in rights]


def read_grant_suite(text: str) -> GrantSuite:
    """Return the suite of a document. Raises DocumentError with every mistake."""
    messages = Messages()
    source = Source(text, messages)
    source.refuse_merge_keys(messages)
    part: GrantSuitePart | None = None
    if not len(messages) and not isinstance(source.data, dict):
        messages.add(source.locate(()), "wrong-type", "the suite is not a mapping", "start with `gavel: v1`")
    if not len(messages):
        try:
            part = GrantSuitePart.model_validate(source.data)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                path: Path = details["loc"]
                code = diagnostic_code(details["type"])
                if code == "missing-key":
                    messages.add(source.locate_key(path[:-1]), code, f"the key {path[-1]} is missing", "add it")
                elif code == "unknown-key":
                    hint = suggestion(str(path[-1]), _keys_at(path), len(messages))
                    messages.add(source.locate_key(path), code, f"no such key here: {path[-1]}", hint)
                else:
                    key = next((str(step) for step in reversed(path) if isinstance(step, str)), "")
                    hint = _FORMS.get(key, "") if code == "bad-name" else suggest_fix(details)
                    messages.add(source.locate(path), code, f"{'.'.join(map(str, path))}: {describe_error(details)}", hint)
    for index, case in enumerate(part.cases if part is not None else ()):
        if part is not None and any(other.name == case.name for other in part.cases[:index]):
            messages.add(source.locate(("cases", index)), "duplicate-name", f"another case is named {case.name!r}", "names are unique")
        for number, group in enumerate(case.caller.groups):
            if group.startswith(GROUP_PREFIX):
                place = source.locate(("cases", index, "caller", "groups", number))
                messages.add(
                    place, "bad-name", f"a caller has groups by their names, not {group!r}", "write the group's name without group:"
                )
    if part is None or len(messages):
        raise DocumentError(messages.sorted())
    return GrantSuite(part, source)


def _keys_at(path: Path) -> list[str]:
    """Return the keys that are known beside the one at a path such as ("cases", 0, "caller", KEY)."""
    models: dict[int, type[Part]] = {1: GrantSuitePart, 3: GrantCase}
    model = models.get(len(path)) or (CallerCase if path[-2] == "caller" else ProducerCase)
    return sorted(model.model_fields)
