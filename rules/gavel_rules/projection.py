"""The present state of a bus, as its events make it, and the only place where it changes.

`State` holds what is alive: current evidence, approved decisions on their way, open reviews, running counts, timers, rule
sets. `apply` moves it by one event and knows nothing but the event, so the same log always gives the same state (seeds
002 §10). Every change is written to a journal first; a batch whose append failed is undone and leaves no trace.

It is built in layers, each a module: what there is and what can be asked of it (`tables`), how evidence and traces change
(`projected_evidence`), how decisions do (`projected_decisions`), and here the whole, with what is in force.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from gavel.v1 import common_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.events import FACT, milliseconds
from gavel_rules.language.agreement import disagreements
from gavel_rules.language.document import digest_of
from gavel_rules.language.ruleset import CompiledRuleSet
from gavel_rules.made import Made, read
from gavel_rules.pins import pin
from gavel_rules.projected_decisions import DecisionProjection
from gavel_rules.records import ActiveRuleSet, Candidate, DeployedRuleSet, Shadowing, ShadowRuleSet
from gavel_rules.tables import governing_actions
from gavel_rules.values import value_to_python


class State(DecisionProjection):
    """The decider's state of one bus at its head. Changed by `apply` and `advance` alone."""

    def apply(self, envelope: Envelope) -> Made:
        """Move the state by one event, and return it, read. It is the log's next; it is kept and must not be changed afterwards."""
        made = read(envelope)
        self.advance(made, milliseconds(envelope.recorded_at))
        return made

    def advance(self, made: Made, recorded_at_ms: int) -> None:
        """Do what `apply` does, for whoever has just made the event."""
        self.head = made.sequence_number
        if recorded_at_ms != self.recorded_at_ms:
            self.recorded_at_ms = recorded_at_ms
            # First, so that an event of a trace that has lapsed begins the trace anew instead of reviving what it was.
            self._forget_lapsed_traces()
            if self._departures:
                self._forget_departed()
        trace_id = made.trace_id
        trace = self.traces.get(trace_id)
        if trace is not None and trace.last_event_ms != recorded_at_ms:
            self._put_trace(trace_id, trace.at(recorded_at_ms))
        _APPLY[made.payload](self, made)

    def _apply_fact(self, made: Made) -> None:
        envelope = made.envelope
        fact = envelope.fact
        system = fact.WhichOneof("system")
        if system is not None:
            apply_system = _APPLY_SYSTEM.get(system)
            if apply_system is not None:
                apply_system(self, envelope)
            return
        claimed_at_ms = milliseconds(envelope.occurred_at)
        producer = envelope.producer
        subject = made.subject
        number = made.sequence_number
        key = fact.key
        self._put_candidate(
            subject,
            key,
            Candidate(
                pin=pin(key, subject, made.event_id, number, common_pb2.TRUST_TIER_1_SYSTEM_FACT, ""),
                sequence_number=number,
                category=FACT,
                trust_tier=common_pb2.TRUST_TIER_1_SYSTEM_FACT,
                source=producer.id,
                value=value_to_python(fact.value),
                claimed_at_ms=claimed_at_ms,
                stated_at_ms=min(claimed_at_ms, self.recorded_at_ms),
                aged_from_ms=claimed_at_ms,
                max_age_ms=fact.max_age_ms,
                evidence_ref="",
                confidence=0.0,
                producer_type=producer.type,
                producer_id=producer.id,
                producer_version=producer.version,
                observed_from=fact.observed_from,
                derivation_rule_id=fact.derivation_rule_id,
                derivation_rule_version=fact.derivation_rule_version,
            ),
        )
        if fact.decision_id:
            self._receive_derived(made)

    def _apply_diagnostic(self, made: Made) -> None:
        """Hear late reports, and count what shadows would have decided otherwise; other diagnostics change nothing."""
        diagnostic = made.envelope.agent_diagnostic
        detail = diagnostic.WhichOneof("detail")
        if detail == "late_execution":
            self._apply_late_report(made)
        elif detail == "shadow_difference":
            policy_id = diagnostic.shadow_difference.policy_id
            shadow = self.shadows.get(policy_id)
            if shadow is not None:
                self._put(self.shadows, policy_id, shadow._replace(differences=shadow.differences + 1))

    # Facts about Gavel itself

    def _apply_bus_opened(self, envelope: Envelope) -> None:
        opened = envelope.fact.bus_opened
        self._set("arbiter_version", opened.arbiter_version)
        self._set("cross_check", opened.cross_check)
        self._set("idempotency_window_ms", opened.idempotency_window_ms)

    def _apply_arbiter_version_changed(self, envelope: Envelope) -> None:
        self._set("arbiter_version", envelope.fact.arbiter_version_changed.arbiter_version)

    def _apply_cross_check_changed(self, envelope: Envelope) -> None:
        self._set("cross_check", envelope.fact.cross_check_changed.cross_check)

    def _apply_rule_set_deployed(self, envelope: Envelope) -> None:
        deployed = envelope.fact.rule_set_deployed
        canonical_json = deployed.canonical_json
        record = DeployedRuleSet(
            digest_of(canonical_json),
            tuple(sorted(json.loads(canonical_json)["actions"])),
            deployed.document,
            canonical_json,
            envelope.sequence_number,
            self.recorded_at_ms,
        )
        self._put(self.rule_sets, (deployed.policy_id, deployed.version), record)

    def _apply_rule_set_activated(self, envelope: Envelope) -> None:
        activated = envelope.fact.rule_set_activated
        policy_id, version = activated.policy_id, activated.version
        rule_set = self.rule_sets[policy_id, version].rule_set
        shadow = self.shadows.get(policy_id)
        if activated.mode == fact_pb2.ACTIVATION_MODE_SHADOW:
            watching = ShadowRuleSet(version, envelope.sequence_number, activated.previous_version, rule_set)
            self._put(self.shadows, policy_id, watching)
        else:
            active = ActiveRuleSet(version, envelope.sequence_number, activated.previous_version, rule_set)
            self._put(self.active, policy_id, active)
            if shadow is not None and shadow.version == version:
                self._drop(self.shadows, policy_id)
        self._govern()

    def _apply_rule_set_deactivated(self, envelope: Envelope) -> None:
        deactivated = envelope.fact.rule_set_deactivated
        of_shadow = deactivated.mode == fact_pb2.ACTIVATION_MODE_SHADOW
        self._drop(self.shadows if of_shadow else self.active, deactivated.policy_id)
        self._govern()

    def _govern(self) -> None:
        in_force = {policy_id: active.rule_set for policy_id, active in self.active.items()}
        self._set("governing", governing_actions(in_force.values()))
        self._set("shadowing", _shadowing(in_force, self.shadows))


