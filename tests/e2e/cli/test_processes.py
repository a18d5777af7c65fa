"""The commands that run until a signal stops them: `serve`, `executor`, `fdr` and `log tail --follow`."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel_client import SyncGavelClient, fact_envelope, proposal_envelope, reference
from gavel_server.process.allocator import TUNABLES_VARIABLE

from tests.e2e.cli.programs import gavel, play
from tests.e2e.runs import RUN_SECONDS_MAX, forker
from tests.e2e.world import AGENT, DEPOT, GAVEL, Server

HANDLERS = """
from gavel_client.handlers import ExecutionContext, Handlers, HandlerResult

handlers = Handlers()


@handlers.action("parcel.send")
async def send(context: ExecutionContext) -> HandlerResult:
    return HandlerResult.success({"weight": context.params["weight"]})
"""


@contextmanager
def running(*arguments: str | Path, program: Sequence[str] = (), **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run `gavel`, by default a fork of it, for as long as the context lasts."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
    command = [*(program or forker().command()), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean | environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    """Return the first line of the process's output."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def stop(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    """Send a signal; return the exit status and the rest of stdout and stderr."""
    process.send_signal(number)
    out, err = process.communicate(timeout=RUN_SECONDS_MAX)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("number", "program"), [(signal.SIGTERM, [GAVEL]), (signal.SIGINT, ["/bin/sh", "-c", f"exec '{GAVEL}' \"$@\" <&-", "sh"])]
)
def test_serve_and_stop(tmp_path: Path, number: signal.Signals, program: list[str]) -> None:
    """A server prints on stdout only that it is ready, with its address; a signal ends it with exit status 0.

    It needs no standard input.
    """
    with running("serve", "--listen", "127.0.0.1:0", "--data", tmp_path / "data", program=program) as process:
        line = first_line(process)
        assert line.startswith("gavel: ready on 127.0.0.1:")
        assert 0 == gavel("status", "--server", line.removeprefix("gavel: ready on ")).returncode
        status, out, _ = stop(process, number)
        assert (0, "") == (status, out)
    assert 0 == gavel("replay", "--data", tmp_path / "data").returncode


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of the GNU C library")
def test_serve_with_tunables(tmp_path: Path) -> None:
    """An installed server has its allocator's tunables; its children do not."""
    with running("serve", "--listen", "127.0.0.1:0", "--data", tmp_path / "data", program=[GAVEL]) as process:
        assert first_line(process).startswith("gavel: ready on ")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children
        assert [pid for pid in (str(process.pid), *children) if f"\0{TUNABLES_VARIABLE}=" in _environment(pid)] == [str(process.pid)]


def _environment(pid: str) -> str:
    return "\0" + Path(f"/proc/{pid}/environ").read_text()


def test_serve_by_environment_and_file(tmp_path: Path) -> None:
    """Settings come from the environment and from a file; the environment takes precedence."""
    (tmp_path / "gavel.toml").write_text(f'listen = "unix:{tmp_path}/gavel.sock"\nlog_json = true\ndata = "nowhere"\n')
    with running("serve", "--config", tmp_path / "gavel.toml", GAVEL_DATA=str(tmp_path / "data")) as process:
        assert f"gavel: ready on unix:{tmp_path}/gavel.sock" == first_line(process)
        status, _, err = stop(process, signal.SIGTERM)
        assert 0 == status
        assert '"event": "server.ready"' in err
    assert (tmp_path / "data").is_dir()


def test_one_server_per_directory_and_port(shop: Server, tmp_path: Path) -> None:
    """A second server on a data directory or a port fails with one sentence and exit status 1."""
    result = gavel("serve", "--listen", "127.0.0.1:0", "--data", shop.data)
    assert (1, "") == (result.returncode, result.stdout)
    assert f"gavel: another gavel serve (pid {shop.running.pid}) uses {shop.data}; stop it, or give another directory" in result.stderr
    result = gavel("serve", "--listen", shop.address, "--data", tmp_path / "data")
    assert (1, "") == (result.returncode, result.stdout)
    assert f"gavel: cannot listen on {shop.address}" in result.stderr
    assert "Traceback" not in result.stderr


def test_serve_beyond_this_machine(tmp_path: Path) -> None:
    """Listening beyond this machine needs --allow-unauthenticated-network, and prints a warning."""
    result = gavel("serve", "--listen", "0.0.0.0:0", "--data", tmp_path / "data")
    assert (2, "") == (result.returncode, result.stdout)
    assert "--allow-unauthenticated-network" in result.stderr
    with running("serve", "--listen", "0.0.0.0:0", "--data", tmp_path / "data", "--allow-unauthenticated-network") as process:
        assert first_line(process).startswith("gavel: ready on 0.0.0.0:")
        status, _, err = stop(process, signal.SIGTERM)
        assert 0 == status
        assert "gavel: NO AUTHENTICATION on 0.0.0.0:0: anyone who reaches it can act as any producer" in err


