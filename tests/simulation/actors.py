"""The actors of the simulated world: sensors, agents, tool users, executors, the reactor, an operator, readers; and faults.

Each actor is a coroutine with its own randomness. It knows the bus from the log, and its knowledge may be old. It records broken
guarantees towards callers in `World.failures`; `invariants` checks the log.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

from gavel.v1 import error_pb2
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_REJECT
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules import reason_codes
from gavel_rules.commands import (
    ActivateRuleSet,
    AttemptRefusal,
    BeginExecution,
    Command,
    DeactivateRuleSet,
    DeployRuleSet,
    EventAnswer,
    LeasedAttempt,
    PublishEvent,
    RenewExecution,
    ReportExecution,
    SubmitProposal,
)
from gavel_rules.derivation import derive
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.values import python_to_value
from gavel_server.bus.request import CommittedAnswer
from gavel_server.errors import ServiceError
from gavel_server.intake.human_commands import resolution

from tests.simulation.world import RETRIABLE, Server, World
from tests.support.driver import (
    ABORTED,
    AGENT,
    EXECUTOR,
    FAILED,
    OTHER_EXECUTOR,
    PARTIAL,
    RULES,
    SOURCE,
    STARTED,
    SUCCESS,
    TIMEOUT,
    compile_cached,
    document,
    fact_envelope,
    observation_envelope,
    proposal_envelope,
)
from tests.support.hashes import sha256_of
from tests.support.histories.plays import FACTS

SUBJECTS: Final = 12
# Settings on which rule sets that share an action must agree.
SHARED_SETTINGS: Final[dict[str, Any]] = {
    "retry": {"max_attempts": 3, "human_takeover_after_ms": 5_000},
    "compensation": {"action": "refund.reverse", "params": {"steps": "execution.completed_steps", "amount": "execution.result.amount"}},
}
RULE_SETS: Final = tuple(
    document(FACTS, [*RULES, *more], version=version, rejection_limit=limit, contest_window_ms=window_ms, **SHARED_SETTINGS)
    for version, limit, window_ms, more in (
        (1, 6, 0, []),
        (2, 4, 0, [{"id": "lost", "when": "facts.status == 'lost'", "effect": "approve"}]),
        (3, 5, 1_500, []),
    )
)
# A second rule set on the same action, with a fact and a limit of its own.
AUDIT: Final = document(
    {"score": {"key": "order.score", "type": "number", "min_trust": 3, "max_age_ms": 10_000, "optional": True}},
    [
        {"id": "suspicious", "when": "has(facts.score) && facts.score > 0.9", "effect": "reject", "reason_code": "SUSPICIOUS"},
        {"id": "harmless", "when": "has(facts.score) && facts.score < 0.2", "effect": "approve"},
    ],
    rule_set="audit",
    rejection_limit=5,
    **SHARED_SETTINGS,
)
AGENTS: Final = (AGENT, Producer(type=AGENT.type, id="agent-2"))
_STATUSES: Final = (*["delivered"] * 12, "cancelled", "lost", None, 7)
_REPORTS: Final = (*[SUCCESS] * 6, FAILED, FAILED, TIMEOUT, PARTIAL, ABORTED)


def _subject(randomness: random.Random) -> str:
    return f"order/{randomness.randrange(SUBJECTS)}"


def _trace(randomness: random.Random) -> str:
    # A few traces get many proposals and reach a review.
    return f"trace-{randomness.randrange(5) if randomness.random() < 0.15 else randomness.randrange(5, 200)}"


async def _pause(randomness: random.Random, most_seconds: float) -> None:
    await asyncio.sleep(randomness.uniform(0, most_seconds))


async def sensor(world: World, randomness: random.Random, rounds: int) -> None:
    """Publish the state of orders: sometimes late, with a time in the future, from another source, or twice."""
    for _ in range(rounds):
        await _pause(randomness, 0.6)
        claimed_ms = world.now_ms() - randomness.choice((0, 0, 0, 200, 30_000, -3_000, -20_000))
        envelope = fact_envelope(
            randomness.choice(("order.status", "order.status", "order.status", "order.note")),
            randomness.choice(_STATUSES),
            subject=_subject(randomness),
            source=randomness.choice((SOURCE, SOURCE, "orders-copy", "hearsay")),
            occurred_at_ms=randomness.choice((None, claimed_ms)),
            max_age_ms=randomness.choice((0, 0, 5_000)),
            trace_id=_trace(randomness),
        )
        command = PublishEvent(world.admitted(envelope))
        if randomness.random() < 0.2:
            await _send_twice(world, command, randomness)
        else:
            await world.send(command, randomness)


async def _send_twice(world: World, command: SubmitProposal | PublishEvent | ReportExecution, randomness: random.Random) -> None:
    """Send the same command twice at the same time, to servers chosen independently."""
    await asyncio.gather(world.send(command, randomness), world.send(command, randomness))


async def _repeat_in_flight(world: World, command: Command, randomness: random.Random) -> None:
    """Send a command several times to one server, among others and without waiting: once it is recorded, every repeat is answered so."""
    if not world.weather.repeats:
        await world.send(command, randomness)
        return
    server = randomness.choice(world.servers)
    limit = server.sequencer._pacing.limit
    # Small batches: the next one is decided while the first one is appended.
    server.sequencer._pacing.limit = randomness.choice((1, 2, limit))
    notes = [PublishEvent(world.admitted(fact_envelope("order.note", "busy", subject=_subject(randomness)))) for _ in range(3)]
    commands = [notes[0], command, command, notes[1], command, notes[2], command]
    results = await asyncio.gather(*(world.ask(server, one) for one in commands))
    answers = [result for one, result in zip(commands, results, strict=True) if one is command]
    first = next((index for index, result in enumerate(answers) if isinstance(result, CommittedAnswer)), None)
    if first is None:
        await world.send(command, randomness)
        return
    for result in answers[first + 1 :]:
        world.repeats += isinstance(result, CommittedAnswer)
        if isinstance(result, ServiceError) and result.reason not in RETRIABLE:
            world.failures.append(f"{type(command).__name__} was recorded, and its repeat heard: {result.message}")


async def agent(world: World, randomness: random.Random, rounds: int) -> None:
    """Propose refunds on evidence that may be old, wrong or invented; try again when refused; repeat proposals."""
    cause = ""
    for _ in range(rounds):
        await _pause(randomness, 0.5)
        envelope = await _proposal(world, randomness, cause)
        cause = ""
        command = SubmitProposal(ProposalView(world.admitted(envelope)))
        chance = randomness.random()
        if chance < 0.15:
            await _send_twice(world, command, randomness)
            continue
        result = await world.send(command, randomness)
        if isinstance(result, CommittedAnswer) and isinstance(result.answer, EventAnswer):
            decision = result.answer.envelope
            if decision.decision.reason_code and randomness.random() < 0.5:
                cause = decision.event_id
            if chance > 0.93:
                await _reuse(world, command, randomness)


async def _proposal(world: World, randomness: random.Random, cause: str) -> Envelope:
    subject = _subject(randomness)
    events = await world.events()
    view = events[: max(1, len(events) - randomness.choice((0, 0, 0, 3, 20)))]
    citable = [event for event in view if event.HasField("fact") or event.HasField("observation")]
    about = [event for event in citable if event.subject == subject]
    newest = {(event.fact.key, event.producer.id): event for event in about}
    based_on = list(newest.values())
    if randomness.random() < 0.25:
        based_on = randomness.choice((about[-1:], about[:1], citable[-2:], []))
    changes: dict[str, Any] = {"priority": randomness.randrange(3)}
    if randomness.random() < 0.2:
        changes["projection_version"] = len(view)
    if randomness.random() < 0.1:
        changes["required_facts"] = [randomness.choice(("order.note", "order.score"))]
    if randomness.random() < 0.05:
        changes["amount"] = -5
    if randomness.random() < 0.1:
        changes["max_fact_age_ms"] = randomness.choice((1, 500, 3_000))
    envelope = proposal_envelope(
        based_on[-200:],
        subject=subject,
        trace_id="" if cause else _trace(randomness),
        causation_id=cause,
        producer=randomness.choice(AGENTS),
        **changes,
    )
    if randomness.random() < 0.05 and envelope.proposal.based_on_events:
        envelope.proposal.based_on_events[0].sequence_number += 1
    return envelope


async def _reuse(world: World, command: SubmitProposal, randomness: random.Random) -> None:
    """Send other content under a used event_id: it must be refused."""
    other = SubmitProposal(ProposalView(Envelope.FromString(command.envelope.SerializeToString())))
    other.envelope.proposal.risk += 0.125
    result = await world.send(other, randomness, reused=True)
    if result is not None and not (isinstance(result, ServiceError) and result.reason == error_pb2.ERROR_REASON_EVENT_ID_REUSED):
        world.failures.append(f"event_id {command.envelope.event_id} was taken for other content: {result}")


async def hasty_agent(world: World, randomness: random.Random, rounds: int) -> None:
    """Send several commands to one server without waiting. Each cites or names the one before, which is not committed yet."""
    for _ in range(rounds):
        await _pause(randomness, 1.5)
        server = randomness.choice(world.servers)
        subject = _subject(randomness)
        status = world.admitted(fact_envelope("order.status", "delivered", subject=subject, trace_id=_trace(randomness)))
        likely = server.sequencer.head.sequence_number + randomness.choice((1, 1, 1, 2))
        proposal = proposal_envelope([], subject=subject, trace_id=_trace(randomness))
        reference = proposal.proposal.based_on_events.add()
        reference.event_id, reference.sequence_number = status.event_id, likely
        if randomness.random() < 0.5:
            proposal.causation_id, proposal.trace_id = status.event_id, ""
        note = fact_envelope("order.note", "hasty", subject=subject, trace_id="")
        note.causation_id = world.admitted(proposal).event_id
        commands: list[SubmitProposal | PublishEvent] = [
            PublishEvent(status),
            SubmitProposal(ProposalView(proposal)),
            PublishEvent(world.admitted(note)),
        ]
        if randomness.random() < 0.3:
            commands.insert(1, PublishEvent(status))
        await asyncio.gather(*(world.ask(server, command) for command in commands))


async def crowd(world: World, randomness: random.Random, rounds: int) -> None:
    """Send many commands to one server at once (facts, citations of them, repetitions), so that it decides ahead of its appends."""
    for _ in range(rounds):
        await _pause(randomness, 6.0)
        server = randomness.choice(world.servers)
        number = server.sequencer.head.sequence_number
        commands: list[SubmitProposal | PublishEvent] = []
        facts: list[tuple[Envelope, int]] = []
        for _ in range(randomness.choice((20, 100, 200))):
            subject = f"order/{randomness.randrange(SUBJECTS)}"
            if not facts or randomness.random() < 0.4:
                fact = world.admitted(fact_envelope("order.status", "delivered", subject=subject, trace_id=_trace(randomness)))
                number += 1
                facts.append((fact, number))
                commands.append(PublishEvent(fact))
                continue
            cited, cited_number = randomness.choice(facts[-10:])
            proposal = proposal_envelope([], subject=cited.subject, trace_id=_trace(randomness))
            reference = proposal.proposal.based_on_events.add()
            reference.event_id, reference.sequence_number = cited.event_id, cited_number
            if randomness.random() < 0.2:
                proposal.causation_id, proposal.trace_id = cited.event_id, ""
            number += 2
            commands.append(SubmitProposal(ProposalView(world.admitted(proposal))))
            if randomness.random() < 0.1:
                commands.append(randomness.choice(commands))
        await asyncio.gather(*(world.ask(server, command) for command in commands))


async def tool_user(world: World, randomness: random.Random, rounds: int) -> None:
    """Record a tool call, its result and an observation of it; sometimes of the wrong trace or type."""
    for number in range(rounds):
        await _pause(randomness, 1.0)
        trace_id, execution_id = _trace(randomness), f"exec_{randomness.getrandbits(48):012x}"
        call = Envelope(subject=_subject(randomness), trace_id=trace_id, producer=AGENT)
        call.tool_call.CopyFrom(ToolCall(tool_name="fraud-tool", execution_id=execution_id))
        result = Envelope(subject=call.subject, trace_id=trace_id, producer=AGENT)
        result.tool_result.CopyFrom(ToolResult(tool_name="fraud-tool", execution_id=execution_id, content_hash=sha256_of(str(number))))
        for envelope in (call, result):
            await world.send(PublishEvent(world.admitted(envelope)), randomness)
        observation = observation_envelope(
            "order.score",
            randomness.choice((0.1, 0.5, 0.95, "high")),
            evidence=result,
            subject=_subject(randomness),
            trace_id=randomness.choice((trace_id, trace_id, trace_id, "elsewhere")),
            observed_at_ms=randomness.choice((None, world.now_ms() - 500)),
        )
        await _send_twice(world, PublishEvent(world.admitted(observation)), randomness)


async def executor(world: World, randomness: random.Random, rounds: int, producer: Producer) -> None:
    """Begin approved decisions, then die or report. It acts only while it holds a lease."""
    for _ in range(rounds):
        await _pause(randomness, 0.8)
        events = await world.events()
        executed = {event.execution.decision_id for event in events if event.HasField("execution")}
        approved = [event for event in events if event.event_name == "DecisionApproved"]
        candidates = [event for event in approved if event.event_id not in executed][-3:]
        if not approved:
            continue
        decision = randomness.choice(candidates if candidates and randomness.random() < 0.6 else approved[-6:])
        result = await world.send(BeginExecution(decision.event_id, producer, randomness.choice((300, 2_000, 4_000))), randomness)
        if not isinstance(result, CommittedAnswer) or not isinstance(result.answer, LeasedAttempt):
            _check_refusal(world, decision, result)
            continue
        await _carry_out(world, randomness, result.answer.envelope, producer)


def _check_refusal(world: World, decision: Envelope, result: CommittedAnswer | ServiceError | None) -> None:
    """Record a failure if the start of an approval gets an error, or is refused as not approved."""
    if isinstance(result, ServiceError):
        world.failures.append(f"a start of {decision.event_id} failed: {result.message}")
    elif result is not None and isinstance(result.answer, AttemptRefusal) and result.answer.reason_code == reason_codes.NOT_APPROVED:
        world.failures.append(f"a start of {decision.event_id} was told that it is no approval")


async def _carry_out(world: World, randomness: random.Random, started: Envelope, producer: Producer) -> None:
    execution = started.execution
    if randomness.random() < 0.15:
        return  # it dies
    for _ in range(randomness.choice((0, 0, 1, 2))):
        await _pause(randomness, 0.5)
        await world.send(RenewExecution(execution.decision_id, execution.execution_id, producer, 1_000), randomness, patience=3)
    await asyncio.sleep(randomness.choice((0.05, 0.05, 0.1, 0.2, 1.5, 5.0)))
    report = Envelope(producer=producer, event_id=world.new_id())
    report.execution.CopyFrom(
        Execution(
            decision_id=execution.decision_id,
            execution_id=execution.execution_id,
            status=randomness.choice(_REPORTS),
            result=python_to_value({"amount": 50}).struct_value,
            completed_steps=["checked", "paid"],
        )
    )
    command = ReportExecution(world.admitted(report))
    if randomness.random() < 0.1:
        await _forge_report(world, command, randomness)
    chance = randomness.random()
    if chance < 0.3:
        await _send_twice(world, command, randomness)
    elif chance < 0.7:
        await _repeat_in_flight(world, command, randomness)
    else:
        await world.send(command, randomness)


async def _forge_report(world: World, command: ReportExecution, randomness: random.Random) -> None:
    """Report another executor's attempt: it must be refused."""
    forged = ReportExecution(Envelope.FromString(command.envelope.SerializeToString()))
    forged.envelope.event_id = world.new_id()
    forged.envelope.producer.id = "impostor"
    result = await world.send(forged, randomness)
    if isinstance(result, CommittedAnswer):
        world.failures.append(f"an impostor's report of {command.envelope.execution.execution_id} was taken")