def _shadowing(in_force: Mapping[str, CompiledRuleSet], shadows: Mapping[str, ShadowRuleSet]) -> dict[str, tuple[Shadowing, ...]]:
    """Return the shadows by action type: of the actions that they govern, and those that the version in force does."""
    shadowing: dict[str, tuple[Shadowing, ...]] = {}
    for policy_id, shadow in sorted(shadows.items()):
        rule_set = shadow.rule_set
        governing = governing_actions({**in_force, policy_id: rule_set}.values())
        replaced = in_force[policy_id].actions if policy_id in in_force else {}
        disagreeing = {found.action_type for found in disagreements(rule_set, in_force.values())}
        for action_type in sorted(rule_set.actions.keys() | replaced.keys()):
            actions = governing.get(action_type, ())
            watching = Shadowing(policy_id, shadow.version, rule_set.digest, actions, action_type in disagreeing)
            shadowing[action_type] = (*shadowing.get(action_type, ()), watching)
    return shadowing


_APPLY: Final[Mapping[str, Callable[[State, Made], None]]] = {
    "fact": State._apply_fact,
    "proposal": State._apply_proposal,
    "decision": State._apply_decision,
    "execution": State._apply_execution,
    "observation": State._apply_observation,
    "tool_call": State._apply_tool_call,
    "tool_result": State._apply_tool_result,
    "agent_diagnostic": State._apply_diagnostic,
}
_APPLY_SYSTEM: Final[Mapping[str, Callable[[State, Envelope], None]]] = {
    "bus_opened": State._apply_bus_opened,
    "arbiter_version_changed": State._apply_arbiter_version_changed,
    "cross_check_changed": State._apply_cross_check_changed,
    "rule_set_deployed": State._apply_rule_set_deployed,
    "rule_set_activated": State._apply_rule_set_activated,
    "rule_set_deactivated": State._apply_rule_set_deactivated,
}
