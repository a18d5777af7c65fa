"""The commands that run until they are told to stop: `serve`, `executor` and `fdr`, as operators run them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel_client import SyncGavelClient

from tests.e2e.cli.programs import gavel, play
from tests.e2e.runs import RUN_SECONDS_MAX
from tests.e2e.world import GAVEL, Server

HANDLERS = """
from gavel_client.handlers import ExecutionContext, Handlers, HandlerResult

handlers = Handlers()


@handlers.action("parcel.send")
async def send(context: ExecutionContext) -> HandlerResult:
    return HandlerResult.success({"weight": context.params["weight"]})
"""


@contextmanager
def running(*arguments: str | Path, program: Sequence[str] = (GAVEL,), **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run `gavel` until the test is done with it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
    process = subprocess.Popen(
        [*program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean | environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    """Return the first line that the process says."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def stopped_by(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    """Send a signal; return exit status and what was said since."""
    process.send_signal(number)
    out, err = process.communicate(timeout=RUN_SECONDS_MAX)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("number", "program"), [(signal.SIGTERM, [GAVEL]), (signal.SIGINT, ["/bin/sh", "-c", f"exec '{GAVEL}' \"$@\" <&-", "sh"])]
)
def test_serve_and_stop(tmp_path: Path, number: signal.Signals, program: list[str]) -> None:
    """A server says on stdout that it is ready, and where, and nothing else; a signal ends it in order, exit status 0.

    It needs no standard input.
    """
    with running("serve", "--listen", "127.0.0.1:0", "--data", tmp_path / "data", program=program) as process:
        line = first_line(process)
        assert line.startswith("gavel: ready on 127.0.0.1:")
        assert 0 == gavel("status", "--server", line.removeprefix("gavel: ready on ")).returncode
        status, out, _ = stopped_by(process, number)
        assert (0, "") == (status, out)
    assert 0 == gavel("replay", "--data", tmp_path / "data").returncode


def test_serve_by_environment_and_file(tmp_path: Path) -> None:
    """Settings come from the environment and from a file as well."""
    (tmp_path / "gavel.toml").write_text(f'listen = "unix:{tmp_path}/gavel.sock"\nlog_json = true\ndata = "nowhere"\n')
    with running("serve", "--config", tmp_path / "gavel.toml", GAVEL_DATA=str(tmp_path / "data")) as process:
        assert f"gavel: ready on unix:{tmp_path}/gavel.sock" == first_line(process)
        status, _, err = stopped_by(process, signal.SIGTERM)
        assert 0 == status
        assert '"event": "server.ready"' in err
    assert (tmp_path / "data").is_dir()


def test_one_server_per_directory_and_port(shop: Server, tmp_path: Path) -> None:
    """A second server on a data directory or a port is refused in one sentence, exit status 1."""
    done = gavel("serve", "--listen", "127.0.0.1:0", "--data", shop.data)
    assert (1, "") == (done.returncode, done.stdout)
    assert f"gavel: another gavel serve (pid {shop.running.pid}) uses {shop.data}; stop it, or give another directory" in done.stderr
    done = gavel("serve", "--listen", shop.address, "--data", tmp_path / "data")
    assert (1, "") == (done.returncode, done.stdout)
    assert f"gavel: cannot listen on {shop.address}" in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_beyond_this_machine(tmp_path: Path) -> None:
    """Listening beyond this machine needs the flag that says what it means, and then is said loudly."""
    done = gavel("serve", "--listen", "0.0.0.0:0", "--data", tmp_path / "data")
    assert (2, "") == (done.returncode, done.stdout)
    assert "--allow-unauthenticated-network" in done.stderr
    with running("serve", "--listen", "0.0.0.0:0", "--data", tmp_path / "data", "--allow-unauthenticated-network") as process:
        assert first_line(process).startswith("gavel: ready on 0.0.0.0:")
        status, _, err = stopped_by(process, signal.SIGTERM)
        assert 0 == status
        assert "gavel: NO AUTHENTICATION on 0.0.0.0:0: whoever reaches it may claim to be any producer" in err


def test_executor_and_fdr(tmp_path: Path) -> None:
    """An executor carries out what was approved, and a reactor of its own derives the fact, each as a process."""
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
            seen: list[Envelope] = []
            for response in client.subscribe_events(from_sequence_number=decision.sequence_number, timeout_ms=60_000):
                seen.append(response.envelope)
                if response.envelope.fact.decision_id == decision.event_id:
                    break
            reports = [event for event in seen if event.execution.status == EXECUTION_STATUS_SUCCESS]
            assert [("courier", 5.0)] == [(event.producer.id, event.execution.result.fields["weight"].number_value) for event in reports]
            assert 0 == stopped_by(executor, signal.SIGTERM)[0]
            assert 0 == stopped_by(reactor, signal.SIGINT)[0]
        assert 0 == stopped_by(server, signal.SIGTERM)[0]
    done = gavel("replay", "--data", data)
    assert (0, "proved: 16 events, 3 decisions recomputed equal\n") == (done.returncode, done.stdout)