async def reactor(world: World, randomness: random.Random) -> None:
    """Derive the facts of every report, each twice, until the world is calm and no report is left."""
    done = 0
    while True:
        events = await world.events()
        if done == len(events):
            if world.calm:
                return
            await asyncio.sleep(0.2)
            continue
        event = events[done]
        done += 1
        if event.HasField("execution") and event.execution.status != STARTED:
            decision = next(other for other in events if other.event_id == event.execution.decision_id)
            rule_set = next((one for one in map(compile_cached, RULE_SETS) if one.digest == decision.decision.rule_set_digest), None)
            for fact in 2 * derive(event, decision, rule_set):
                result = await world.send(PublishEvent(world.admitted(Envelope.FromString(fact.SerializeToString()))), randomness, 10_000)
                if not isinstance(result, CommittedAnswer):
                    world.failures.append(f"a fact of execution {event.event_id} was refused: {result}")


async def operator(world: World, randomness: random.Random, rounds: int) -> None:
    """Deploy rule sets, and change which of them are in force."""
    for text in (*RULE_SETS, AUDIT):
        await world.send(DeployRuleSet(world.new_id(), compile_cached(text), text), randomness)
    await world.send(ActivateRuleSet(world.new_id(), "refunds", randomness.choice((1, 3)), None), randomness)
    for _ in range(rounds):
        await _pause(randomness, 8.0)
        chance = randomness.random()
        if chance < 0.2:
            await world.send(DeactivateRuleSet(world.new_id(), "refunds", None), randomness)
            await _pause(randomness, 1.0)
        if chance > 0.7:
            await world.send(ActivateRuleSet(world.new_id(), "audit", 1, None, shadow=chance > 0.9), randomness)
        elif chance > 0.5:
            await world.send(DeactivateRuleSet(world.new_id(), "audit", None), randomness)
        version = randomness.choice((1, 2, 3, 3))
        await world.send(ActivateRuleSet(world.new_id(), "refunds", version, randomness.choice((None, None, 1, 2, 3))), randomness)


