"""A bus of an older arbiter version: a server reads it, and goes on with the semantics of that version. In virtual time."""

from __future__ import annotations

from gavel.v1 import error_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules.commands import EventAnswer, SubmitProposal
from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.events.proposal_view import ProposalView
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.log import Entry

from tests.support.driver import Core, proposal_envelope
from tests.support.histories.shared_trace import GUEST, OWNER, rule_set
from tests.support.simulation.servers import Servers, execute, record_event, with_servers


async def write_bus(servers: Servers, arbiter_version: int) -> Core:
    """Write the log of a bus of this version, on which the owner of "trace-1" has been refused twice."""
    core = Core(rule_set(), arbiter_version=arbiter_version)
    fact = core.fact("order.status", "delivered")
    for number in range(2):
        core.decide([fact], amount=500 + number, producer=OWNER)
    for record, event in zip(core.records, core.events, strict=True):
        entry = Entry(record.sequence_number, record.envelope, record.chain_hash, event.event_id, "")
        await servers.log.append(await servers.log.head(), [entry], servers.now_ms(), [])
    return core


async def decide_for_guest(servers: Servers, sequencer: Sequencer, core: Core) -> Decision:
    """Return the decision on a guest's proposal in the trace, which the rules reject."""
    servers.offset_ms += 1_000
    fact = await record_event(sequencer, servers.fact())
    envelope = proposal_envelope([fact], amount=600, producer=GUEST, causation_id=core.events[-1].event_id)
    result = await execute(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(envelope))))
    assert isinstance(result, CommittedAnswer)
    assert isinstance(result.answer, EventAnswer)
    return result.answer.envelope.decision


@with_servers
async def test_version_2_is_continued(servers: Servers) -> None:
    """On a bus of version 2 a guest's rejection counts with the owner's, and new events name version 2; so after a restart."""
    core = await write_bus(servers, 2)
    servers.skip_ids(len(core.events))
    sequencer, _ = await servers.start()
    decision = await decide_for_guest(servers, sequencer, core)
    assert ("REJECTION_LIMIT", 3, 2, 2) == (
        decision.reason_code,
        decision.consecutive_rejections,
        decision.arbiter_version,
        decision.policy_version,
    )
    restarted, _ = await servers.start()
    assert "UNDER_REVIEW" == (await decide_for_guest(servers, restarted, core)).reason_code
    events = await servers.events()
    versions = {event.producer.version for event in events if event.producer.id == "gavel"}
    assert ({"2"}, 2) == (versions, (await restarted.settled_state()).arbiter_version)
    await servers.prove()


@with_servers
async def test_new_buses_have_the_latest_version(servers: Servers) -> None:
    """A bus that this build opens has the latest version, and its decisions name it."""
    core = await write_bus(servers, ARBITER_VERSION)
    servers.skip_ids(len(core.events))
    sequencer, _ = await servers.start()
    decision = await decide_for_guest(servers, sequencer, core)
    assert ("TOO_MUCH", 1, ARBITER_VERSION) == (decision.reason_code, decision.consecutive_rejections, decision.arbiter_version)
    opened, _ = await Servers().start()
    assert ARBITER_VERSION == (await opened.settled_state()).arbiter_version
    await servers.prove()


@with_servers
async def test_authentication_needs_attestations(servers: Servers) -> None:
    """A server with authentication reads a bus of version 2 and writes nothing to it, because its events could not name their caller."""
    core = await write_bus(servers, 2)
    servers.skip_ids(len(core.events))
    sequencer, _ = await servers.start(requires_attestation=True)
    result = await execute(sequencer, servers.fact())
    assert isinstance(result, ServiceError)
    assert error_pb2.ERROR_REASON_WRONG_STATE == result.reason
    assert "arbiter version 2, whose events do not name their caller" in result.message
    assert len(core.events) == (await sequencer.settled_state()).head == len(await servers.events())
    opened, _ = await Servers().start(requires_attestation=True)
    assert opened.write_error() is None
