"""Transitions by facts about Gavel itself: opening of the bus, semantics, cross-check, time, rule sets, grants, tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from gavel.v1 import fact_pb2
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.events.arbiter_versions import semantics_of
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.identity.grants import compile_grants
from gavel_rules.identity.principal import binds_anonymous
from gavel_rules.language.document.canonical_form import compute_digest
from gavel_rules.limits import GRANTS_VERSIONS_MAX
from gavel_rules.state.active_actions import actions_by_type, shadows_by_type
from gavel_rules.state.records import ActiveRuleSet, ClockAcceptance, DeployedGrants, DeployedRuleSet, GrantsInForce, ShadowRuleSet
from gavel_rules.state.store import Store
from gavel_rules.state.transitions.contests import rekey_candidates
from gavel_rules.state.transitions.counters import drop_unused_counters, fill_counter, open_counters
from gavel_rules.state.transitions.tools import bind_tool, register_contract, register_provider, unbind_tool
from gavel_rules.state.transitions.traces import assign_tool_results, begin_counts_anew, count_candidates, pair_tool_calls


def apply_system_fact(store: Store, envelope: Envelope, kind: str) -> None:
    """Apply a fact about Gavel. `kind` names its `system` field; kinds that are not in the table change nothing."""
    apply = _TRANSITIONS.get(kind)
    if apply is not None:
        apply(store, envelope)


def _open_bus(store: Store, envelope: Envelope) -> None:
    opened = envelope.fact.bus_opened
    _set_arbiter_version(store, opened.arbiter_version)
    store.set("cross_check", opened.cross_check)
    store.set("idempotency_window_ms", opened.idempotency_window_ms)


def _change_arbiter_version(store: Store, envelope: Envelope) -> None:
    _set_arbiter_version(store, envelope.fact.arbiter_version_changed.arbiter_version)
    begin_counts_anew(store)
    rekey_candidates(store)
    pair_tool_calls(store)
    assign_tool_results(store)
    count_candidates(store)
    _refresh_actions(store)  # versions differ in what rule sets have to agree on


def _set_arbiter_version(store: Store, arbiter_version: int) -> None:
    store.set("arbiter_version", arbiter_version)
    store.set("semantics", semantics_of(arbiter_version))


def _change_cross_check(store: Store, envelope: Envelope) -> None:
    store.set("cross_check", envelope.fact.cross_check_changed.cross_check)


def _accept_clock(store: Store, envelope: Envelope) -> None:
    clock_ms = milliseconds(envelope.fact.clock_accepted.clock)
    store.set("clock_acceptance", ClockAcceptance(store.recorded_at_ms, clock_ms))


def _deploy_rule_set(store: Store, envelope: Envelope) -> None:
    deployed = envelope.fact.rule_set_deployed
    canonical_json = deployed.canonical_json
    record = DeployedRuleSet(
        compute_digest(canonical_json),
        tuple(sorted(json.loads(canonical_json)["actions"])),
        deployed.document,
        canonical_json,
        envelope.sequence_number,
        store.recorded_at_ms,
    )
    store.put(store.rule_sets, (deployed.policy_id, deployed.version), record)


def _activate_rule_set(store: Store, envelope: Envelope) -> None:
    activated = envelope.fact.rule_set_activated
    policy_id, version = activated.policy_id, activated.version
    rule_set = store.rule_sets[policy_id, version].rule_set
    if activated.mode == fact_pb2.ACTIVATION_MODE_SHADOW:
        shadow = ShadowRuleSet(version, envelope.sequence_number, activated.previous_version, rule_set)
        store.put(store.shadows, policy_id, shadow)
    else:
        active = ActiveRuleSet(version, envelope.sequence_number, activated.previous_version, rule_set)
        store.put(store.active_rule_sets, policy_id, active)
        former_shadow = store.shadows.get(policy_id)
        if former_shadow is not None and former_shadow.version == version:
            store.drop(store.shadows, policy_id)
    _refresh_actions(store)


def _deactivate_rule_set(store: Store, envelope: Envelope) -> None:
    deactivated = envelope.fact.rule_set_deactivated
    is_shadow = deactivated.mode == fact_pb2.ACTIVATION_MODE_SHADOW
    store.drop(store.shadows if is_shadow else store.active_rule_sets, deactivated.policy_id)
    _refresh_actions(store)


def _open_counters(store: Store, envelope: Envelope) -> None:
    opened = envelope.fact.counters_opened
    counters = store.rule_sets[opened.policy_id, opened.version].rule_set.counters
    open_counters(store, [counter for counter in counters.values() if counter.digest in opened.digests], opened.policy_id, opened.version)


def _deploy_grants(store: Store, envelope: Envelope) -> None:
    deployed = envelope.fact.grants_deployed
    attestation = envelope.attestation
    # Compiled from the canonical text, grants are the same on every replica.
    grants = compile_grants(deployed.canonical_json)
    record = DeployedGrants(
        grants.name,
        grants.version,
        grants.digest,
        deployed.document,
        deployed.canonical_json,
        envelope.sequence_number,
        store.recorded_at_ms,
        deployed.principal,
        attestation.method,
    )
    store.put(store.grants_versions, record.version, record)
    for version in sorted(store.grants_versions, key=lambda one: store.grants_versions[one].sequence_number)[:-GRANTS_VERSIONS_MAX]:
        store.drop(store.grants_versions, version)
    store.set("grants_in_force", GrantsInForce(record, grants, binds_anonymous(attestation.method)))


def _refresh_actions(store: Store) -> None:
    active = {policy_id: active.rule_set for policy_id, active in store.active_rule_sets.items()}
    drop_unused_counters(store)
    store.set("active_actions", actions_by_type(active.values()))
    store.set("shadows_by_action", shadows_by_type(active, store.shadows, store.semantics))


_TRANSITIONS: Final[Mapping[str, Callable[[Store, Envelope], None]]] = {
    "bus_opened": _open_bus,
    "arbiter_version_changed": _change_arbiter_version,
    "cross_check_changed": _change_cross_check,
    "clock_accepted": _accept_clock,
    "rule_set_deployed": _deploy_rule_set,
    "rule_set_activated": _activate_rule_set,
    "rule_set_deactivated": _deactivate_rule_set,
    "counters_opened": _open_counters,
    "counter_filled": lambda store, envelope: fill_counter(store, envelope.fact.counter_filled),
    "grants_deployed": _deploy_grants,
    "tool_contract_registered": register_contract,
    "tool_provider_registered": register_provider,
    "tool_bound": bind_tool,
    "tool_unbound": unbind_tool,
}
