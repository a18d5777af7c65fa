"""Gavel's Python client.

`GavelClient` (asyncio) and `SyncGavelClient` speak the contract; `envelopes` builds what they send. `executor` carries out
approved decisions, `fdr` derives facts from executions, both over the work queues of `work_queue`. The package knows the server
by its contract only, and starts no thread and opens no connection at import.
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
from gavel_client.errors import GavelClientError, GavelError, HandlerError, Violation, WorkQueueError
from gavel_client.sync import SyncGavelClient

__all__ = [
    "GavelClient",
    "GavelClientError",
    "GavelError",
    "HandlerError",
    "SyncGavelClient",
    "Violation",
    "WorkQueueError",
    "content_hash",
    "diagnostic_envelope",
    "execution_envelope",
    "fact_envelope",
    "new_event_id",
    "observation_envelope",
    "proposal_envelope",
    "reference",
    "tool_call_envelope",
    "tool_result_envelope",
]
