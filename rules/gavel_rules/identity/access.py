"""Permission: whether grants let a principal record an event.

`permits` is pure and total. Intake and replay call it with the same `Access` of the same event: either a recorded event was allowed where
it stands, or the log has been changed. One grant alone must allow an access: what two grants allow in part does not add up.
"""

from __future__ import annotations

from typing import Final

from gavel.v1 import common_pb2
from gavel.v1.common_pb2 import Producer, ProducerType
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.events.kinds import fact_keys
from gavel_rules.identity.grants import CompiledGrants, Grant, is_any, names
from gavel_rules.identity.principal import Principal
from gavel_rules.identity.rights import Right

# The right to record a payload that a producer sends.
_RIGHT_OF_PAYLOAD: Final[dict[str, Right]] = {
    "proposal": "propose",
    "execution": "execute",
    "fact": "publish",
    "observation": "publish",
    "tool_call": "publish",
    "tool_result": "publish",
    "agent_diagnostic": "publish",
}
_TYPE_NAMES: Final[dict[int, str]] = {
    number: name.removeprefix("PRODUCER_TYPE_").lower() for name, number in ProducerType.items() if number
}
# Limits of the text of a refusal.
_NEAREST_GRANTS: Final = 3
_PARTS_SHOWN: Final = 8
_NOBODY: Final = common_pb2.PRODUCER_TYPE_UNSPECIFIED


class Access:
    """The parts of an event that grants may restrict.

    A field is empty if the event has no such part; grants then do not restrict that part.
    """

    def __init__(
        self,
        right: Right,
        bus: str,
        producer_type: int = _NOBODY,
        producer_id: str = "",
        actions: tuple[str, ...] = (),
        subject: str = "",
        facts: tuple[str, ...] = (),
    ) -> None:
        # A plain class: docs/performance.md#plain-classes.
        self.right: Final = right
        self.bus: Final = bus
        self.producer_type: Final = producer_type
        self.producer_id: Final = producer_id
        self.actions: Final = actions
        self.subject: Final = subject
        self.facts: Final = facts

    def without_matter(self) -> Access:
        """Return the access without action and subject."""
        return Access(self.right, self.bus, self.producer_type, self.producer_id, facts=self.facts)


def access_of(envelope: Envelope, bus: str, action_type: str = "", subject: str = "") -> Access:
    """Return the access of an event that a producer sends. An execution's action and subject are those of its decision."""
    payload = str(envelope.WhichOneof("payload"))
    producer = envelope.producer
    action_type = envelope.proposal.action_type if payload == "proposal" else action_type
    return Access(
        _RIGHT_OF_PAYLOAD.get(payload, "operate"),
        bus,
        producer.type,
        producer.id,
        (action_type,) if action_type else (),
        subject or envelope.subject,
        fact_keys(envelope),
    )


def execution_access(producer: Producer, bus: str, action_type: str, subject: str) -> Access:
    """Return the access of a call that begins, renews or reports an attempt."""
    return Access("execute", bus, producer.type, producer.id, (action_type,) if action_type else (), subject)


def permits(grants: CompiledGrants, principal: Principal, access: Access) -> bool:
    """Return whether one of the grants lets the principal do this."""
    return permitting_grant(grants, principal, access) is not None


def permitting_grant(grants: CompiledGrants, principal: Principal, access: Access) -> Grant | None:
    """Return the first grant that lets the principal do this."""
    for grant in grants.of(principal):
        if access.right in grant.rights and not missing_parts(grant, access):
            return grant
    return None


def may_join(grants: CompiledGrants, principal: Principal, owner: Principal) -> bool:
    """Return whether a grant lets the principal name a cause in a trace of `owner`, and so take part in that trace."""
    return any(names(grant.joins, owner) for grant in grants.of(principal))


def explain_refusal(grants: CompiledGrants, principal: Principal, access: Access, *, hides_matter: bool = False) -> str:
    """Return why no grant allows an access, for people: the grants that come closest, and all that each of them lacks.

    `hides_matter` leaves action and subject out: they come from a decision that the caller has no right to read.
    """
    what = f"{grants.name} version {grants.version}"
    who = f"{principal.name!r}" + (" (a caller that is not authenticated)" if principal.is_anonymous else "")
    own = grants.of(principal)
    if not own:
        return f"no grant of {what} is for {who}, so it may not {access.right} on bus {access.bus}"
    with_right = [grant for grant in own if access.right in grant.rights]
    if not with_right:
        rights = ", ".join(sorted(right for right in grants.rights_of(principal, access.bus))) or "nothing"
        return f"no grant of {what} gives {who} the right {access.right} on bus {access.bus}; it may: {rights}"
    visible = access.without_matter() if hides_matter else access
    lacks = sorted(((missing_parts(grant, visible), grant.number) for grant in with_right), key=lambda one: (len(one[0]), one[1]))
    nearest = [f"grant {number} lacks {_join(parts) or 'what this decision is about'}" for parts, number in lacks[:_NEAREST_GRANTS]]
    if len(lacks) > _NEAREST_GRANTS:
        nearest.append(f"{len(lacks) - _NEAREST_GRANTS} more lack as much or more")
    return f"the grants {what} give {who} the right {access.right}, but not for this call: {'; '.join(nearest)}"


def missing_parts(grant: Grant, access: Access) -> list[str]:
    """Return the parts of an access that a grant with its right does not allow."""
    missing: list[str] = []
    if not is_any(grant.buses, access.bus):
        missing.append(f"bus {access.bus}")
    if access.producer_type:
        type_name = _TYPE_NAMES.get(access.producer_type, "unknown")
        if grant.producer_types is not None and type_name not in grant.producer_types:
            missing.append(f"producers of type {type_name}")
        if not is_any(grant.producer_ids, access.producer_id):
            missing.append(f"producer id {access.producer_id}")
    missing += [f"action {action_type}" for action_type in access.actions if not is_any(grant.actions, action_type)]
    if access.subject and not is_any(grant.subjects, access.subject):
        missing.append(f"subject {access.subject}")
    missing += [f"fact {key}" for key in access.facts if not is_any(grant.facts, key)]
    return missing


def _join(parts: list[str]) -> str:
    shown = parts[:_PARTS_SHOWN]
    if len(parts) > len(shown):
        shown.append(f"{len(parts) - len(shown)} more")
    return ", ".join(shown)