async def person(world: World, randomness: random.Random, rounds: int) -> None:
    """Resolve reviews of executions: grant another attempt or give up."""
    for _ in range(rounds):
        await _pause(randomness, 2.0)
        events = await world.events()
        approved = {event.event_id for event in events if event.event_name == "DecisionApproved"}
        resolved_reviews = {
            event.decision.previous_decision_id for event in events if event.event_name in ("DecisionApproved", "DecisionRevoked")
        }
        requests = [event for event in events if event.event_name == "HumanReviewRequested" and event.event_id not in resolved_reviews]
        open_reviews = [event for event in requests if event.decision.previous_decision_id in approved]
        if not open_reviews:
            continue
        verdict = randomness.choice((REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_REJECT))
        review_id = randomness.choice(open_reviews[-4:]).event_id
        request = ResolveReviewRequest(decision_id=review_id, reviewer="ada", reason="seen", verdict=verdict, event_id=world.new_id())
        await _repeat_in_flight(world, resolution(request), randomness)


async def reader(world: World, randomness: random.Random, rounds: int) -> None:
    """Read the projection: the answer must come soon, show the committed state, and never be older than the last one."""
    view: dict[str, int] = {}
    for _ in range(rounds):
        await _pause(randomness, 0.5)
        server = randomness.choice(world.servers)
        try:
            projection, head = await asyncio.wait_for(_read_heads(server), 60)
        except TimeoutError:
            if not server.killed:
                world.failures.append(f"{server.name} let a reader wait")
            continue
        if projection != head or head < view.get(server.name, 0):
            world.failures.append(f"{server.name} showed state {projection} at head {head}, after {view.get(server.name, 0)}")
        view[server.name] = head


