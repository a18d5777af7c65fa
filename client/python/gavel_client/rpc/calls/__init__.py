"""Descriptions of the contract's calls, by service.

These functions perform no call. `client.GavelClient` awaits the described call and `sync.SyncGavelClient` blocks on it; the methods of
both are generated from here (`make methods`). An empty `bus` means the client's. `timeout_ms` is the deadline of
the whole call, including retries and pauses; for a stream None means no deadline.
"""

from gavel_client.rpc.calls.administration import (
    create_bus,
    deploy_grants,
    get_grants,
    list_buses,
    list_grants,
    upgrade_bus,
    validate_grants,
    who_am_i,
)
from gavel_client.rpc.calls.arbitration import (
    batch_preflight,
    batch_submit_proposals,
    poll_ms,
    preflight,
    resolve_review,
    revoke_decision,
    stream_proposals_request,
    submit_proposal,
    wait_decision,
)
from gavel_client.rpc.calls.audits import audit_decision, audit_trace
from gavel_client.rpc.calls.events import (
    accept_clock,
    accept_loss,
    batch_publish_events,
    get_event,
    get_trace,
    list_events,
    publish_event,
    subscribe_events,
)
from gavel_client.rpc.calls.executions import begin_execution, renew_execution, report_execution
from gavel_client.rpc.calls.projections import get_projection, get_status, list_pending_decisions, list_pending_reviews
from gavel_client.rpc.calls.proofs import get_checkpoint, get_consistency_proof, get_inclusion_proof, publish_checkpoint
from gavel_client.rpc.calls.replays import verify_replay
from gavel_client.rpc.calls.rule_sets import (
    activate_rule_set,
    deactivate_rule_set,
    deploy_rule_set,
    get_rule_set,
    list_rule_sets,
    simulate_rule_set,
    validate_rule_set,
)
from gavel_client.rpc.calls.tools import (
    bind_tool,
    list_bindings,
    list_contracts,
    list_providers,
    register_contract,
    register_provider,
    resolve_tool,
    unbind_tool,
)
from gavel_client.rpc.calls.work import discard_parked, list_consumers, list_parked, retry_parked

__all__ = [
    "accept_clock",
    "accept_loss",
    "activate_rule_set",
    "audit_decision",
    "audit_trace",
    "batch_preflight",
    "batch_publish_events",
    "batch_submit_proposals",
    "begin_execution",
    "bind_tool",
    "create_bus",
    "deactivate_rule_set",
    "deploy_grants",
    "deploy_rule_set",
    "discard_parked",
    "get_checkpoint",
    "get_consistency_proof",
    "get_event",
    "get_grants",
    "get_inclusion_proof",
    "get_projection",
    "get_rule_set",
    "get_status",
    "get_trace",
    "list_bindings",
    "list_buses",
    "list_consumers",
    "list_contracts",
    "list_events",
    "list_grants",
    "list_parked",
    "list_pending_decisions",
    "list_pending_reviews",
    "list_providers",
    "list_rule_sets",
    "poll_ms",
    "preflight",
    "publish_checkpoint",
    "publish_event",
    "register_contract",
    "register_provider",
    "renew_execution",
    "report_execution",
    "resolve_review",
    "resolve_tool",
    "retry_parked",
    "revoke_decision",
    "simulate_rule_set",
    "stream_proposals_request",
    "submit_proposal",
    "subscribe_events",
    "unbind_tool",
    "upgrade_bus",
    "validate_grants",
    "validate_rule_set",
    "verify_replay",
    "wait_decision",
    "who_am_i",
]
