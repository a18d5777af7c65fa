"""Calls of the contract: asynchronous and synchronous clients, connections, retries, paging and errors."""

from gavel_client.rpc.backoff import Backoff
from gavel_client.rpc.checkpoints import checkpoint_after
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelClientError, GavelError, Violation
from gavel_client.rpc.paging import pages, sync_pages
from gavel_client.rpc.sync import SyncGavelClient

__all__ = [
    "Backoff",
    "GavelClient",
    "GavelClientError",
    "GavelError",
    "SyncGavelClient",
    "Violation",
    "checkpoint_after",
    "pages",
    "sync_pages",
]