async def _read_heads(server: Server) -> tuple[int, int]:
    """Return the sequence numbers of the projection and of the head at the same time."""
    state = await server.sequencer.settled_state()
    return state.head, server.sequencer.head.sequence_number


# Faults


async def killer(world: World, randomness: random.Random, rounds: int) -> None:
    """Kill servers and start new ones."""
    for _ in range(rounds):
        await _pause(randomness, 4.0)
        if world.calm:
            return
        server = randomness.choice(world.servers)
        server.kill()
        await world.start_server()
        world.remove_server(server)


async def outages(world: World, randomness: random.Random, rounds: int) -> None:
    """Take links down for a while, sometimes all of them."""
    for _ in range(rounds):
        await _pause(randomness, 5.0)
        if world.calm:
            return
        targets = world.servers if randomness.random() < 0.3 else [randomness.choice(world.servers)]
        for server in targets:
            server.link.down = True
        await asyncio.sleep(randomness.choice((0.05, 0.5, 3.0)))
        for server in targets:
            server.link.down = False


async def clockmaker(world: World, randomness: random.Random, rounds: int) -> None:
    """Let hours pass at once, turn the time back a little, and skew the clock of a server."""
    for _ in range(rounds):
        await _pause(randomness, 5.0)
        if world.calm:
            return
        chance = randomness.random()
        if chance < 0.5:
            world.offset_ms += randomness.choice((1_000, 9_000, 31_000, 61_000, 3_600_000, 20 * 3_600_000))
        elif chance < 0.65:
            world.offset_ms -= randomness.choice((50, 900, 4_000, 7_000))
        else:
            randomness.choice(world.servers).skew_ms = randomness.choice((-4_000, -800, -100, 0, 100, 800, 2_500))


async def forgetting(world: World, randomness: random.Random, rounds: int) -> None:
    """Let servers forget all event_ids, as after many other events."""
    for _ in range(rounds):
        await _pause(randomness, 1.0)
        if world.calm:
            return
        recent_events = randomness.choice(world.servers).sequencer.recent_events
        recent_events._locations.clear()
        recent_events._older_locations.clear()


EXECUTORS: Final = (EXECUTOR, OTHER_EXECUTOR)
