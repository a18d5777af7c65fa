"""The modules of the adapters: their size, and the error without their framework."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gavel_client.adapters
import pytest

from tests.support.paths import ROOT

LINES_MAX = 90
FOLDER = Path(gavel_client.adapters.__path__[0])
HELPERS = {"__init__", "adk_calls", "approved_tool", "extras", "graph_events", "graph_turns", "openai_calls", "pydantic_calls"}
ADAPTERS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in HELPERS)
# The module of each framework that an adapter imports first, and the extra of the client that brings it.
FRAMEWORKS = {
    "crewai": ("crewai", "crewai"),
    "google_adk": ("google.adk", "google-adk"),
    "graph_transitions": ("langchain_core", "langgraph"),
    "langgraph": ("langchain", "langgraph"),
    "openai_agents": ("agents", "openai-agents"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "temporal": ("temporalio", "temporal"),
}


def test_every_adapter_is_known_here() -> None:
    """The table of this test names every adapter."""
    assert sorted(FRAMEWORKS) == ADAPTERS


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_is_thin(adapter: str) -> None:
    """An adapter has at most 90 lines: everything else is the gate's."""
    assert len((FOLDER / f"{adapter}.py").read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_without_its_framework_names_its_extra(adapter: str) -> None:
    """Importing an adapter without its framework raises an ImportError that says how to install it."""
    framework, extra = FRAMEWORKS[adapter]
    code = f"import sys; sys.modules[{framework!r}] = None; import gavel_client.adapters.{adapter}"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert f'ImportError: this adapter needs the extra {extra}; install it: pip install "gavel-client[{extra}]"' in finished.stderr
