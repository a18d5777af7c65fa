"""The sessions in the documentation, executed: the README's sessions, the tutorial, and the Python example.

grpcurl is a Go program that a test machine need not have; a few lines of Python stand in for it and make the same calls with the
same JSON.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.runs import forker
from tests.support.llm.transcripts import Reply, TranscriptServer
from tests.support.paths import ROOT
from tests.support.ports import free_port

BIN: Final = Path(sys.executable).parent
ADDRESS: Final = "127.0.0.1:9090"
# Only a session that hangs takes longer.
SESSION_TIMEOUT_SECONDS: Final = 500

pytestmark = pytest.mark.timeout(SESSION_TIMEOUT_SECONDS + 20)

GRPCURL: Final = f"""#!{sys.executable}
import importlib, re, sys
import grpc
from google.protobuf import json_format, message_factory

plaintext, _, text, address, method = sys.argv[1:]
service, _, name = method.partition("/")
module = re.sub(r"(?<!^)(?=[A-Z])", "_", service.rpartition(".")[2]).lower()
services = importlib.import_module(f"gavel.v1.{{module}}_pb2").DESCRIPTOR.services_by_name
called = services[service.rpartition(".")[2]].methods_by_name[name]
request = json_format.Parse(text, message_factory.GetMessageClass(called.input_type)())
answer = message_factory.GetMessageClass(called.output_type)
with grpc.insecure_channel(address) as channel:
    call = channel.unary_unary(f"/{{method}}", type(request).SerializeToString, answer.FromString)
    print(json_format.MessageToJson(call(request, timeout=100), preserving_proto_field_name=True))
"""

# Replaces `gavel` in long sessions, where the starts of the program would take most of the time. `serve` and `executor`, which the shell
# sends signals to, still run the installed program.
GAVEL: Final = f"""#!{sys.executable} -IS
import json, os, socket, sys

arguments = sys.argv[1:]
if arguments[0] in ("serve", "executor"):
    os.execv("{BIN}/gavel", ["gavel", *arguments])
here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
request = json.dumps({{"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd()}})
socket.send_fds(socket.socket(fileno=int(os.environ["FORKER"])), [request.encode()], [0, 1, 2, there.fileno()])
here.recv(64)
sys.exit(int(here.recv(64)))
"""


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def _free_address() -> str:
    return f"127.0.0.1:{free_port()}"


@contextmanager
def _shell(script: str, directory: Path, address: str, installed: bool) -> Iterator[subprocess.Popen[str]]:
    """Run a script in a shell and kill everything that it started. `installed`: whether `gavel` is the installed program, or GAVEL."""
    tools = directory / "tools"
    tools.mkdir()
    for name, text in {"grpcurl": GRPCURL, **({} if installed else {"gavel": GAVEL})}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")} | {
        "PATH": f"{tools}:{BIN}:{os.environ['PATH']}",
        "TMPDIR": str(directory),
        "XDG_CONFIG_HOME": str(directory / "config"),
        "COLUMNS": "200",
        "GAVEL_LISTEN": address,
        "GAVEL_SERVER": address,
        "FORKER": str(forker().fileno()),
    }
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environment,
        pass_fds=[forker().fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_sessions(tmp_path: Path) -> None:
    """The README's sessions run to their end, one after the other, and print what the README shows."""
    readme = ROOT / "README.md"
    address = _free_address()
    # The virtual environment of this process replaces the one that the page sets up.
    script = "\n".join(_blocks(readme, "sh")).replace("make setup\n", "").replace("$PWD/.venv/bin:", "").replace(ADDRESS, address)

    _assert_shown(readme, script, tmp_path, address, installed=False)


def test_tutorial(tmp_path: Path) -> None:
    """The tutorial runs to its end and prints what it shows."""
    page = ROOT / "docs/tutorial.md"
    address = _free_address()
    script = "\n".join(_blocks(page, "sh")).replace("$PWD/.venv/bin:", "")
    _assert_shown(page, script, tmp_path, address, installed=False)


def test_proofs(tmp_path: Path) -> None:
    """The session of the page on proofs, from nothing to a verified proof, runs to its end and prints what the page shows."""
    page = ROOT / "docs/proofs.md"
    script = "\n".join(_blocks(page, "sh")).replace("$PWD/.venv/bin:", "")
    _assert_shown(page, script, tmp_path, _free_address(), installed=False)


def test_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session of the page on models runs to its end, with the provider's SDK on transcripts, and prints what the page shows."""
    page = ROOT / "docs/models.md"
    script = "\n".join(_blocks(page, "sh")).replace("$PWD/.venv/bin:", "")
    with TranscriptServer() as models:
        models.replies.extend([Reply("parallel_tools"), Reply("refund"), Reply("final_answer")])
        monkeypatch.setenv("ANTHROPIC_BASE_URL", models.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")
        _assert_shown(page, script, tmp_path, _free_address(), installed=False)
    assert ["claude-opus-4-6"] * 3 == [request.body["model"] for request in models.requests]


def _assert_shown(page: Path, script: str, directory: Path, address: str, *, installed: bool) -> None:
    """Run the script of a page; its output must have the lines that the page shows, in their order.

    The page may cut a line short with "…" and lay columns out closer; times differ.
    """
    with _shell(script, directory, address, installed) as process:
        output, _ = process.communicate(timeout=SESSION_TIMEOUT_SECONDS)

    assert process.returncode == 0, output
    output_lines = iter(output.splitlines())
    page_lines = [line for block in _blocks(page, "text") for line in block.splitlines() if line.strip("… ")]
    missing = [line for line in page_lines if not any(_pattern(line).match(one) for one in output_lines)]
    assert [] == missing[:1], output


def _pattern(shown: str) -> re.Pattern[str]:
    words = (r"\S+" if re.match(r"\d{4}-\d\d-", word) else ".*".join(map(re.escape, word.split("…"))) for word in shown.split())
    return re.compile(r"\s*" + r"\s+".join(words))


def test_python_example(tmp_path: Path) -> None:
    """The first Python example of clients.md runs unchanged and prints a decision with the missing facts."""
    address = _free_address()
    example = tmp_path / "example.py"
    example.write_text(_blocks(ROOT / "docs/clients.md", "python")[0].replace(ADDRESS, address))
    script = f"""
    cd "$(mktemp -d)"
    gavel serve --data data > serve.log 2>&1 &
    until gavel status > status.txt 2>&1; do sleep 1; done
    gavel rules deploy {ROOT}/rules/sets/refunds.yaml --activate > deployed.txt
    python {example}
    kill %1
    wait
    """

    with _shell(script, tmp_path, address, installed=True) as process:
        output, _ = process.communicate(timeout=SESSION_TIMEOUT_SECONDS)

    assert (0, "OUTCOME_REJECTED NEED_MORE_FACTS") == (process.returncode, output.splitlines()[0]), output
    assert "missing: order.total of order/7" in output
