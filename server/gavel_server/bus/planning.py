"""Deciding a batch: the core run on each command in turn, and the log entries that come of it. No I/O.

What is made for every command is a plain class: compiled, tuples and dataclasses cost more.
"""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import PurePath
from typing import Final, NamedTuple

import structlog
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.chain import chain
from gavel_rules.commands import (
    NO_REFERENCES,
    Answer,
    Command,
    Failure,
    Fault,
    Handled,
    Recorded,
    References,
    Started,
    SubmitProposal,
    Tick,
    Waiting,
)
from gavel_rules.decider import handle
from gavel_rules.events import OUTCOME_APPROVED
from gavel_rules.made import Made
from gavel_rules.projection import State
from mypy_extensions import mypyc_attr

from gavel_server.bus.lookup import Lookup
from gavel_server.errors import ServiceError, internal, of_fault
from gavel_server.log import Entry, Head, Record
from gavel_server.log.entries import Work

# Timers that one commit emits at most; more than that go ahead of the commands in commits of their own.
TIMERS_PER_COMMIT: Final = 512
# Of a failure, how many of the innermost calls the log names.
FRAMES_LOGGED_MAX: Final = 8

# What a decision may follow that answers it: a proposal, or a person's word.
_DECIDED: Final = ("proposal", "fact")
_CITABLE: Final = ("fact", "observation")
# A tuple: a union would be made anew at every look.
_WITH_EVENT: Final = (Recorded, Started)

# Looked up once, and not at every call.
_serialize: Final = Envelope.SerializeToString

_LOG: Final = structlog.get_logger(__name__)


@mypyc_attr(acyclic=True)
class Completed:
    """What a command came to, committed. `record` is the log's record of the answer's event, where it has one."""

    def __init__(self, answer: Answer, record: Record | None) -> None:
        self.answer: Final = answer
        self.record: Final = record


Done = Callable[[Completed | ServiceError], None]


class Pending:
    """A command that waits.

    `check_id` is its event_id where the producer chose it; `cause_in_batch` one before it in the batch; `unchecked` says
    that its envelope has not been admitted yet, `lost` that an append of it has got lost once.
    """

    def __init__(
        self,
        command: Command,
        done: Done,
        check_id: str,
        size_bytes: int,
        unchecked: bool = False,
        references: References = NO_REFERENCES,
        cause_in_batch: str = "",
        lost: bool = False,
    ) -> None:
        self.command: Final = command
        self._done: Done | None = done
        self.check_id = check_id
        self.size_bytes: Final = size_bytes
        self.unchecked = unchecked
        self.references = references
        self.cause_in_batch = cause_in_batch
        self.lost = lost

    @property
    def answered(self) -> bool:
        """Whether the caller has heard something."""
        return self._done is None

    def answer(self, result: Completed | ServiceError) -> None:
        """Tell the caller, once: what it hears first stands."""
        done = self._done
        if done is None:
            return
        self._done = None
        try:
            done(result)
        except Exception:  # noqa: BLE001  # one caller's callback must not keep the others from their answers
            _LOG.exception("callback.failed")


def as_sent(envelope: Envelope, done: Done, size_bytes: int) -> Pending:
    """Return a proposal that waits to be admitted and decided."""
    return Pending(SubmitProposal(envelope), done, "", size_bytes, unchecked=True)


class Plan(NamedTuple):
    """A decided batch, applied to the state and not yet in the log."""

    expected: Head
    head: Head
    recorded_at_ms: int
    envelopes: list[Envelope]
    entries: list[Entry]
    trace_ids: list[str]  # of the entries
    answers: list[tuple[Pending, Answer]]
    watched: list[Envelope]  # of the envelopes: decisions that approve nothing, and diagnostics
    reports: int  # of the envelopes: executions
    mark: int  # undoing to here takes the plan back
    end: int  # what was applied before here is the plan's


