"""`permits` at intake and in replay: for any grants, callers and events both come to the same answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from gavel.v1 import common_pb2, error_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact
from gavel.v1.tool_pb2 import ToolCall
from gavel_rules.authorization import access_of_command, preflight_fault
from gavel_rules.commands import ActivateRuleSet, Command, DeployGrants, DeployRuleSet, Fault, PublishEvent, References, SubmitProposal
from gavel_rules.decider import handle
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.identity.access import Access, explain_refusal, permits
from gavel_rules.identity.grants import compile_grants
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.identity.rights import RIGHTS
from gavel_rules.replay import DivergedError
from gavel_rules.values import python_to_value
from gavel_server.log import Record
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.driver import BUS, SUBJECT, Core, compile_cached, document, fact_envelope, proposal_envelope, replay_log
from tests.support.entries import rechain

ADMIN = Principal("ada", "token")
# The callers of the property, and the names by which grants know them.
NAMES = ("ann", "bob", "anonymous", "group:agents", "group:people", "*")
PRINCIPALS = (
    ANONYMOUS,
    Principal("ann", "token"),
    Principal("ann", "jwt", "https://issuer", ("agents",), ("bob",), "jti-1"),
    Principal("bob", "mtls", groups=("people", "agents")),
    Principal("eve", "unix"),
)
PATTERNS = {
    "buses": (BUS, "other", "*"),
    "actions": ("refund.*", "refund.create", "other.*"),
    "subjects": ("order/*", SUBJECT, "parcel/*"),
    "facts": ("order.*", "order.status", "other.*"),
}
TYPES = ("agent", "database_snapshot", "sensor", "tool_runtime")
EVERYTHING = {"gavel": "v1", "name": "all", "version": 1, "grants": [{"to": ["*", "anonymous"], "may": [*RIGHTS]}]}


def some(values: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    """Return lists of some of these values."""
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True)


GRANT = st.fixed_dictionaries(
    {"to": some(NAMES), "may": st.lists(st.sampled_from(RIGHTS), min_size=1, max_size=8, unique=True)},
    optional={
        **{key: some(values) for key, values in PATTERNS.items()},
        "produce": st.fixed_dictionaries({}, optional={"types": some(TYPES), "ids": some(("agent-*", "orders", "*-1"))}),
    },
)
GRANTS = st.builds(
    lambda grants: {"gavel": "v1", "name": "random", "version": 1, "grants": grants},
    st.lists(GRANT, max_size=4),
)
AGENTS = st.builds(lambda id_: Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id=id_), st.sampled_from(["agent-1", "other"]))
SOURCES = st.builds(
    lambda type_, id_: Producer(type=type_, id=id_),
    st.sampled_from([common_pb2.PRODUCER_TYPE_DATABASE_SNAPSHOT, common_pb2.PRODUCER_TYPE_SENSOR]),
    st.sampled_from(["orders", "sensor-1"]),
)
SUBJECTS = st.sampled_from([SUBJECT, "parcel/1"])
EVENTS = st.one_of(
    st.builds(
        lambda producer, subject, action: proposal_envelope(producer=producer, subject=subject, action_type=action),
        AGENTS,
        SUBJECTS,
        st.sampled_from(["refund.create", "other.do"]),
    ),
    st.builds(
        lambda producer, subject, key: Envelope(subject=subject, producer=producer, fact=Fact(key=key, value=python_to_value("x"))),
        SOURCES,
        SUBJECTS,
        st.sampled_from(["order.status", "other.key"]),
    ),
    st.builds(
        lambda producer: Envelope(
            subject=SUBJECT, trace_id="trace-1", producer=producer, tool_call=ToolCall(tool_name="t", execution_id="exec_0123456789ab")
        ),
        AGENTS,
    ),
    st.builds(
        lambda producer: Envelope(subject=SUBJECT, trace_id="trace-1", producer=producer, agent_diagnostic=AgentDiagnostic(kind="Note")),
        AGENTS,
    ),
)


def rule_set(core: Core) -> Command:
    """Return the deployment of a rule set."""
    text = document()
    return DeployRuleSet(core.new_id(), compile_cached(text), text)


def other_grants(core: Core) -> Command:
    """Return the deployment of further grants."""
    text = json.dumps({**EVERYTHING, "version": 2})
    return DeployGrants(core.new_id(), compile_grants(text), text, "")


def sent(envelope: Envelope) -> Callable[[Core], Command]:
    """Return what makes the command of an event."""

    def command(core: Core) -> Command:
        copy = Envelope()
        copy.CopyFrom(envelope)
        admitted = core.admit(copy)
        if admitted.HasField("proposal"):
            return SubmitProposal(ProposalView(admitted))
        return PublishEvent(admitted)

    return command


COMMANDS = st.one_of(EVENTS.map(sent), st.just(rule_set), st.just(other_grants))


def granted(grants: dict[str, Any]) -> Core:
    """Return a bus with grants in force that an authenticated caller has deployed."""
    core = Core()
    text = json.dumps(grants)
    core.run(DeployGrants(core.new_id(), compile_grants(text), text, ""), principal=ADMIN)
    return core


def test_an_undone_event_names_no_grants_that_were_undone_with_it() -> None:
    """An event that was decided under grants of its batch, undone with them, and is decided again without them, has no attestation."""
    core = Core()
    text = json.dumps(EVERYTHING)
    mark = core.state.mark()
    fact = PublishEvent(core.admit(fact_envelope("order.status", "delivered")))
    for command in (DeployGrants(core.new_id(), compile_grants(text), text, ""), fact):
        handle(core.state, command, References(), core.now_ms, principal=ANONYMOUS)
    assert fact.envelope.attestation.grants_digest
    core.state.undo(mark)
    core.run(fact)
    assert not core.events[-1].HasField("attestation")
    core.prove()


def refused_at(records: Sequence[Record]) -> int:
    """Return the number of the event at which a log diverges, 0 if it replays."""
    try:
        replay_log(BUS, records)
    except DivergedError as error:
        return error.divergence.sequence_number
    return 0


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(grants=GRANTS, principal=st.sampled_from(PRINCIPALS), make=COMMANDS)
def test_intake_and_replay_agree(grants: dict[str, Any], principal: Principal, make: Callable[[Core], Command]) -> None:
    """Intake records an event if and only if `permits` allows it, and replay accepts it in a log if and only if intake records it."""
    intake, forger = granted(grants), granted(EVERYTHING)
    before = len(intake.events)
    command = make(intake)
    in_force = intake.state.grants_in_force
    assert in_force is not None
    access = access_of_command(intake.state, command)
    allowed = access is not None and permits(in_force.grants, principal, access)
    answer = intake.run(command, principal=principal)
    assert allowed == (not isinstance(answer, Fault)) == (len(intake.events) > before)
    if isinstance(answer, Fault):
        assert error_pb2.ERROR_REASON_RIGHT_LACKING == answer.reason
    # The same event in a log that somebody has forged: recorded where everything is allowed, under the grants in question.
    assert not isinstance(forger.run(make(forger), principal=principal), Fault)
    forged = forger.events[before:]
    for event in forged:
        if event.HasField("attestation"):
            event.attestation.grants_digest = in_force.deployed.digest
    records = rechain(BUS, [*intake.events[:before], *forged])
    place = refused_at(records)
    assert (0 if allowed else before + 1) == place


@settings(max_examples=50, deadline=None)
@given(grants=GRANTS, principal=st.sampled_from(PRINCIPALS), envelope=EVENTS.filter(lambda envelope: envelope.HasField("proposal")))
def test_dry_runs_need_what_proposals_need(grants: dict[str, Any], principal: Principal, envelope: Envelope) -> None:
    """With the rights to propose and to try in the same grants, a dry run is refused exactly where the proposal is, for the same lack."""
    for grant in grants["grants"]:
        others = [right for right in grant["may"] if right not in ("propose", "preflight")]
        grant["may"] = [*others, "propose", "preflight"] if "propose" in grant["may"] else others or ["read"]
    core = granted(grants)
    command = sent(envelope)(core)
    assert isinstance(command, SubmitProposal)
    fault = preflight_fault(core.state, command.proposal, principal)
    answer = core.run(command, principal=principal)
    assert isinstance(answer, Fault) == (fault is not None)
    if fault is not None and isinstance(answer, Fault):
        assert answer.reason == fault.reason
        assert answer.message.replace("propose", "preflight") == fault.message.replace("propose", "preflight")


def test_an_activation_needs_the_actions_that_it_leaves_without_rules() -> None:
    """A caller with the right to activate one action cannot replace a rule set that governs another one by a version without it."""
    own = {"to": ["ann"], "may": ["deploy", "activate"], "actions": ["note.add"]}
    core = granted({**EVERYTHING, "grants": [own, {"to": ["ada"], "may": [*RIGHTS]}]})
    ann = Principal("ann", "token")
    for version, text, principal in ((1, document(), ADMIN), (2, document(version=2, action_type="note.add"), ann)):
        assert not isinstance(core.run(DeployRuleSet(core.new_id(), compile_cached(text), text), principal=principal), Fault)
        for shadow in (True, False):
            answer = core.run(ActivateRuleSet(core.new_id(), "refunds", version, None, shadow), principal=principal)
            if principal is ADMIN or shadow:
                assert not isinstance(answer, Fault)
            else:
                assert isinstance(answer, Fault)
                assert "lacks action refund.create" in answer.message
    core.prove()


def test_a_refusal_says_what_anonymous_means() -> None:
    """The explanation of a refusal names 'anonymous', as grants do, and says what that means."""
    text = json.dumps({"gavel": "v1", "name": "main", "version": 1, "grants": [{"to": ["ann"], "may": ["read"]}]})
    explanation = explain_refusal(compile_grants(text), ANONYMOUS, Access("read", BUS))
    expected = "no grant of main version 1 is for 'anonymous' (a caller that is not authenticated), so it may not read on bus"
    assert f"{expected} {BUS}" == explanation
