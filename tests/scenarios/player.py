"""The player of scenarios: it performs each step on a layer and compares the log and the answers with what the file expects.

After each step, every new event of the log must be one of the step's own or named by its `before` or `then`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from gavel.v1 import fact_pb2
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest, RevokeDecisionRequest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetTraceResponse, ToolPairState
from gavel.v1.execution_service_pb2 import BeginExecutionResponse
from gavel.v1.projection_service_pb2 import PendingPhase
from gavel_rules.derivation import derive
from gavel_rules.values import value_to_python

from tests.scenarios import steps
from tests.scenarios.comparison import NamedLog, compare_appended, compare_decision
from tests.scenarios.layers import ANSWER_MS_MAX, CallError, Layer
from tests.scenarios.reader import Scenario, ScenarioError, patch_step
from tests.scenarios.step_envelopes import StepEnvelopes, binding, contract, copy, executor
from tests.support.driver import START_MS

# Steps that do not fire timers themselves; a server fires them while it is idle.
_STEPS_WITHOUT_TIMERS: Final = (steps.PreflightStep, steps.DecidedStep, steps.RepeatStep)


async def play(scenario: Scenario, layer: Layer) -> NamedLog:
    """Play a scenario on a fresh bus, replay its log, and return it. Raises ScenarioError."""
    player = await play_steps(scenario, layer, len(scenario.steps))
    await player.finish()
    return player.log


async def play_steps(scenario: Scenario, layer: Layer, count: int) -> Player:
    """Play the first `count` steps of a scenario on a fresh bus. Raises ScenarioError."""
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
        self.log = NamedLog(START_MS)
        self._envelopes = StepEnvelopes(scenario, self.log)
        self._requests: dict[str, tuple[steps.Step, Envelope]] = {}  # by name, for `repeat`
        self._human_steps: dict[str, steps.ResolveStep | steps.RevokeStep] = {}  # by name, for `repeat`
        self._contest_answers: list[tuple[str, asyncio.Future[Envelope]]] = []  # of proposals in an open contest
        self._own: list[str] = []  # event ids of the current step, or event names if Gavel chooses the id
        self._differences: list[str] = []  # of the current step
        self._now_ms = START_MS

    async def prepare(self) -> None:
        """Open the bus and activate the lowest version of each rule set that is in force from the start."""
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
        self.log.extend(await self._layer.events(0))

    async def step(self, index: int) -> None:
        """Play one step. Raises ScenarioError."""
        step = self._scenario.steps[index]
        self._own, self._differences = [], []
        if step.at is not None:
            self._now_ms = START_MS + step.at
            await self._layer.set_time(self._now_ms)
            if isinstance(step, _STEPS_WITHOUT_TIMERS):
                await self._layer.tick()
        try:
            await self._do(step)
        except CallError as error:
            expected = getattr(getattr(step, "expect", None), "error", None)
            self._compare("error", expected, error.reason)
        else:
            self._compare("error", getattr(getattr(step, "expect", None), "error", None), None)
        appended = await self._layer.events(len(self.log.events))
        self.log.extend(appended)
        self._compare_appended(step, appended)
        self._compare_decided(step)
        if self._differences:
            where = f"tests/scenarios/{self._scenario.file}:{self._scenario.lines[index]}"
            raise ScenarioError("\n".join([f"{where}: {self._scenario.must}", *self._differences]))

    async def finish(self) -> None:
        """Compare the state after the last step, and replay the log. Raises ScenarioError."""
        self._differences = []
        part = self._scenario.finally_
        for subject, expected in part.facts.items():
            latest: dict[str, object] = {}
            for fact in (await self._layer.projection(subject)).facts:
                latest.setdefault(fact.key, value_to_python(fact.value))
            self._compare(f"finally: facts of {subject}", expected, {key: latest.get(key) for key in expected})
        if part.pending is not None:
            pending = {
                self.log.name(one.decision_id).removesuffix(".decision"): PendingPhase.Name(one.phase).removeprefix("PENDING_PHASE_")
                for one in await self._layer.pending()
            }
            self._compare("finally: pending", part.pending, pending)
        if part.reviews is not None:
            reviews = [self.log.name(one.decision_id).removesuffix(".decision") for one in await self._layer.reviews()]
            self._compare("finally: reviews", part.reviews, reviews)
        for trace_id, reading in part.traces.items():
            self._compare_trace(reading, trace_id, await self._layer.trace(trace_id))
        for name, future in self._contest_answers:
            answer = await asyncio.wait_for(future, ANSWER_MS_MAX / 1000)
            self._compare(f"the answer to {name}", f"{name}.decision", self.log.name(answer.event_id))
        if self._differences:
            where = f"tests/scenarios/{self._scenario.file} ({self._scenario.id})"
            raise ScenarioError("\n".join([f"{where}: {self._scenario.must}", *self._differences]))
        await self._layer.prove(engines_agree=not self._scenario.engines_disagree)

    def _compare_trace(self, expected: steps.TraceExpectation, trace_id: str, trace: GetTraceResponse) -> None:
        label = f"finally: trace {trace_id}"
        pairs = [ToolPairState.Name(pair.state).removeprefix("TOOL_PAIR_STATE_") for pair in trace.pairs]
        bound = {field.name: value for field, value in trace.version_binding.ListFields()}
        for name, actual in (("pairs", pairs), ("drifts", [drift.code for drift in trace.drifts]), ("bound", bound)):
            if getattr(expected, name) is not None:
                self._compare(f"{label}: {name}", getattr(expected, name), actual)

    # Steps

    async def _do(self, step: steps.AnyStep) -> None:
        layer = self._layer
        match step:
            case steps.Wait():
                await layer.tick()
            case steps.FactStep() | steps.ObserveStep():
                await self._publish(str(getattr(step, step.verb)), step, self._envelopes.statement(step))
            case steps.ToolStep():
                for name, envelope in self._envelopes.tool_events(step):
                    await self._publish(name, step, envelope)
            case steps.InvokeStep():
                await self._publish(step.invoke, step, self._envelopes.invocation(step))
            case steps.ContractStep():
                await layer.register(contract(step))
                self._own.append("ToolContractRegistered")
            case steps.ProposeStep():
                await self._propose(step)
            case steps.PreflightStep():
                decision = await layer.preflight(self._envelopes.proposal(step, step.preflight))
                self._expect(step.expect, Envelope(decision=decision))
            case steps.RepeatStep():
                await self._repeat(step)
            case steps.BeginStep():
                self._check_start(step, await layer.begin(self._decision(step.of), executor(step.by), step.lease, binding(step.versions)))
            case steps.RenewStep():
                attempt = self.log.event(step.renew).execution
                await layer.renew(attempt.decision_id, attempt.execution_id, executor(step.by), step.lease)
                self._own.append("ExecutionRenewed")
            case steps.ReportStep():
                await self._report(step)
            case steps.DeriveStep():
                await self._derive(step)
            case steps.ResolveStep() | steps.RevokeStep():
                self._human_steps[str(getattr(step, step.verb))] = step
                await self._resolve_or_revoke(step)
            case steps.VoteStep():
                await self._vote(step)
            case steps.ActivateStep():
                await self._activate(step)
            case steps.DeactivateStep():
                await layer.deactivate(step.deactivate)
                self._own.append("RuleSetDeactivated")

    def _decision(self, name: str) -> str:
        """Return the id of the decision with a name, or else of the first decision on the proposal with that name."""
        event = self.log.events_by_name.get(f"{name}.decision") or self.log.event(name)
        return event.event_id

    async def _publish(self, name: str, step: steps.Step, envelope: Envelope) -> None:
        self.log.set_name(name, envelope.event_id)
        self._requests[name] = (step, envelope)
        recorded = await self._layer.publish(copy(envelope))
        self._own.append(recorded.event_id)

    async def _propose(self, step: steps.ProposeStep) -> None:
        envelope = self._envelopes.proposal(step, step.propose)
        self.log.set_name(step.propose, envelope.event_id)
        self._requests[step.propose] = (step, envelope)
        self._own.append(envelope.event_id)
        if step.waits:
            await self._enter(step.propose, envelope)
            return
        decided = await self._answer(envelope)
        self.log.set_name(f"{step.propose}.decision", decided.event_id)
        self._own.append(decided.event_id)
        self._expect(step.expect, decided)

    async def _answer(self, envelope: Envelope) -> Envelope:
        """Submit a proposal that does not compete, and return its decision."""
        try:
            async with asyncio.timeout(ANSWER_MS_MAX / 1000):
                return await self._layer.propose(copy(envelope))
        except TimeoutError:
            raise ScenarioError(f"{self._scenario.id}: {self.log.name(envelope.event_id)} waits for a contest; say `waits: true`") from None

    async def _enter(self, name: str, envelope: Envelope) -> None:
        """Submit a proposal that competes, and return when it is in the log."""
        answer = asyncio.ensure_future(self._layer.propose(copy(envelope)))
        async with asyncio.timeout(ANSWER_MS_MAX / 1000):
            # The log has no notification of new events.
            while not answer.done() and not await self._is_recorded(envelope.event_id):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        if answer.done():
            answer.result()  # raises the error if it was refused
        self._contest_answers.append((name, answer))

    async def _is_recorded(self, event_id: str) -> bool:
        if event_id in self.log.by_id:
            return True
        return any(event.event_id == event_id for event in await self._layer.events(len(self.log.events)))

    async def _repeat(self, step: steps.RepeatStep) -> None:
        """Send an event again; the answer must be the first one."""
        if step.repeat in self._human_steps:
            repetition = patch_step(self._human_steps[step.repeat], {**step.but, "expect": step.expect.model_dump(exclude_none=True)})
            assert isinstance(repetition, steps.ResolveStep | steps.RevokeStep)
            await self._resolve_or_revoke(repetition, is_repetition=True)
            return
        first, envelope = self._requests[step.repeat]
        again = copy(envelope)
        if step.but:
            again = self._again(patch_step(first, step.but), step.repeat)
        if step.waits:
            await self._enter(step.repeat, again)
            return
        if again.HasField("proposal"):
            decided = await self._answer(again)
            self._compare("the answer", f"{step.repeat}.decision", self.log.name(decided.event_id))
            self._expect(step.expect, decided)
            return
        recorded = await (self._layer.report(again) if again.HasField("execution") else self._layer.publish(again))
        self._compare("the answer", step.repeat, self.log.name(recorded.event_id))

    def _again(self, step: steps.Step, name: str) -> Envelope:
        match step:
            case steps.ProposeStep():
                return self._envelopes.proposal(step, name)
            case steps.FactStep() | steps.ObserveStep():
                return self._envelopes.statement(step)
            case steps.ReportStep():
                return self._envelopes.report(step)
        raise ScenarioError(f"{self._scenario.id}: {name} cannot be repeated with other content")

    def _check_start(self, step: steps.BeginStep, answer: BeginExecutionResponse) -> None:
        started = answer.started.attempt if answer.HasField("started") else None
        refused = answer.refusal.reason_code if answer.HasField("refusal") else None
        expected = step.expect
        self._compare("started", None if expected.refused else expected.started, started)
        self._compare("refused", expected.refused, refused)
        if expected.retry_after is not None:
            self._compare("retry_after", expected.retry_after, answer.refusal.retry_after_ms)
        if expected.warnings is not None:
            self._compare("warnings", expected.warnings, [warning.code for warning in answer.started.warnings])
        if started is not None:
            self._own.append("ExecutionStarted")

    async def _report(self, step: steps.ReportStep) -> None:
        envelope = self._envelopes.report(step)
        self.log.set_name(step.report, envelope.event_id)
        self._requests[step.report] = (step, envelope)
        recorded = await self._layer.report(copy(envelope))
        self._own.append(recorded.event_id)
        if step.expect.will_retry is not None:
            self._compare("will_retry", step.expect.will_retry, recorded.execution.will_retry)

    async def _derive(self, step: steps.DeriveStep) -> None:
        """Derive the facts of a report as the reactor does, from its decision and that decision's rule set."""
        report = self.log.event(step.derive)
        decision = self.log.by_id[report.execution.decision_id]
        digest = decision.decision.rule_set_digest
        rule_set = next((one.compiled for one in self._scenario.rule_sets if one.compiled.digest == digest), None)
        derived = derive(report, decision, rule_set)
        if step.facts is not None:
            self._compare("facts", step.facts, {one.fact.key: value_to_python(one.fact.value) for one in derived})
        for number, fact in enumerate(derived, 1):
            await self._publish(f"{step.derive}.fact-{number}", step, fact)

    async def _resolve_or_revoke(self, step: steps.ResolveStep | steps.RevokeStep, *, is_repetition: bool = False) -> None:
        """Resolve a review or revoke an approval: a FACT, named NAME.word, and the decision that follows."""
        name = str(getattr(step, step.verb))
        word = self._envelopes.event_id(f"{name}.word")
        details = {"decision_id": self._decision(step.of), "reason": step.reason, "event_id": word}
        if isinstance(step, steps.ResolveStep):
            verdict = fact_pb2.ReviewVerdict.Value(f"REVIEW_VERDICT_{step.verdict}")
            decided = await self._layer.resolve(ResolveReviewRequest(verdict=verdict, reviewer=step.by, **details))
        else:
            decided = await self._layer.revoke(RevokeDecisionRequest(revoked_by=step.by, **details))
        if is_repetition:
            self._compare("the answer", name, self.log.name(decided.event_id))
        else:
            self.log.set_name(f"{name}.word", word)
            self.log.set_name(name, decided.event_id)
            self._own += [word, decided.event_id]
        self._expect(step.expect, decided)

    async def _vote(self, step: steps.VoteStep) -> None:
        """Vote or comment in a review; the answer is the FACT, and no decision follows."""
        verdict = fact_pb2.ReviewVerdict.Value(f"REVIEW_VERDICT_{step.verdict}")
        details = {"decision_id": self._decision(step.of), "reason": step.reason, "event_id": self._envelopes.event_id(step.vote)}
        recorded = await self._layer.resolve(ResolveReviewRequest(verdict=verdict, reviewer=step.by, **details))
        self.log.set_name(step.vote, recorded.event_id)
        self._own.append(recorded.event_id)
        voted = recorded.fact.review_voted
        self._compare(
            "vote", (step.verdict, step.by), (fact_pb2.ReviewVerdict.Name(voted.verdict).removeprefix("REVIEW_VERDICT_"), voted.reviewer)
        )
        for field in ("votes", "quorum"):
            expected = getattr(step.expect, field)
            if expected is not None:
                self._compare(field, expected, getattr(voted, field))

    async def _activate(self, step: steps.ActivateStep) -> None:
        for rule_set in self._scenario.rule_sets:
            if (step.activate, step.version) == (rule_set.compiled.policy_id, rule_set.compiled.version):
                await self._layer.deploy(rule_set)
        self._own.append("RuleSetDeployed")
        await self._layer.activate(step.activate, step.version, shadow=step.shadow)
        self._own.append("RuleSetActivated")

    # Comparison

    def _compare_appended(self, step: steps.Step, appended: Sequence[Envelope]) -> None:
        """Compare the events that Gavel appended before and after the step's own events."""
        own = [index for index, event in enumerate(appended) if event.event_id in self._own]
        for name in (item for item in self._own if item.isalpha()):
            own += [index for index, event in enumerate(appended) if event.event_name == name and index not in own][-1:]
        if isinstance(step, steps.BeginStep) and own:
            self.log.set_name(step.begin, appended[max(own)].event_id)
        first = min(own, default=0)
        others = [event for index, event in enumerate(appended) if index not in own]
        before = [event for event in appended[:first] if event in others]
        for expected, actual, label in ((step.before, before, "before"), (step.then, others[len(before) :], "then")):
            self._differences += compare_appended(label, expected, actual, self.log)

    def _compare_decided(self, step: steps.AnyStep) -> None:
        if isinstance(step, steps.DecidedStep):
            self._expect(step.expect, self.log.event(f"{step.decided}.decision"))

    def _expect(self, expected: steps.DecisionExpectation, decided: Envelope) -> None:
        self._differences += compare_decision("expect", expected, decided.decision, self.log)

    def _compare(self, label: str, expected: object, actual: object) -> None:
        if expected != actual:
            self._differences.append(f"  {label}: expected {expected!r}, got {actual!r}")
