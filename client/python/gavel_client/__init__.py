"""Gavel's Python client.

`GavelClient` (asyncio) and `SyncGavelClient` speak the contract; `envelopes` builds what they send. `executor` carries out
approved decisions, `fdr` derives facts from executions, both over the work queues of `work_queue`. `proposal_loop` plays an agent's
proposals to their end, with the evidence that `providers` get; `trigger_subscription` wakes an agent for what `triggers` name. The
package knows the server by its contract only, and starts no thread and opens no connection at import.
"""

from gavel_client.client import GavelClient
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
from gavel_client.errors import GavelClientError, GavelError, HandlerError, ProviderError, TriggerFileError, Violation, WorkQueueError
from gavel_client.loop_results import LoopResult, StopReason
from gavel_client.proposal_loop import ProposalLoop, SyncProposalLoop
from gavel_client.providers import FactNeed, FactProviders, ToolReading
from gavel_client.sync import SyncGavelClient
from gavel_client.trigger_file import load_triggers
from gavel_client.trigger_subscription import PositionFile, TriggerSubscription
from gavel_client.triggers import Firing, Trigger

__all__ = [
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
    "StopReason",
    "SyncGavelClient",
    "SyncProposalLoop",
    "ToolReading",
    "Trigger",
    "TriggerFileError",
    "TriggerSubscription",
    "Violation",
    "WorkQueueError",
    "content_hash",
    "diagnostic_envelope",
    "execution_envelope",
    "fact_envelope",
    "load_triggers",
    "new_event_id",
    "observation_envelope",
    "proposal_envelope",
    "reference",
    "tool_call_envelope",
    "tool_result_envelope",
]
