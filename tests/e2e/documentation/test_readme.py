"""The sessions in the documentation, executed: the README's, those of other pages, and the Python example."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.documentation.sessions import ADDRESS, SESSION_TIMEOUT_SECONDS, assert_shown, blocks, free_address, shell
from tests.support.llm.transcripts import Reply, TranscriptServer
from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(SESSION_TIMEOUT_SECONDS + 20)


def test_sessions(tmp_path: Path) -> None:
    """The README's sessions run to their end, one after the other, and print what the README shows."""
    readme = ROOT / "README.md"
    address = free_address()
    # The virtual environment of this process replaces the one that the page sets up.
    script = "\n".join(blocks(readme, "sh")).replace("make setup\n", "").replace("$PWD/.venv/bin:", "").replace(ADDRESS, address)

    assert_shown(readme, script, tmp_path, address, installed=False)


@pytest.mark.long
def test_tutorial(tmp_path: Path) -> None:
    """The tutorial runs to its end and prints what it shows."""
    page = ROOT / "docs/tutorial.md"
    address = free_address()
    script = "\n".join(blocks(page, "sh")).replace("$PWD/.venv/bin:", "")
    assert_shown(page, script, tmp_path, address, installed=False)


def test_proofs(tmp_path: Path) -> None:
    """The session of the page on proofs, from nothing to a verified proof, runs to its end and prints what the page shows."""
    page = ROOT / "docs/proofs.md"
    script = "\n".join(blocks(page, "sh")).replace("$PWD/.venv/bin:", "")
    assert_shown(page, script, tmp_path, free_address(), installed=False)


@pytest.mark.long
def test_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session of the page on models runs to its end, with the provider's SDK on transcripts, and prints what the page shows."""
    page = ROOT / "docs/models.md"
    script = "\n".join(blocks(page, "sh")).replace("$PWD/.venv/bin:", "")
    with TranscriptServer() as models:
        models.replies.extend([Reply("parallel_tools"), Reply("refund"), Reply("final_answer")])
        monkeypatch.setenv("ANTHROPIC_BASE_URL", models.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")
        assert_shown(page, script, tmp_path, free_address(), installed=False)
    assert ["claude-opus-4-6"] * 3 == [request.body["model"] for request in models.requests]


def test_python_example(tmp_path: Path) -> None:
    """The first Python examples of clients.md run unchanged: the order system's, and the agent's, which prints the missing facts."""
    address = free_address()
    agent, orders = tmp_path / "agent.py", tmp_path / "orders.py"
    for path, text in zip((agent, orders), blocks(ROOT / "docs/clients.md", "python")[:2], strict=True):
        path.write_text(text.replace(ADDRESS, address))
    script = f"""
    cd "$(mktemp -d)"
    gavel serve --data data > serve.log 2>&1 &
    until gavel status > status.txt 2>&1; do sleep 1; done
    gavel rules deploy {ROOT}/rules/sets/refunds.yaml --activate > deployed.txt
    python {orders}
    python {agent}
    kill %1
    wait
    """

    with shell(script, tmp_path, address, installed=True) as process:
        output, _ = process.communicate(timeout=SESSION_TIMEOUT_SECONDS)

    assert (0, "OUTCOME_REJECTED NEED_MORE_FACTS") == (process.returncode, output.splitlines()[0]), output
    assert "missing: order.total of order/7" in output
