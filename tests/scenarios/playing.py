"""Plays a scenario on a layer, step by step, and compares what it came to with what the file expects.

The events of a scenario have ids that follow from their names, so all layers get the same ones. After each step everything that
the log has gained is accounted for: the step's own events, and what `before` and `then` name. Nothing else may be there.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Final

from gavel.v1 import fact_pb2
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest, RevokeDecisionRequest
from gavel.v1.common_pb2 import EventReference, Producer, ProducerType, VersionBinding
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution, ExecutionStatus
from gavel.v1.execution_service_pb2 import BeginExecutionResponse
from gavel.v1.fact_pb2 import Fact
from gavel.v1.observation_pb2 import Observation
from gavel.v1.projection_service_pb2 import PendingPhase
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules.derivation import derive
from gavel_rules.events import timestamp
from gavel_rules.values import python_to_value, value_to_python

from tests.scenarios import steps
from tests.scenarios.comparing import Known, differences_of_appended, differences_of_decision
from tests.scenarios.layers import CallRefusedError, Layer
from tests.scenarios.reading import Scenario, merged
from tests.unit.core.driver import START_MS

NAMESPACE: Final = uuid.UUID("6f1b2c9e-7a44-4a53-9f43-0d6d5c1f7a10")
# How long an answer may take; it comes at once.
ANSWER_SECONDS_MAX: Final = 100.0
# Steps that wake no timers; an idle server would have woken them before.
_TIMELESS: Final = (steps.PreflightStep, steps.DecidedStep, steps.RepeatStep)


class ScenarioError(AssertionError):
    """A scenario did not come out as its file expects; the message says where and in what."""


async def play(scenario: Scenario, layer: Layer) -> Known:
    """Play a scenario on a fresh bus, prove its log, and return what it came to. Raises ScenarioError."""
    player = await played(scenario, layer, len(scenario.steps))
    await player.finish()
    return player.known


async def played(scenario: Scenario, layer: Layer, count: int) -> Player:
    """Play the first steps of a scenario on a fresh bus. Raises ScenarioError."""
    player = Player(scenario, layer)
    await player.prepare()
    for index in range(count):
        await player.step(index)
    return player


class Player:
    """One scenario on one layer."""

    def __init__(self, scenario: Scenario, layer: Layer) -> None:
        self._scenario = scenario
        self._layer = layer
        self.known = Known(START_MS)
        self._sent: dict[str, tuple[steps.Step, Envelope]] = {}  # by name: what a step sent, to be sent again
        self._said: dict[str, steps.ResolveStep | steps.RevokeStep] = {}  # by name, likewise
        self._waiting: list[tuple[str, asyncio.Future[Envelope]]] = []  # proposals that wait for their contest
        self._own: list[str] = []  # event_ids of the step under way
        self._wrong: list[str] = []
        self._now_ms = START_MS

    async def prepare(self) -> None:
        """Open the bus and put the lowest version of each rule set in force that is to be."""
        await self._layer.set_time(START_MS)
        lowest: dict[str, int] = {}
        for rule_set in self._scenario.rule_sets:
            name, version = rule_set.compiled.policy_id, rule_set.compiled.version
            lowest[name] = min(version, lowest.get(name, version))
        for rule_set in self._scenario.rule_sets:
            name, version = rule_set.compiled.policy_id, rule_set.compiled.version
            if lowest[name] == version and name in self._scenario.in_force:
                await self._layer.deploy(rule_set)
                await self._layer.activate(name, version)
        self.known.learn(await self._layer.events(0))

    async def step(self, index: int) -> None:
        """Play one step. Raises ScenarioError."""
        step = self._scenario.steps[index]
        self._own, self._wrong = [], []
        if step.at is not None:
            self._now_ms = START_MS + step.at
            await self._layer.set_time(self._now_ms)
            if isinstance(step, _TIMELESS):
                await self._layer.tick()
        try:
            await self._do(step)
        except CallRefusedError as error:
            expected = getattr(getattr(step, "expect", None), "error", None)
            self._compare("error", expected, error.reason)
        else:
            self._compare("error", getattr(getattr(step, "expect", None), "error", None), None)
        appended = await self._layer.events(len(self.known.events))
        self.known.learn(appended)
        self._account_for(step, appended)
        self._check(step)
        if self._wrong:
            where = f"tests/scenarios/{self._scenario.file}:{self._scenario.lines[index]}"
            raise ScenarioError("\n".join([f"{where}: {self._scenario.must}", *self._wrong]))

    async def finish(self) -> None:
        """Compare how it stands in the end, and prove the log. Raises ScenarioError."""
        self._wrong = []
        part = self._scenario.finally_
        for subject, expected in part.facts.items():
            latest: dict[str, object] = {}
            for fact in (await self._layer.projection(subject)).facts:
                latest.setdefault(fact.key, value_to_python(fact.value))
            self._compare(f"finally: facts of {subject}", expected, {key: latest.get(key) for key in expected})
        if part.pending is not None:
            pending = {
                self.known.name(one.decision_id).removesuffix(".decision"): PendingPhase.Name(one.phase).removeprefix("PENDING_PHASE_")
                for one in await self._layer.pending()
            }
            self._compare("finally: pending", part.pending, pending)
        if part.reviews is not None:
            reviews = [self.known.name(one.decision_id).removesuffix(".decision") for one in await self._layer.reviews()]
            self._compare("finally: reviews", part.reviews, reviews)
        for name, waiting in self._waiting:
            answer = await asyncio.wait_for(waiting, ANSWER_SECONDS_MAX)
            self._compare(f"the answer to {name}", f"{name}.decision", self.known.name(answer.event_id))
        if self._wrong:
            where = f"tests/scenarios/{self._scenario.file} ({self._scenario.id})"
            raise ScenarioError("\n".join([f"{where}: {self._scenario.must}", *self._wrong]))
        await self._layer.prove(engines_agree=not self._scenario.engines_disagree)

    # What steps do

    async def _do(self, step: steps.AnyStep) -> None:
        layer = self._layer
        match step:
            case steps.Wait():
                await layer.tick()
            case steps.FactStep() | steps.ObserveStep():
                await self._publish(str(getattr(step, step.verb)), step, self._envelope(step))
            case steps.ToolStep():
                await self._call_tool(step)
            case steps.ProposeStep():
                await self._propose(step)
            case steps.PreflightStep():
                decision = await layer.preflight(self._proposal(step, step.preflight))
                self._expect(step.expect, Envelope(decision=decision))
            case steps.RepeatStep():
                await self._repeat(step)
            case steps.BeginStep():
                self._check_start(step, await layer.begin(self._decision(step.of), _executor(step.by), step.lease))
            case steps.RenewStep():
                attempt = self.known.event(step.renew).execution
                await layer.renew(attempt.decision_id, attempt.execution_id, _executor(step.by), step.lease)
                self._own.append("ExecutionStarted")
            case steps.ReportStep():
                await self._report(step)
            case steps.DeriveStep():
                await self._derive(step)
            case steps.ResolveStep() | steps.RevokeStep():
                self._said[str(getattr(step, step.verb))] = step
                await self._say(step)
            case steps.ActivateStep():
                await self._activate(step)
            case steps.DeactivateStep():
                await layer.deactivate(step.deactivate)
                self._own.append("RuleSetDeactivated")

    def _event_id(self, name: str) -> str:
        return str(uuid.uuid5(NAMESPACE, f"{self._scenario.id}/{name}"))

    def _decision(self, name: str) -> str:
        """Return the id of the decision that a step speaks of: of that name, or the first one of the proposal of that name."""
        event = self.known.events_by_name.get(f"{name}.decision") or self.known.event(name)
        return event.event_id

    async def _publish(self, name: str, step: steps.Step, envelope: Envelope) -> None:
        self.known.give(name, envelope.event_id)
        self._sent[name] = (step, envelope)
        recorded = await self._layer.publish(_copy(envelope))
        self._own.append(recorded.event_id)

    def _envelope(self, step: steps.FactStep | steps.ObserveStep) -> Envelope:
        if isinstance(step, steps.FactStep):
            fact = Fact(key=step.key, value=python_to_value(step.value), max_age_ms=step.max_age)
            envelope = Envelope(
                event_id=self._event_id(step.fact), event_name=step.event_name, subject=step.subject, trace_id=step.trace, fact=fact
            )
            envelope.producer.CopyFrom(_producer(step.channel.upper(), step.by))
            if step.channel == "system":
                fact.observed_from = fact_pb2.OBSERVED_FROM_HUMAN_INPUT
                envelope.fact.CopyFrom(fact)
            if step.occurred_at is not None:
                envelope.occurred_at.CopyFrom(timestamp(START_MS + step.occurred_at))
            return envelope
        observation = Observation(source_tool=step.calls, confidence=0.9)
        if step.evidence is not None:
            evidence = self.known.event(step.evidence)
            observation.evidence_ref = evidence.event_id
            observation.evidence_hash = evidence.tool_result.content_hash
        for key, value in step.reads.items():
            observation.extracted_fields[key].CopyFrom(python_to_value(value))
        if step.observed_at is not None:
            observation.observed_at.CopyFrom(timestamp(START_MS + step.observed_at))
        return Envelope(
            event_id=self._event_id(step.observe),
            subject=step.subject,
            trace_id=step.trace,
            producer=_producer("AGENT", step.by),
            observation=observation,
        )

    async def _call_tool(self, step: steps.ToolStep) -> None:
        execution_id = f"exec_{uuid.uuid5(NAMESPACE, step.tool).hex[:12]}"
        call = ToolCall(tool_name=step.calls, execution_id=execution_id)
        result = ToolResult(tool_name=step.calls, execution_id=execution_id, is_error=bool(step.error_code), error_code=step.error_code)
        if not step.error_code:
            result.content_hash = f"sha256:{step.answer or step.tool}"
        shared = {"subject": step.subject, "trace_id": step.trace, "producer": _producer("AGENT", step.by)}
        called = f"{step.tool}.call"
        await self._publish(called, step, Envelope(event_id=self._event_id(called), tool_call=call, **shared))  # type: ignore[arg-type]
        await self._publish(step.tool, step, Envelope(event_id=self._event_id(step.tool), tool_result=result, **shared))  # type: ignore[arg-type]

    def _proposal(self, step: steps.Proposed, name: str) -> Envelope:
        proposal = Proposal(
            action_type=step.action or self._only_action(),
            required_facts=step.required_facts,
            max_fact_age_ms=step.max_age,
            cost=step.cost,
            risk=step.risk,
            priority=step.priority,
            confidence=step.confidence,
        )
        proposal.params.CopyFrom(python_to_value(step.params).struct_value)
        for cited in map(self.known.event, step.cites):
            proposal.based_on_events.append(EventReference(event_id=cited.event_id, sequence_number=cited.sequence_number))
        if step.cites_nothing_known:
            proposal.based_on_events.append(EventReference(event_id=self._event_id("nobody"), sequence_number=9_999))
        if step.as_of is not None:
            proposal.projection_version = self.known.event(step.as_of).sequence_number
        return Envelope(
            event_id=self._event_id(name),
            subject=step.subject,
            trace_id=step.trace,
            causation_id=self.known.event(step.cause).event_id if step.cause is not None else "",
            producer=_producer("AGENT", step.by),
            version_binding=VersionBinding(**step.versions) if step.versions else None,
            proposal=proposal,
        )

    def _only_action(self) -> str:
        actions = {name for rule_set in self._scenario.rule_sets for name in rule_set.compiled.actions}
        if len(actions) != 1:
            raise ScenarioError(f"{self._scenario.id}: say which action is proposed: {', '.join(sorted(actions)) or 'none is known'}")
        return actions.pop()

    async def _propose(self, step: steps.ProposeStep) -> None:
        envelope = self._proposal(step, step.propose)
        self.known.give(step.propose, envelope.event_id)
        self._sent[step.propose] = (step, envelope)
        self._own.append(envelope.event_id)
        if step.waits:
            await self._enter(step.propose, envelope)
            return
        decided = await self._answer(envelope)
        self.known.give(f"{step.propose}.decision", decided.event_id)
        self._own.append(decided.event_id)
        self._expect(step.expect, decided)

    async def _answer(self, envelope: Envelope) -> Envelope:
        """Submit a proposal and return its decision, which must not have to wait for a contest."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await self._layer.propose(_copy(envelope))
        except TimeoutError:
            raise ScenarioError(
                f"{self._scenario.id}: {self.known.name(envelope.event_id)} waits for a contest; say `waits: true`"
            ) from None

    async def _enter(self, name: str, envelope: Envelope) -> None:
        """Submit a proposal that waits for its contest, and come back when it is in the log."""
        waiting = asyncio.ensure_future(self._layer.propose(_copy(envelope)))
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            # A log tells nobody that it has grown.
            while not waiting.done() and not await self._is_recorded(envelope.event_id):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        if waiting.done():
            waiting.result()  # or what it was refused with
        self._waiting.append((name, waiting))

    async def _is_recorded(self, event_id: str) -> bool:
        if event_id in self.known.by_id:
            return True
        return any(event.event_id == event_id for event in await self._layer.events(len(self.known.events)))

    async def _repeat(self, step: steps.RepeatStep) -> None:
        """Send again what was sent; the answer must be the first one."""
        if step.repeat in self._said:
            word = merged(self._said[step.repeat], {**step.but, "expect": step.expect.model_dump(exclude_none=True)})
            assert isinstance(word, steps.ResolveStep | steps.RevokeStep)
            await self._say(word, repeated=True)
            return
        first, envelope = self._sent[step.repeat]
        again = _copy(envelope)
        if step.but:
            again = self._again(merged(first, step.but), step.repeat)
        if step.waits:
            await self._enter(step.repeat, again)
            return
        if again.HasField("proposal"):
            decided = await self._answer(again)
            self._compare("the answer", f"{step.repeat}.decision", self.known.name(decided.event_id))
            self._expect(step.expect, decided)
            return
        recorded = await (self._layer.report(again) if again.HasField("execution") else self._layer.publish(again))
        self._compare("the answer", step.repeat, self.known.name(recorded.event_id))

    def _again(self, step: steps.Step, name: str) -> Envelope:
        match step:
            case steps.ProposeStep():
                return self._proposal(step, name)
            case steps.FactStep() | steps.ObserveStep():
                return self._envelope(step)
            case steps.ReportStep():
                return self._report_envelope(step)
        raise ScenarioError(f"{self._scenario.id}: {name} cannot be repeated with other content")

    def _check_start(self, step: steps.BeginStep, answer: BeginExecutionResponse) -> None:
        started = answer.started.attempt if answer.HasField("started") else None
        refused = answer.refusal.reason_code if answer.HasField("refusal") else None
        expected = step.expect
        self._compare("started", None if expected.refused else expected.started, started)
        self._compare("refused", expected.refused, refused)
        if expected.retry_after is not None:
            self._compare("retry_after", expected.retry_after, answer.refusal.retry_after_ms)
        if started is not None:
            self._own.append("ExecutionStarted")

    def _report_envelope(self, step: steps.ReportStep) -> Envelope:
        attempt = self.known.event(step.of).execution
        execution = Execution(
            decision_id=attempt.decision_id,
            execution_id=attempt.execution_id,
            status=ExecutionStatus.Value(f"EXECUTION_STATUS_{step.status}"),
        )
        if step.result:
            execution.result.CopyFrom(python_to_value(step.result).struct_value)
        return Envelope(event_id=self._event_id(step.report), producer=_executor(step.by), execution=execution)

    async def _report(self, step: steps.ReportStep) -> None:
        envelope = self._report_envelope(step)
        self.known.give(step.report, envelope.event_id)
        self._sent[step.report] = (step, envelope)
        recorded = await self._layer.report(_copy(envelope))
        self._own.append(recorded.event_id)
        if step.expect.will_retry is not None:
            self._compare("will_retry", step.expect.will_retry, recorded.execution.will_retry)

    async def _derive(self, step: steps.DeriveStep) -> None:
        """Derive as the reactor does: from the report, its decision, and the rule set that made that."""
        report = self.known.event(step.derive)
        decision = self.known.by_id[report.execution.decision_id]
        digest = decision.decision.rule_set_digest
        rule_set = next((one.compiled for one in self._scenario.rule_sets if one.compiled.digest == digest), None)
        derived = derive(report, decision, rule_set)
        if step.facts is not None:
            self._compare("facts", step.facts, {one.fact.key: value_to_python(one.fact.value) for one in derived})
        for number, fact in enumerate(derived, 1):
            await self._publish(f"{step.derive}.fact-{number}", step, fact)

    async def _say(self, step: steps.ResolveStep | steps.RevokeStep, *, repeated: bool = False) -> None:
        """Let a person speak: a FACT, known as NAME.word, and the decision that follows."""
        name = str(getattr(step, step.verb))
        word = self._event_id(f"{name}.word")
        said = {"decision_id": self._decision(step.of), "reason": step.reason, "event_id": word}
        if isinstance(step, steps.ResolveStep):
            verdict = fact_pb2.ReviewVerdict.Value(f"REVIEW_VERDICT_{step.verdict}")
            decided = await self._layer.resolve(ResolveReviewRequest(verdict=verdict, reviewer=step.by, **said))
        else:
            decided = await self._layer.revoke(RevokeDecisionRequest(revoked_by=step.by, **said))
        if repeated:
            self._compare("the answer", name, self.known.name(decided.event_id))
        else:
            self.known.give(f"{name}.word", word)
            self.known.give(name, decided.event_id)
            self._own += [word, decided.event_id]
        self._expect(step.expect, decided)

    async def _activate(self, step: steps.ActivateStep) -> None:
        for rule_set in self._scenario.rule_sets:
            if (step.activate, step.version) == (rule_set.compiled.policy_id, rule_set.compiled.version):
                await self._layer.deploy(rule_set)
        self._own.append("RuleSetDeployed")
        await self._layer.activate(step.activate, step.version, shadow=step.shadow)
        self._own.append("RuleSetActivated")

    # What it came to

    def _account_for(self, step: steps.Step, appended: Sequence[Envelope]) -> None:
        """Compare what Gavel has appended around the step's own events, which stand by id, or by name where Gavel gives the id."""
        own = [index for index, event in enumerate(appended) if event.event_id in self._own]
        for name in (item for item in self._own if item.isalpha()):
            own += [index for index, event in enumerate(appended) if event.event_name == name and index not in own][-1:]
        if isinstance(step, steps.BeginStep) and own:
            self.known.give(step.begin, appended[max(own)].event_id)
        first = min(own, default=0)
        others = [event for index, event in enumerate(appended) if index not in own]
        before = [event for event in appended[:first] if event in others]
        for expected, actual, label in ((step.before, before, "before"), (step.then, others[len(before) :], "then")):
            self._wrong += differences_of_appended(label, expected, actual, self.known)

    def _check(self, step: steps.AnyStep) -> None:
        if isinstance(step, steps.DecidedStep):
            self._expect(step.expect, self.known.event(f"{step.decided}.decision"))

    def _expect(self, expected: steps.OfDecision, decided: Envelope) -> None:
        self._wrong += differences_of_decision("expect", expected, decided.decision, self.known)

    def _compare(self, label: str, expected: object, actual: object) -> None:
        if expected != actual:
            self._wrong.append(f"  {label}: expected {expected!r}, got {actual!r}")


def _copy(envelope: Envelope) -> Envelope:
    return Envelope.FromString(envelope.SerializeToString())


def _producer(kind: str, name: str) -> Producer:
    return Producer(type=ProducerType.Value(f"PRODUCER_TYPE_{kind}"), id=name, version="1")


def _executor(name: str) -> Producer:
    return _producer("EXECUTOR", name)
