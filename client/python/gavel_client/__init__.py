"""Gavel's Python client.

`GavelClient` (asyncio) and `SyncGavelClient` call the server; `envelopes` builds the events that they send. `executor` carries
out approved decisions with the functions of `handlers`. `consumers` reads the work queues and derives facts from executions.
`agents` holds the proposal loop, providers of evidence, and triggers. `llm` calls language models and records the calls. The package
depends on the server's contract only. Its import starts no thread and opens no connection.
"""

from gavel_client.agents.fact_waits import wait_for_facts
from gavel_client.agents.loop_results import LoopResult, StopReason
from gavel_client.agents.proposal_loop import ProposalLoop, SyncProposalLoop
from gavel_client.agents.providers import FactNeed, FactProviders, ToolReading
from gavel_client.agents.trigger_file import load_triggers
from gavel_client.agents.trigger_subscription import PositionFile, TriggerPositions, TriggerSubscription
from gavel_client.agents.triggers import Firing, Trigger
from gavel_client.decisions import explain, to_dict
from gavel_client.envelopes import (
    content_hash,
    diagnostic_envelope,
    execution_envelope,
    fact_envelope,
    new_event_id,
    observation_envelope,
    proposal_envelope,
    reference,
    tool_call_envelope,
    tool_result_envelope,
)
from gavel_client.rpc.checkpoints import checkpoint_after
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.credentials import Certificate, Tls, TokenFile
from gavel_client.rpc.errors import (
    GavelClientError,
    GavelError,
    HandlerError,
    ProviderError,
    RuleSetFileError,
    RunKeyError,
    TriggerFileError,
    Violation,
    WorkQueueError,
)
from gavel_client.rpc.sync import SyncGavelClient
from gavel_client.rule_set_files import load_rule_set

__all__ = [
    "Certificate",
    "FactNeed",
    "FactProviders",
    "Firing",
    "GavelClient",
    "GavelClientError",
    "GavelError",
    "HandlerError",
    "LoopResult",
    "PositionFile",
    "ProposalLoop",
    "ProviderError",
    "RuleSetFileError",
    "RunKeyError",
    "StopReason",
    "SyncGavelClient",
    "SyncProposalLoop",
    "Tls",
    "TokenFile",
    "ToolReading",
    "Trigger",
    "TriggerFileError",
    "TriggerPositions",
    "TriggerSubscription",
    "Violation",
    "WorkQueueError",
    "checkpoint_after",
    "content_hash",
    "diagnostic_envelope",
    "execution_envelope",
    "explain",
    "fact_envelope",
    "load_rule_set",
    "load_triggers",
    "new_event_id",
    "observation_envelope",
    "proposal_envelope",
    "reference",
    "to_dict",
    "tool_call_envelope",
    "tool_result_envelope",
    "wait_for_facts",
]
