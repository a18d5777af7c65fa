"""Editors and type checkers see real signatures of the client, in source."""

from __future__ import annotations

import inspect
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gavel_client
import pytest
from gavel_client import GavelClient, ProposalLoop, SyncGavelClient, SyncProposalLoop
from gavel_client.executor import Executor
from gavel_client.handlers import Handlers
from gavel_client.rpc import calls

from tests.support.paths import ROOT

CALL_TYPES = ("UnaryCall", "StreamCall")
GENERATOR = ROOT / "client/python/generate_methods.py"

PROGRAM = """
from gavel.v1.arbitration_service_pb2 import DECISION_PHASE_CLOSED, SubmitProposalResponse
from gavel.v1.common_pb2 import Producer
from gavel_client import FactProviders, GavelClient, LoopResult, SyncGavelClient, SyncProposalLoop, proposal_envelope, to_dict
from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers

handlers = Handlers()


@handlers.action("refund.create")
def refund(context: ExecutionContext) -> HandlerResult:
    return HandlerResult.success({"cancelled": context.cancelled})


def use(client: SyncGavelClient) -> LoopResult:
    proposal = proposal_envelope("order/1", Producer(), action_type="a.b", params={}, max_fact_age_ms=1, trace_id="t")
    response: SubmitProposalResponse = client.submit_proposal(proposal, timeout_ms=1)
    to_dict(client.wait_decision(response.decision.event_id, phase=DECISION_PHASE_CLOSED))
    client.submit_proposal(proposal, timeout=1)  # type: ignore[call-arg]
    client.submit_proposal("order/1")  # type: ignore[arg-type]
    proposal_envelope("order/1", Producer(), action_type="a.b", params={}, max_fact_age_ms=1, trace="t")  # type: ignore[call-arg]
    SyncProposalLoop(client, FactProviders(), proposals=1)  # type: ignore[call-arg]
    return SyncProposalLoop(client, FactProviders(), proposals_max=1).run(proposal, run_key="task-1")


async def use_async(client: GavelClient) -> str:
    client.submit_proposal().decision  # type: ignore[call-arg,attr-defined]
    return (await client.get_status()).server_version
"""


def _public_functions() -> dict[str, Callable[..., Any]]:
    classes = (GavelClient, SyncGavelClient, ProposalLoop, SyncProposalLoop, Executor, Handlers)
    functions: dict[str, Callable[..., Any]] = {
        f"{owner.__name__}.{name}": function
        for owner in classes
        for name, function in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }
    exported = {name: getattr(gavel_client, name) for name in gavel_client.__all__}
    functions.update((name, value) for name, value in exported.items() if inspect.isfunction(value))
    return functions


@pytest.mark.parametrize("name", _public_functions())
def test_no_parameter_is_hidden(name: str) -> None:
    """No public function takes *args or **kwargs, also not in its source, which editors read."""
    function = _public_functions()[name]
    kinds = {parameter.kind for parameter in inspect.signature(function, follow_wrapped=False).parameters.values()}
    assert kinds.isdisjoint({inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})
    assert not hasattr(function, "__signature__")
    assert function.__code__.co_name == function.__name__


def _described_calls() -> list[str]:
    described = inspect.getmembers(calls, inspect.isfunction)
    return [
        name for name, call in described if not name.startswith("_") and str(call.__annotations__.get("return", "")).startswith(CALL_TYPES)
    ]


@pytest.mark.parametrize("name", _described_calls())
def test_methods_have_the_signatures_of_their_calls(name: str) -> None:
    """A method of either client has the parameters of the described call, with kinds and defaults."""
    described = [(one.name, one.kind, one.default) for one in inspect.signature(getattr(calls, name)).parameters.values()]
    for client_type in (GavelClient, SyncGavelClient):
        _, *parameters = inspect.signature(getattr(client_type, name)).parameters.values()
        assert described == [(one.name, one.kind, one.default) for one in parameters]


def test_generated_methods_are_up_to_date() -> None:
    """The methods of both clients are those that calls/ describes; `make methods` writes them."""
    generator = runpy.run_path(str(GENERATOR))
    for variant in (generator["ASYNC"], generator["SYNC"]):
        assert variant.path.read_text() == generator["generate"](variant), "run make methods"


def test_type_checker_sees_the_signatures(tmp_path: Path) -> None:
    """mypy accepts right calls of the client, and finds each wrong one."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    result = subprocess.run([*command, str(program)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert 0 == result.returncode, result.stdout + result.stderr
