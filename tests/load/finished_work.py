"""Makes a long log of finished work, to measure how starts, reads and replays depend on its length.

    python -m tests.load.finished_work --redis URL --events 3000000 [--days 30] [--bus NAME] [--data DIR --snapshot-every 500000]

With `--data` it also writes snapshots, as a server with that data directory does.

Each order of the log has three facts, a refund that the shipped rules approve, its execution and the facts derived from the report. The
real core decides all of it, at times spread over the given days until now, so the log replays. Nothing is pending at its end.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from gavel.v1 import common_pb2, execution_pb2, fact_pb2
from gavel.v1.common_pb2 import EventReference, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.fact_pb2 import Fact
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_rules.commands import (
    ActivateRuleSet,
    Answer,
    BeginExecution,
    Command,
    DeployRuleSet,
    EventAnswer,
    LeasedAttempt,
    OpenBus,
    PublishEvent,
    References,
    ReportExecution,
    SubmitProposal,
)
from gavel_rules.decider import handle
from gavel_rules.derivation import derive
from gavel_rules.events.citation import cited_event
from gavel_rules.events.hash_chain import chain
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.language.rule_set import compile_rule_set
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT
from gavel_rules.state.state import State
from gavel_rules.values import python_to_value
from gavel_server.history.snapshot_files import SnapshotContent, SnapshotFiles
from gavel_server.intake.admission import admit
from gavel_server.log import Entry, Head
from gavel_server.log.redis.log import RedisLog
from rich.console import Console

ALL_PAYLOADS = frozenset({"fact", "proposal", "execution"})
ACTION = "refund.create"
DATABASE = Producer(type=common_pb2.PRODUCER_TYPE_DATABASE_SNAPSHOT, id="orders-db", version="1")
AGENT = Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id="support-agent", version="2.1.0")
EXECUTOR = Producer(type=common_pb2.PRODUCER_TYPE_EXECUTOR, id="payments", version="3")
CUSTOMER = "customer-7"
AMOUNT = 42.5
ORDER_FACTS = {"order.status": "delivered", "order.customer_id": CUSTOMER, "order.total": 80.0}
BATCH_EVENTS = 500
_EVENT_ID = "00000000-0000-4000-8000-{:012x}"
FIRST_EVENT_ID = _EVENT_ID.format(1)
DAY_MS = 24 * 60 * 60 * 1000
# A disk that is busy with thousands of appends makes Redis wait.
TIMEOUT_MS = 60_000


class FinishedWork:
    """A bus that orders pass through, one after the other. `entries` are those of its log that are not written yet.

    `orders` counts the orders that are finished.
    """

    def __init__(self, bus: str, started_at_ms: int) -> None:
        self.state = State(bus)
        self.now_ms = started_at_ms
        self.entries: list[Entry] = []
        self.head = Head(0, b"")
        self.orders = 0
        self._ids = 0

    def open(self, head: Head) -> None:
        """Open the bus and put the shipped refund rules in force."""
        self.head = head
        self._run(OpenBus(self._id(), fact_pb2.CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_OFF), IDEMPOTENCY_WINDOW_MS_DEFAULT))
        text = shipped_rule_set("refunds")
        rule_set = compile_rule_set(text)
        self._run(DeployRuleSet(self._id(), rule_set, text))
        self._run(ActivateRuleSet(self._id(), rule_set.policy_id, rule_set.version, None))

    def finish_order(self) -> None:
        """Carry one refund through, from its facts to the facts derived from its execution."""
        subject = f"order/{self.orders:012}"
        facts = [self._publish(order_fact(subject, key, value)) for key, value in ORDER_FACTS.items()]
        decision = self._event(SubmitProposal(ProposalView(self._admit(refund(subject, facts)))), facts)
        attempt = self._run(BeginExecution(decision.event_id, EXECUTOR, 30_000), decision=decision)
        assert isinstance(attempt, LeasedAttempt), attempt
        started = attempt.envelope.execution
        execution = Execution(
            decision_id=started.decision_id, execution_id=started.execution_id, status=execution_pb2.EXECUTION_STATUS_SUCCESS
        )
        report = self._event(ReportExecution(self._admit(Envelope(producer=EXECUTOR, execution=execution))), decision=decision)
        for fact in derive(report, decision, self.state.rule_set_of(decision.decision)):
            self._publish(Envelope.FromString(fact.SerializeToString()))
        self.orders += 1

    def _admit(self, envelope: Envelope) -> Envelope:
        envelope.event_id = envelope.event_id or self._id()
        admit(envelope, self.state.bus, ALL_PAYLOADS)
        return envelope

    def _publish(self, envelope: Envelope) -> Envelope:
        return self._event(PublishEvent(self._admit(envelope)))

    def _event(self, command: Command, cited: list[Envelope] | None = None, decision: Envelope | None = None) -> Envelope:
        answer = self._run(command, cited, decision)
        assert isinstance(answer, EventAnswer), answer
        return answer.envelope

    def _run(self, command: Command, cited: list[Envelope] | None = None, decision: Envelope | None = None) -> Answer:
        references = References({event.sequence_number: cited_event(event) for event in cited or ()}, decision)
        handled = handle(self.state, command, references, self.now_ms)
        self.state.commit()
        for event in handled.events:
            content = event.envelope.SerializeToString(deterministic=True)
            event.pack(content)
            self.head = Head(event.sequence_number, chain(self.head.chain_hash, content))
            self.entries.append(Entry(event.sequence_number, content, self.head.chain_hash, event.event_id, ""))
        return handled.answer

    def _id(self) -> str:
        self._ids += 1
        return _EVENT_ID.format(self._ids)


def order_fact(subject: str, key: str, value: object) -> Envelope:
    """Return a fact about an order, "order/NUMBER"."""
    fact = Fact(key=key, observed_from=fact_pb2.OBSERVED_FROM_DB, value=python_to_value(value))
    return Envelope(subject=subject, trace_id=f"of-{subject[6:]}", producer=DATABASE, fact=fact)


def refund(subject: str, facts: Sequence[Envelope]) -> Envelope:
    """Return a proposal to refund an order, which rests on recorded facts."""
    envelope = Envelope(subject=subject, trace_id=f"of-{subject[6:]}", producer=AGENT)
    envelope.version_binding.execution_version, envelope.version_binding.planner_version = "2.1.0", "7"
    proposal = envelope.proposal
    proposal.action_type = ACTION
    proposal.params.update({"amount": AMOUNT, "currency": "EUR", "customer_id": CUSTOMER})
    proposal.cost, proposal.risk, proposal.confidence, proposal.priority = 1.0, 0.1, 0.9, 1
    proposal.max_fact_age_ms = 86_400_000
    proposal.based_on_events.extend(EventReference(event_id=fact.event_id, sequence_number=fact.sequence_number) for fact in facts)
    return envelope


async def write_log(url: str, bus: str, events: int, days: float) -> AsyncIterator[FinishedWork]:
    """Write the log; yield the work after each append. Raises LogError if the bus has events already."""
    log = await RedisLog.connect(url, bus, timeout_ms=TIMEOUT_MS)
    now_ms = int(time.time() * 1000)
    work = FinishedWork(bus, now_ms - int(days * DAY_MS))
    head = await log.head()
    work.open(head)
    while work.head.sequence_number < events:
        work.finish_order()
        if len(work.entries) >= BATCH_EVENTS:
            await log.append(head, work.entries, work.now_ms, ())
            head = work.head
            work.entries.clear()
            work.now_ms = now_ms - int(days * DAY_MS * max(0.0, 1 - head.sequence_number / events))
            yield work
    await log.append(head, work.entries, work.now_ms, ())
    await log.close()
    yield work


async def run(url: str, bus: str, events: int, days: float, data: Path | None, snapshot_every: int) -> None:
    """Write the log and the snapshots, with progress."""
    console, began, shown = Console(stderr=True), time.monotonic(), 0
    number = 0
    next_snapshot = snapshot_every
    async for work in write_log(url, bus, events, days):
        number = work.head.sequence_number
        if data is not None and number >= next_snapshot:
            next_snapshot += snapshot_every
            SnapshotFiles(data, bus).write(SnapshotContent(work.state, work.head, FIRST_EVENT_ID))
        if number - shown >= 100_000:
            shown = number
            console.print(f"{number:,} events, {number / (time.monotonic() - began):,.0f} a second")
    print(f"{number} events of finished work on bus {bus}")


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redis", required=True, help="URL of the Redis")
    parser.add_argument("--bus", default="default", help="name of a bus without events")
    parser.add_argument("--events", type=int, default=3_000_000)
    parser.add_argument("--days", type=float, default=30.0, help="the time over which the work is spread")
    parser.add_argument("--data", type=Path, help="data directory for snapshots (default: none are written)")
    parser.add_argument("--snapshot-every", type=int, default=500_000, help="events from one snapshot to the next")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.redis, arguments.bus, arguments.events, arguments.days, arguments.data, arguments.snapshot_every))


if __name__ == "__main__":
    main()
