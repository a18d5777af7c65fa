"""RuleSetService: deploy, activate and read rule sets (constitution §6.2). Deployed versions live in the log and never change.

A document is compiled in a child process with limits before this server compiles it, so that no document can hang or crash the server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from gavel.v1 import error_pb2, fact_pb2
from gavel.v1.rule_set_service_pb2 import (
    ActivateRuleSetRequest,
    ActivateRuleSetResponse,
    DeactivateRuleSetRequest,
    DeactivateRuleSetResponse,
    DeployRuleSetRequest,
    DeployRuleSetResponse,
    DocumentMessage,
    GetRuleSetRequest,
    GetRuleSetResponse,
    ListRuleSetsRequest,
    ListRuleSetsResponse,
    RuleSet,
    SimulateRuleSetRequest,
    SimulateRuleSetResponse,
    ValidateRuleSetRequest,
    ValidateRuleSetResponse,
)
from gavel_rules.authoring.decision_cost import total_steps
from gavel_rules.authoring.grants.lint import compare_with_rule_set
from gavel_rules.commands import ActivateRuleSet, Answer, Command, DeactivateRuleSet, DeployRuleSet, RuleSetPosition, UnfilledCounters
from gavel_rules.language.cel.cost import DECISION_STEPS_MAX
from gavel_rules.language.shared_action_settings import find_disagreements, format_disagreements
from gavel_rules.replay import DamagedError, DivergedError, VersionNotImplementedError
from gavel_rules.state.records import DeployedRuleSet
from gavel_rules.state.state import State

from gavel_server.bus.counter_filling import CounterFilling
from gavel_server.bus.sequencer import Sequencer
from gavel_server.compile.compiler import Compiler, ensure_compiled
from gavel_server.errors import RETRY_AFTER_MS_DEFAULT, ServiceError, invalid
from gavel_server.fairness.work_slots import Slots
from gavel_server.history.replay import ReplayRangeError, impact
from gavel_server.intake.event_ids import new_event_id
from gavel_server.intake.human_commands import reason_violations
from gavel_server.process.threads import run_in_thread
from gavel_server.rpc.call_context import CallContext
from gavel_server.services.reads import views
from gavel_server.services.reads.log_reader import range_beyond_log, range_violations
from gavel_server.services.reads.paging import fill, page_of

if TYPE_CHECKING:
    from gavel_rules.language.rule_set import CompiledRuleSet

    from gavel_server.bus.registry import BusRegistry
    from gavel_server.log import EventLog


class Impact(Protocol):
    """Simulates a candidate: `history.replay.impact` in this process, `ReplayProcesses.impact` in one of its own."""

    def __call__(
        self, log: EventLog, candidate: CompiledRuleSet, *, from_sequence_number: int, to_sequence_number: int
    ) -> AsyncGenerator[SimulateRuleSetResponse, None]:
        """Yield progress and changes, and last the summary."""


class RuleSetServicer:
    """Serves RuleSetService on the buses of this server."""

    def __init__(self, buses: BusRegistry, compiler: Compiler, replay_slots: Slots, impact: Impact = impact) -> None:
        self._buses = buses
        self._compiler = compiler
        self._replay_slots = replay_slots
        self._impact = impact
        self._filling = CounterFilling()

    async def ValidateRuleSet(self, request: ValidateRuleSetRequest, context: CallContext) -> ValidateRuleSetResponse:
        """Compile a document and report every mistake. The bus need not exist yet: a document is validated on its own."""
        self._buses.check_name(request.bus)
        return await self._compiler.check(request.document, context.caller, with_analysis=True)

    async def DeployRuleSet(self, request: DeployRuleSetRequest, context: CallContext) -> DeployRuleSetResponse:
        """Record a version."""
        self._buses.check_name(request.bus)
        violations = reason_violations(request.reason)
        if violations:
            raise invalid(violations)
        rule_set = await self._compiler.compile(request.document, context.caller)
        command = DeployRuleSet(new_event_id(), rule_set, request.document, request.reason, context.traceparent)
        deployed = await _execute(await self._buses.open(request.bus, context.bus_incarnation), command, context)
        return DeployRuleSetResponse(
            policy_id=deployed.policy_id, version=deployed.version, digest=deployed.digest, sequence_number=deployed.sequence_number
        )

    async def ActivateRuleSet(self, request: ActivateRuleSetRequest, context: CallContext) -> ActivateRuleSetResponse:
        """Activate a deployed version, or run it as a shadow."""
        violations = _name_violations(request.policy_id) + _expected_violations(request)
        if request.version < 1:
            violations.append(("version", "is not 1 or more"))
        violations += _mode_violations(request) + reason_violations(request.reason)
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        shadow = request.mode == fact_pb2.ACTIVATION_MODE_SHADOW
        command = ActivateRuleSet(
            new_event_id(), request.policy_id, request.version, _expected_version(request), shadow, request.reason, context.traceparent
        )
        deployed = (await sequencer.settled_state()).rule_sets.get((request.policy_id, request.version))
        if deployed is None:  # unless another server has just deployed it, the core refuses
            await sequencer.read_on()
            deployed = (await sequencer.settled_state()).rule_sets.get((request.policy_id, request.version))
        if deployed is not None:
            # Compiled here, the version need not be compiled when the event is applied.
            await ensure_compiled(deployed)
        answer = await self._activate(sequencer, command, deployed, context, shadow=shadow)
        if isinstance(answer, UnfilledCounters):
            # The core has allowed the activation but for the counters' past.
            if deployed is not None:
                await self._filling.fill(sequencer, deployed.rule_set)
                answer = await self._activate(sequencer, command, deployed, context, shadow=shadow)
            if isinstance(answer, UnfilledCounters):
                message = f"another activation of rule set {request.policy_id} has opened or dropped its counters meanwhile; try again"
                raise ServiceError(error_pb2.ERROR_REASON_WRONG_STATE, message, retry_after_ms=RETRY_AFTER_MS_DEFAULT)
        number = _position(command, answer).sequence_number
        grants = sequencer.replica.state.grants_in_force
        if shadow or deployed is None or grants is None:
            return ActivateRuleSetResponse(sequence_number=number)
        # In a thread: the two documents may have thousands of patterns.
        problems = await run_in_thread(compare_with_rule_set, grants.grants, deployed.rule_set, sequencer.bus)
        warnings = [DocumentMessage(code=code, message=message, suggestion=hint) for code, message, hint in problems]
        return ActivateRuleSetResponse(sequence_number=number, warnings=warnings)

    async def _activate(
        self, sequencer: Sequencer, command: Command, deployed: DeployedRuleSet | None, context: CallContext, *, shadow: bool
    ) -> Answer:
        """Decide an activation whose decisions are not too costly. Raises ServiceError."""
        # The cost of an activation is checked here and not by the core, so no other one of this server may come in between.
        async with sequencer.activating:
            if deployed is not None:
                _check_cost(await sequencer.settled_state(), deployed, shadow=shadow)
            return (await sequencer.execute(command, caller=context.caller, principal=context.principal)).answer

    async def DeactivateRuleSet(self, request: DeactivateRuleSetRequest, context: CallContext) -> DeactivateRuleSetResponse:
        """Deactivate a rule set, or end its shadow."""
        violations = _name_violations(request.policy_id) + _expected_violations(request) + _mode_violations(request)
        violations += reason_violations(request.reason)
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        shadow = request.mode == fact_pb2.ACTIVATION_MODE_SHADOW
        command = DeactivateRuleSet(
            new_event_id(), request.policy_id, _expected_version(request), shadow, request.reason, context.traceparent
        )
        return DeactivateRuleSetResponse(sequence_number=(await _execute(sequencer, command, context)).sequence_number)

    async def GetRuleSet(self, request: GetRuleSetRequest, context: CallContext) -> GetRuleSetResponse:
        """Read a deployed version; if the request names none, the active version, else the newest."""
        violations = _name_violations(request.policy_id)
        if request.version < 0:
            violations.append(("version", "is negative"))
        if violations:
            raise invalid(violations)
        state = await (await self._buses.existing(request.bus, context.bus_incarnation)).confirmed_state()
        version = request.version or _current_version(state, request.policy_id)
        deployed = state.rule_sets.get((request.policy_id, version))
        if deployed is None:
            which = f"version {version} of rule set" if version else "version of rule set"
            message = f"no {which} {request.policy_id} is deployed on bus {state.bus}"
            raise ServiceError(error_pb2.ERROR_REASON_RULE_SET_NOT_FOUND, message)
        return GetRuleSetResponse(
            rule_set=views.rule_set(state, request.policy_id, version),
            document=deployed.document,
            canonical_json=deployed.canonical_json,
        )

    async def ListRuleSets(self, request: ListRuleSetsRequest, context: CallContext) -> ListRuleSetsResponse:
        """Read a page of the deployed versions, by policy_id and version."""
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        page = page_of(request.page_size, request.page_token, ("rule sets", sequencer.bus), (str, int))
        after = None if page.after is None else (str(page.after[0]), int(page.after[1]))
        state = await sequencer.confirmed_state()
        candidates = list(islice(views.rule_sets(state, after), page.size + 1))
        rule_sets, token = await fill(page, candidates, _place, context.caller)
        return ListRuleSetsResponse(rule_sets=rule_sets, next_page_token=token)

    async def SimulateRuleSet(self, request: SimulateRuleSetRequest, context: CallContext) -> AsyncGenerator[SimulateRuleSetResponse, None]:
        """Decide the log's proposals under a candidate; stream progress and the decisions that would change, then the summary."""
        first, last = request.from_sequence_number, request.to_sequence_number
        violations = range_violations(from_sequence_number=first, to_sequence_number=last)
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        candidate = await self._compiler.compile(request.document, context.caller)
        state = await sequencer.settled_state()
        active = (active.rule_set for active in state.active_rule_sets.values())
        disagreements = find_disagreements(candidate, active, compares_counters=state.semantics.compares_counters)
        if disagreements:
            raise ServiceError(error_pb2.ERROR_REASON_RULE_SETS_DISAGREE, format_disagreements(disagreements))
        async with self._replay_slots.occupy(context.address):
            try:
                responses = self._impact(sequencer.log, candidate, from_sequence_number=first, to_sequence_number=last)
                async with aclosing(responses) as items:
                    async for item in items:
                        yield item
            except ReplayRangeError as error:
                raise range_beyond_log(last, error) from error
            except VersionNotImplementedError as error:
                raise ServiceError(error_pb2.ERROR_REASON_ARBITER_VERSION_NOT_IMPLEMENTED, str(error)) from error
            except (DamagedError, DivergedError) as error:
                message = f"the log of bus {sequencer.bus} is damaged, so a simulation would mislead: {error}; run gavel replay"
                raise ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, message) from error