class Planning:
    """A batch being decided at `now_ms`, command by command; whoever makes one may do other things between two commands.

    The state changes with every command: undo it to `mark` if the plan is not appended. Nobody else may change it meanwhile.
    """

    def __init__(self, state: State, lookup: Lookup, expected: Head, now_ms: int) -> None:
        self.mark = state.mark()
        self._state = state
        self._lookup = lookup
        self._expected = expected
        self._now_ms = now_ms
        self._chain_hash = expected.chain_hash
        self._envelopes: list[Envelope] = []
        self._entries: list[Entry] = []
        self._trace_ids: list[str] = []
        self._answers: list[tuple[Pending, Answer]] = []
        self._watched: list[Envelope] = []
        self._reports = 0

    def tick(self) -> None:
        """Let time pass: emit some of the timers that are due."""
        handled = handle(self._state, Tick(TIMERS_PER_COMMIT), now_ms=self._now_ms)
        _say(handled.failures)
        self._record(handled.made)

    def decide(self, pending: Pending) -> None:
        """Decide a command. `lookup` learns at once what later ones may cite, and forgets it if the state is undone."""
        handled = self._handle(pending)
        if handled.failures:
            _say(handled.failures)
        self._answers.append((pending, handled.answer))
        self._record(handled.made)

    def _handle(self, pending: Pending) -> Handled:
        cause = pending.cause_in_batch
        if cause and not self._has_recorded(cause):
            return Handled([], Fault(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, f"causation_id {cause} names an event that was refused"))
        state = self._state
        mark = state.mark()
        try:
            return handle(state, pending.command, pending.references, self._now_ms)
        except Exception:  # noqa: BLE001  # a bug in one command must neither stop the bus nor leave half of it behind
            state.undo(mark)
            error_id = uuid.uuid4().hex
            _LOG.exception("command.failed", error_id=error_id, command=type(pending.command).__name__)
            return Handled([], Fault(error_pb2.ERROR_REASON_INTERNAL, internal(error_id).message))

    def _has_recorded(self, event_id: str) -> bool:
        return any(entry.event_id == event_id for entry in self._entries)

    def plan(self) -> Plan:
        """Return the plan of what has been decided."""
        return Plan(
            self._expected,
            Head(self._expected.sequence_number + len(self._entries), self._chain_hash),
            self._now_ms,
            self._envelopes,
            self._entries,
            self._trace_ids,
            self._answers,
            self._watched,
            self._reports,
            self.mark,
            self._state.position,
        )

    def _record(self, events: list[Made]) -> None:
        """Make log entries of a command's events, which nothing changes any more."""
        entries = self._entries
        chain_hash = self._chain_hash
        previous = ""  # the payload of the command's event right before
        for made in events:
            envelope = made.envelope
            # Deterministic: a decision made again from the same log has the same bytes, maps included.
            content = _serialize(envelope, deterministic=True)
            made.pack(content)
            chain_hash = chain(chain_hash, content)
            payload = made.payload
            work: Work = ""
            if payload == "decision":
                if previous in _DECIDED:
                    entries[-1].decision_sequence_number = made.sequence_number
                if made.outcome == OUTCOME_APPROVED:
                    work = "decisions"
                else:
                    self._watched.append(envelope)
            elif payload == "execution":
                work = "executions"
                self._reports += 1
            elif payload == "agent_diagnostic":
                self._watched.append(envelope)
            elif payload in _CITABLE:
                self._lookup.cite(envelope)
                self._state.on_undo(partial(self._lookup.uncite, made.sequence_number))
            entries.append(Entry(made.sequence_number, content, chain_hash, made.event_id, work))
            self._envelopes.append(envelope)
            self._trace_ids.append(made.trace_id)
            previous = payload
        self._chain_hash = chain_hash


def _say(failures: Iterable[Failure]) -> None:
    """Log what could not be judged: the kind of error and where it came from. Its message may quote what agents sent, and stays out."""
    for proposal_id, error in failures:
        frames = traceback.extract_tb(error.__traceback__)[-FRAMES_LOGGED_MAX:]
        where = [f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        _LOG.error("judgement.failed", proposal_id=proposal_id, error=type(error).__name__, where=where)


def plan(state: State, lookup: Lookup, expected: Head, batch: Sequence[Pending], now_ms: int) -> Plan:
    """Decide a whole batch at `now_ms`, or the timers that are due where it is empty, and return what to append.

    The state is changed; undo it to the plan's `mark` if that is not appended.
    """
    planning = Planning(state, lookup, expected, now_ms)
    try:
        if not batch:
            planning.tick()
        for pending in batch:
            planning.decide(pending)
        return planning.plan()
    except BaseException:
        state.undo(planning.mark)
        raise


def outcome(decided: Plan, answer: Answer) -> Completed | ServiceError | None:
    """Return what the caller of a committed command hears; None: he has to wait for a contest."""
    if isinstance(answer, _WITH_EVENT):
        return Completed(answer, decided.entries[answer.envelope.sequence_number - decided.expected.sequence_number - 1])
    if isinstance(answer, Fault):
        return of_fault(answer)
    return None if isinstance(answer, Waiting) else Completed(answer, None)


def tell(decided: Plan, instead: ServiceError | None = None) -> list[tuple[Pending, Waiting]]:
    """Answer the callers of a committed plan, all with `instead` where it is given. Returns those who have to wait for a contest."""
    competing: list[tuple[Pending, Waiting]] = []
    for pending, answer in decided.answers:
        result = outcome(decided, answer) if instead is None else instead
        if result is not None:
            pending.answer(result)
        elif isinstance(answer, Waiting):
            competing.append((pending, answer))
    return competing
