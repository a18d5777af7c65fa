"""A server that cannot start says why and what to do, in one sentence, and never calls it a bug."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def _serve(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gavel_server.cli", "serve", "--listen", "127.0.0.1:0", "--data", str(data), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_redis_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """A Redis that is away ends the start with that sentence, without its password."""
    ended = _serve(tmp_path, "--redis", "redis://:secret@127.0.0.1:9")
    assert (1, "") == (ended.returncode, ended.stdout)
    assert "gavel: bus default cannot be opened: cannot connect to Redis at redis://***@127.0.0.1:9" in ended.stderr
    assert "secret" not in ended.stderr
    assert "this is a bug" not in ended.stderr


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    """A checkpoint file that cannot be read ends the start with its path and the two ways out."""
    checkpoint = tmp_path / "checkpoint.json"
    checkpoint.write_text("{broken")
    ended = _serve(tmp_path)
    assert 1 == ended.returncode
    assert f"gavel: {checkpoint} is not a checkpoint of acknowledged events" in ended.stderr
    assert "restore it, or remove it to accept what the log holds" in ended.stderr
    assert "this is a bug" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_can_be_stopped(tmp_path: Path, number: signal.Signals) -> None:
    """A server that is told to end before it is ready ends, with exit status 0, and its Redis with it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    redis = programs / "redis-server"
    redis.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Redis server v=6.2.14' && exit\necho $$ > redis.pid\nexec sleep 600\n")
    redis.chmod(0o755)
    data = tmp_path / "data"
    command = [sys.executable, "-m", "gavel_server.cli", "serve", "--listen", "127.0.0.1:0", "--data", str(data)]
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        started = data / "redis.pid"
        while not (started.exists() and started.read_text().strip()):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        said, log = process.communicate(timeout=60)
    assert (0, "") == (process.returncode, said)
    assert "server.stopped" in log
    assert "Traceback" not in log
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