async def _execute(sequencer: Sequencer, command: Command, context: CallContext) -> RuleSetPosition:
    answer = (await sequencer.execute(command, caller=context.caller, principal=context.principal)).answer
    return _position(command, answer)


def _position(command: Command, answer: Answer) -> RuleSetPosition:
    if not isinstance(answer, RuleSetPosition):
        raise TypeError(f"{type(command).__name__} was answered with {type(answer).__name__}")
    return answer


def _check_cost(state: State, deployed: DeployedRuleSet, *, shadow: bool) -> None:
    """Raise ServiceError WRONG_STATE if one decision would take too long with all rule sets that govern, or shadow, one of the actions.

    A log may hold costlier ones, which were activated before this limit: the check is not part of the core, so that such logs still replay.
    """
    policy_id = deployed.rule_set.policy_id
    others = (state.shadows if shadow else state.active_rule_sets).values()
    for name, action in deployed.rule_set.actions.items():
        shared = (other.rule_set.actions.get(name) for other in others if other.rule_set.policy_id != policy_id)
        together = [action, *(one for one in shared if one is not None)]
        steps = total_steps(together)
        if steps > DECISION_STEPS_MAX and len(together) > 1:
            role = "shadow" if shadow else "govern"
            message = (
                f"one decision of {name} may take {steps:,} steps with all {len(together)} rule sets that would {role} it; "
                f"the limit is {DECISION_STEPS_MAX:,}: declare smaller sizes in them, or deactivate one"
            )
            raise ServiceError(error_pb2.ERROR_REASON_WRONG_STATE, message)


def _name_violations(policy_id: str) -> list[tuple[str, str]]:
    return [] if policy_id else [("policy_id", "is required")]


def _expected_violations(request: ActivateRuleSetRequest | DeactivateRuleSetRequest) -> list[tuple[str, str]]:
    return [("expected_active_version", "is negative")] if request.expected_active_version < 0 else []


def _mode_violations(request: ActivateRuleSetRequest | DeactivateRuleSetRequest) -> list[tuple[str, str]]:
    return [] if request.mode in fact_pb2.ActivationMode.values() else [("mode", "is not ACTIVE or SHADOW")]


def _expected_version(request: ActivateRuleSetRequest | DeactivateRuleSetRequest) -> int | None:
    return request.expected_active_version if request.HasField("expected_active_version") else None


def _current_version(state: State, policy_id: str) -> int:
    """Return the active version of a rule set, else the newest; 0: none is deployed."""
    active = state.active_rule_sets.get(policy_id)
    if active is not None:
        return active.version
    return max((version for deployed_id, version in state.rule_sets if deployed_id == policy_id), default=0)


def _place(rule_set: RuleSet) -> tuple[str, int]:
    return rule_set.policy_id, rule_set.version