def test_executor_and_fdr(tmp_path: Path) -> None:
    """An executor process carries out an approval, and a reactor process derives the fact."""
    data, module = tmp_path / "data", tmp_path / "parcels.py"
    module.write_text(HANDLERS)
    with running("serve", "--listen", "127.0.0.1:0", "--data", data, "--no-fdr") as server:
        address = first_line(server).removeprefix("gavel: ready on ")
        decision = play(address)["light"]
        common = ("--data", data, "--server", address)
        with (
            running("executor", module, "--id", "courier", *common) as executor,
            running("fdr", *common) as reactor,
            SyncGavelClient(address) as client,
        ):
            assert "gavel: executor courier carries out parcel.send on bus default" == first_line(executor)
            assert "gavel: deriving facts on bus default" == first_line(reactor)
            events: list[Envelope] = []
            for response in client.subscribe_events(from_sequence_number=decision.sequence_number, timeout_ms=60_000):
                events.append(response.envelope)
                if response.envelope.fact.decision_id == decision.event_id:
                    break
            reports = [event for event in events if event.execution.status == EXECUTION_STATUS_SUCCESS]
            assert [("courier", 5.0)] == [(event.producer.id, event.execution.result.fields["weight"].number_value) for event in reports]
            assert 0 == stop(executor, signal.SIGTERM)[0]
            assert 0 == stop(reactor, signal.SIGINT)[0]
        assert 0 == stop(server, signal.SIGTERM)[0]
    result = gavel("replay", "--data", data)
    assert (0, "proved: 16 events, 3 decisions recomputed equal\n") == (result.returncode, result.stdout)


def test_executor_by_server_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given only --server, an executor takes its work from the server."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parcels.py").write_text(HANDLERS)
    with running("serve", "--listen", "127.0.0.1:0") as server:
        address = first_line(server).removeprefix("gavel: ready on ")
        decision = play(address)["light"]
        with running("executor", "parcels.py", "--server", address) as executor, SyncGavelClient(address) as client:
            assert "gavel: executor gavel-executor carries out parcel.send on bus default" == first_line(executor)
            for response in client.subscribe_events(from_sequence_number=decision.sequence_number, timeout_ms=60_000):
                if response.envelope.execution.status == EXECUTION_STATUS_SUCCESS:
                    break
            assert 0 == stop(executor, signal.SIGTERM)[0]


NOTES = """
gavel: v1
rule_set: notes
version: 1
actions:
  note.write:
    params:
      type: object
      required: [path, text]
      additionalProperties: false
      properties: {path: {type: string}, text: {type: string}}
    facts:
      status: {key: note.status, type: string, max_age_ms: 60000, sources: [depot]}
    decision_ttl_ms: 60000
rules:
  - {id: open, action: note.write, priority: 1, when: facts.status == "open", effect: approve}
"""
NOTE_HANDLERS = """
from gavel_client.handlers import ExecutionContext, Handlers, HandlerResult

handlers = Handlers()

@handlers.action("note.write")
def write(context: ExecutionContext) -> HandlerResult:
    return context.call_tool_blocking("fs.write_text").handler_result()
"""


def test_executor_with_tools(shop: Server, bus: str, tmp_path: Path) -> None:
    """Handlers of `gavel executor --tools` call the tools of a profile; a wrong profile ends it at once."""
    (tmp_path / "work").mkdir()
    module, profile = tmp_path / "notes.py", tmp_path / "tools.yaml"
    module.write_text(NOTE_HANDLERS)
    profile.write_text("{runtime: tools-1, providers: {workspace: {directory: work}}}")
    at = ("--server", shop.address, "--bus", bus)
    with SyncGavelClient(shop.address, bus=bus) as client:
        client.deploy_rule_set(NOTES)
        client.activate_rule_set("notes", 1)
        assert 0 == gavel("tools", "register", "--shipped", *at).returncode
        fact = client.publish_event(fact_envelope("note/1", DEPOT, key="note.status", value="open")).envelope
        params = {"path": "/workspace/note.txt", "text": "hello"}
        options = {"action_type": "note.write", "params": params, "max_fact_age_ms": 60_000, "based_on_events": [reference(fact)]}
        decision = client.submit_proposal(proposal_envelope("note/1", AGENT, **options)).decision  # type: ignore[arg-type]  # one dict
        with running("executor", module, "--tools", profile, *at) as executor:
            for response in client.subscribe_events(from_sequence_number=decision.sequence_number, timeout_ms=60_000):
                if response.envelope.execution.status == EXECUTION_STATUS_SUCCESS:
                    break
            assert 0 == stop(executor, signal.SIGTERM)[0]
    assert "hello" == (tmp_path / "work/note.txt").read_text()
    profile.write_text("{runtime: tools-1, providers: {workspace: {directory: none}}}")
    wrong = gavel("executor", module, "--tools", profile, *at)
    assert (1, True) == (wrong.returncode, "providers.workspace" in wrong.stderr)


def test_log_tail_waits_for_a_bus(shop: Server, bus: str) -> None:
    """`log tail --follow` of a bus that does not exist says that it waits, and prints the events once a write opens the bus."""
    with (
        running("log", "tail", "--follow", "--bus", bus, "--server", shop.address) as tail,
        SyncGavelClient(shop.address, bus=bus) as client,
    ):
        assert tail.stderr is not None
        assert "gavel: the bus does not exist yet; waiting for the first write to it\n" == tail.stderr.readline()
        client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready"))
        assert "BusOpened" in first_line(tail)
        assert "parcel/1" in first_line(tail)
        status, _, err = stop(tail, signal.SIGINT)
        assert (130, "") == (status, err)
