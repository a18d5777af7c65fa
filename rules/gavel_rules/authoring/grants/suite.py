"""Tests of a grants document, beside it: cases that say who must be allowed what, and who must not.

gavel: v1
tests: grants.yaml
cases:
  - {name: agents refund, caller: {name: agents-7, groups: [refund-agents]}, right: propose, action: refund.create, expect: allowed}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, NamedTuple

from gavel.v1.common_pb2 import ProducerType
from pydantic import Field, StringConstraints, ValidationError

from gavel_rules.identity.access import Access, explain_refusal, permits
from gavel_rules.identity.grants import CompiledGrants
from gavel_rules.identity.models import ProducerTypeName
from gavel_rules.identity.principal import Principal
from gavel_rules.identity.rights import Right
from gavel_rules.language.document.diagnostics import DocumentError, Messages, Path
from gavel_rules.language.document.model_errors import describe_error, diagnostic_code, suggest_fix
from gavel_rules.language.document.models import Part
from gavel_rules.language.document.source import Source
from gavel_rules.text import suggestion

CASES_MAX: Final = 2_000


class CallerCase(Part):
    """The caller of a case."""

    name: Annotated[str, StringConstraints(min_length=1)]
    """Name of the principal."""
    groups: Annotated[list[str], Field(default_factory=list)]
    """Its groups."""
    method: Literal["mtls", "jwt", "token", "unix", "anonymous"] = "token"
    """How it is authenticated."""


class ProducerCase(Part):
    """The producer that the caller names."""

    type: ProducerTypeName
    """Type of the producer."""
    id: Annotated[str, StringConstraints(min_length=1)]
    """Its id."""


class GrantCase(Part):
    """One case: an access and whether it must be allowed."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """What must hold, in a few words; unique in the suite."""
    caller: CallerCase
    """The caller."""
    right: Right
    """The right that the call needs."""
    bus: str = "default"
    """The bus."""
    produce: ProducerCase | None = None
    """The producer of the event, if it has one."""
    action: str = ""
    """The action type of a proposal, execution, review or revocation."""
    subject: str = ""
    """The subject of the event."""
    facts: Annotated[list[str], Field(default_factory=list)]
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
            self.subject,
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
    """The outcome of a case. `explanation` says why an access was denied."""

    case: GrantCase
    line: int
    is_allowed: bool
    explanation: str

    @property
    def passed(self) -> bool:
        """Whether the answer is the expected one."""
        return self.is_allowed == (self.case.expect == "allowed")


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
            is_allowed = permits(grants, case.principal, case.access)
            explanation = "" if is_allowed else explain_refusal(grants, case.principal, case.access)
            yield CaseResult(case, line, is_allowed, explanation)


def read_grant_suite(text: str) -> GrantSuite:
    """Return the suite of a document. Raises DocumentError with every mistake."""
    messages = Messages()
    source = Source(text, messages)
    part: GrantSuitePart | None = None
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
                    hint = suggestion(str(path[-1]), sorted(GrantCase.model_fields), len(messages))
                    messages.add(source.locate_key(path), code, f"no such key here: {path[-1]}", hint)
                else:
                    place = ".".join(map(str, path)) or "the document"
                    messages.add(source.locate(path), code, f"{place}: {describe_error(details)}", suggest_fix(details))
    for index, case in enumerate(part.cases if part is not None else ()):
        if part is not None and any(other.name == case.name for other in part.cases[:index]):
            messages.add(source.locate(("cases", index)), "duplicate-name", f"another case is named {case.name!r}", "names are unique")
    if part is None or len(messages):
        raise DocumentError(messages.sorted())
    return GrantSuite(part, source)
