"""Deciding a batch: runs the core on each command in turn and turns its events into log entries. No I/O.

Objects created for every command are instances of plain classes (docs/performance.md#plain-classes).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import PurePath
from time import monotonic_ns
from typing import Final, NamedTuple

import structlog
from gavel.v1 import error_pb2
from gavel.v1.decision_pb2 import ENGINE_RETE
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.arbitration.contest import EarlyJudgement
from gavel_rules.arbitration.evaluation import evaluator
from gavel_rules.commands import Answer, BeginExecution, CommandOutcome, Failure, Fault, LeasedAttempt, Tick
from gavel_rules.decider import handle
from gavel_rules.events.hash_chain import chain
from gavel_rules.events.kinds import GAVEL, OUTCOME_APPROVED
from gavel_rules.state.counters import UncountedEvent
from gavel_rules.state.records import LiveDecision, OpenContest
from gavel_rules.state.state import State

from gavel_server.bus.recent_events import RecentEvents
from gavel_server.bus.request import Request
from gavel_server.errors import Bug
from gavel_server.log import Entry, Head
from gavel_server.log.entries import Work
from gavel_server.log.work.protocol import REQUEST_KINDS

# Due timers that one commit emits at most. Further ones get commits of their own, before the commands.
TIMERS_PER_COMMIT: Final = 512
# Innermost stack frames to log for a failed evaluation.
FRAMES_LOGGED_MAX: Final = 8

# Payloads that a decision can answer: a proposal, or a person's verdict.
_DECIDABLE: Final = ("proposal", "fact")
_CITABLE: Final = ("fact", "observation")

# Bound once: docs/performance.md#module-constants
_serialize: Final = Envelope.SerializeToString

_LOG: Final = structlog.get_logger(__name__)


class DecidedBatch(NamedTuple):
    """A decided batch: applied to the state, not yet in the log."""

    expected_head: Head
    head: Head  # after the append
    date_ms: int  # the clock when the batch was dated; the head may be later
    recorded_at_ms: int
    envelopes: list[Envelope]
    entries: list[Entry]
    trace_ids: list[str]  # of the entries
    answers: list[tuple[Request, Answer]]
    alarm_candidates: list[Envelope]  # of the envelopes: decisions that approve nothing, and diagnostics
    execution_count: int
    lease_lapses: int  # attempts whose lease lapsed: another one began, or a human review was requested
    uncounted_events: list[UncountedEvent]  # what counters could not count
    mark: int  # `State.undo` to this mark takes the batch back
    end: int  # `State.commit` to this position keeps the batch


class BatchDecision:
    """A batch that is being decided at `now_ms`, command by command. `date_ms` is the server's clock then.

    Every command changes the state. Undo the state to `mark` if the batch is not appended. Other tasks may run between two
    commands but must not change the state.
    """

    def __init__(self, state: State, recent_events: RecentEvents, expected_head: Head, now_ms: int, date_ms: int) -> None:
        self.mark = state.mark()
        self._state = state
        self._bus_subject = f"bus/{state.bus}"
        self._recent_events = recent_events
        self._expected_head = expected_head
        self._now_ms = now_ms
        self._date_ms = date_ms
        self._chain_hash = expected_head.chain_hash
        self._envelopes: list[Envelope] = []
        self._entries: list[Entry] = []
        self._trace_ids: list[str] = []
        self._answers: list[tuple[Request, Answer]] = []
        self._alarm_candidates: list[Envelope] = []
        self._execution_count = 0
        self._lease_lapses = 0
        self._uncounted_events: list[UncountedEvent] = []

    def emit_timers(self) -> Iterator[None]:
        """Emit due timers, one by one, until they have made TIMERS_PER_COMMIT events. Other tasks may run after each step."""
        state, now_ms = self._state, self._now_ms
        while len(self._entries) < TIMERS_PER_COMMIT:
            due = state.next_due(now_ms)
            if due is None:
                return
            tick = Tick(1)
            if isinstance(due, OpenContest):
                early_judgement = EarlyJudgement(state, due, now_ms, evaluator(state, state.head + 1, ENGINE_RETE))
                while early_judgement.step():
                    yield
                tick.judgements = early_judgement.judgements
            elif isinstance(due, LiveDecision) and due.is_running:
                self._lease_lapses += 1
            handled = handle(state, tick, now_ms=now_ms)
            _log_failures(handled.failures)
            self._append(handled)
            yield

    def decide(self, request: Request) -> None:
        """Decide a command. Later commands may cite its facts at once; undoing the state takes that back."""
        times = request.times
        if times is not None:
            times.decision_began_ns = monotonic_ns()
        is_takeover = self._takes_over(request)
        handled = self._handle(request)
        if times is not None:
            times.decision_ended_ns = monotonic_ns()
        if is_takeover and isinstance(handled.answer, LeasedAttempt):
            self._lease_lapses += 1
        if handled.failures:
            _log_failures(handled.failures)
        self._answers.append((request, handled.answer))
        self._append(handled)

    def finish(self) -> DecidedBatch:
        """Return the batch as decided so far."""
        return DecidedBatch(
            self._expected_head,
            Head(self._expected_head.sequence_number + len(self._entries), self._chain_hash),
            self._date_ms,
            self._now_ms,
            self._envelopes,
            self._entries,
            self._trace_ids,
            self._answers,
            self._alarm_candidates,
            self._execution_count,
            self._lease_lapses,
            self._uncounted_events,
            self.mark,
            self._state.position,
        )

    @property
    def event_count(self) -> int:
        """How many events the batch has so far."""
        return len(self._entries)

    def finish_unopened(self) -> DecidedBatch:
        """Return the batch without events: the first command, the opening of the bus, is taken back, because all others were refused."""
        self._state.undo(self.mark)
        self.mark = self._state.mark()
        head, answers = self._expected_head, self._answers[1:]
        return DecidedBatch(head, head, self._date_ms, self._now_ms, [], [], [], answers, [], 0, 0, [], self.mark, self._state.position)

    def _takes_over(self, request: Request) -> bool:
        """Return whether a command begins an attempt while the log shows another one running, whose lease must have lapsed."""
        command = request.command
        if not isinstance(command, BeginExecution):
            return False
        live = self._state.live_decision(command.decision_id)
        return live is not None and live.is_running

    def _handle(self, request: Request) -> CommandOutcome:
        for event_id in request.named_in_batch:
            if not self._holds(event_id):
                message = f"the request names {event_id}, an event of the same batch that was refused"
                return CommandOutcome([], Fault(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message))
        state = self._state
        mark = state.mark()
        try:
            return handle(state, request.command, request.references, self._now_ms, principal=request.principal)
        except Exception as error:  # noqa: BLE001  # a bug in one command must neither stop the bus nor leave half of its events behind
            state.undo(mark)
            bug = Bug(error)
            command = type(request.command).__name__
            _LOG.error("command.failed", error_id=bug.error_id, where=bug.where, command=command, exc_info=error)
            return CommandOutcome([], Fault(error_pb2.ERROR_REASON_INTERNAL, bug.service_error().message))

    def _holds(self, event_id: str) -> bool:
        return any(entry.event_id == event_id for entry in self._entries)

    def _append(self, handled: CommandOutcome) -> None:
        """Add the log entries of a command's events, which are final."""
        if handled.uncounted_events:
            self._uncounted_events.extend(handled.uncounted_events)
        entries = self._entries
        chain_hash = self._chain_hash
        previous_payload = ""  # of the same command
        for event in handled.events:
            envelope = event.envelope
            # Deterministic, maps included: a decision recomputed from the same log must have the same bytes.
            content = _serialize(envelope, deterministic=True)
            event.pack(content)
            chain_hash = chain(chain_hash, content)
            payload = event.payload
            work: Work = ""
            deploys_grants = False
            accepts_loss = False
            if payload == "decision":
                if previous_payload in _DECIDABLE:
                    entries[-1].decision_sequence_number = event.sequence_number
                if event.outcome == OUTCOME_APPROVED:
                    work = "decisions"
                else:
                    self._alarm_candidates.append(envelope)
            elif payload == "execution":
                work = "executions"
                self._execution_count += 1
            elif payload == "agent_diagnostic":
                if envelope.agent_diagnostic.kind in REQUEST_KINDS and envelope.producer.id == GAVEL:
                    work = "requests"
                self._alarm_candidates.append(envelope)
            elif payload in _CITABLE:
                self._recent_events.add_citable(envelope)
                self._state.on_undo(partial(self._recent_events.remove_citable, event.sequence_number))
                if event.subject == self._bus_subject:
                    deploys_grants = envelope.fact.HasField("grants_deployed")
                    accepts_loss = envelope.event_name == "DataLossAccepted"
            entries.append(
                Entry(
                    event.sequence_number,
                    content,
                    chain_hash,
                    event.event_id,
                    work,
                    deploys_grants=deploys_grants,
                    accepts_loss=accepts_loss,
                )
            )
            self._envelopes.append(envelope)
            self._trace_ids.append(event.trace_id)
            previous_payload = payload
        self._chain_hash = chain_hash


def decide_batch(state: State, recent_events: RecentEvents, expected_head: Head, requests: Sequence[Request], now_ms: int) -> DecidedBatch:
    """Decide a whole batch at `now_ms`; an empty one emits due timers.

    Changes the state: undo it to the batch's `mark` if the batch is not appended.
    """
    decision = BatchDecision(state, recent_events, expected_head, now_ms, now_ms)
    try:
        if not requests:
            for _ in decision.emit_timers():
                pass
        for request in requests:
            decision.decide(request)
        return decision.finish()
    except BaseException:
        state.undo(decision.mark)
        raise


def _log_failures(failures: Iterable[Failure]) -> None:
    """Log evaluations that failed: the type of the error and its stack. The error's message may quote payloads, so it is left out."""
    for proposal_id, error in failures:
        frames = traceback.extract_tb(error.__traceback__)[-FRAMES_LOGGED_MAX:]
        where = [f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        _LOG.error("judgement.failed", proposal_id=proposal_id, error=type(error).__name__, where=where)
