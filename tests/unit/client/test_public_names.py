"""The public names of the client: users import them from the package and its subpackages."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

PUBLIC_NAMES = {
    "gavel_client": ["GavelClient", "GavelError", "ProposalLoop", "SyncGavelClient", "TriggerSubscription", "fact_envelope"],
    "gavel_client.agents": ["FactProviders", "LoopResult", "ProposalLoop", "Trigger", "load_triggers"],
    "gavel_client.consumers": ["Consumer", "FactDerivationReactor", "WorkQueue"],
    "gavel_client.executor": ["Executor"],
    "gavel_client.handlers": ["ExecutionContext", "HandlerResult", "Handlers"],
    "gavel_client.rpc": ["Backoff", "GavelClient", "GavelError", "SyncGavelClient", "pages", "sync_pages"],
    "gavel_client.values": ["from_struct", "from_value", "to_struct", "to_value"],
}


@pytest.mark.parametrize(("module", "names"), PUBLIC_NAMES.items())
def test_public_names(module: str, names: list[str]) -> None:
    """Each package exports its main names, and `__all__` lists only names that exist."""
    imported = import_module(module)
    listed = getattr(imported, "__all__", names)
    assert [] == [name for name in {*names, *listed} if not hasattr(imported, name)]
    assert set(names) <= set(listed)


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_import_order(module: str) -> None:
    """Each package can be imported first: there are no import cycles."""
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, timeout=60)
