"""A server that cannot start prints the reason and a remedy in one sentence, not an unexpected error."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from gavel_server.log import Entry
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.log.redis.logs import RedisLogs

from tests.e2e.runs import forker
from tests.support.driver import BUS, WEEK_MS, Core


def _serve(data: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [*forker().command(), "serve", "--listen", "127.0.0.1:0", "--data", str(data), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **variables})


def test_refused_password_ends_the_start(tmp_path: Path, redis_url: str) -> None:
    """A Redis that refuses the password ends the start with a sentence that masks it."""
    process = _serve(tmp_path, GAVEL_REDIS=redis_url.replace("unix://", "unix://nobody:secret@"))
    assert (1, "") == (process.returncode, process.stdout)
    assert "gavel: bus default cannot be opened: cannot connect to Redis at unix://***@/" in process.stderr
    assert "secret" not in process.stderr
    assert "this is a bug" not in process.stderr


def test_password_on_the_command_line_is_refused(tmp_path: Path) -> None:
    """A Redis URL with a password is refused on the command line, and the message names the way that works."""
    process = _serve(tmp_path, "--redis", "redis://gavel:secret@127.0.0.1:9")
    assert (2, "") == (process.returncode, process.stdout)
    assert "give the URL in the environment, as GAVEL_REDIS" in process.stderr
    assert "secret" not in process.stderr


@pytest.mark.parametrize(("name", "remedy"), [("token_file", "; gavel token create makes it"), ("tls_cert", "")])
def test_missing_files_of_credentials_are_named(tmp_path: Path, name: str, remedy: str) -> None:
    """A file of the settings that does not exist ends the start with its setting, its path and, for tokens, the command that makes it."""
    variables = {"GAVEL_TOKEN_FILE": "/nowhere"} if name == "token_file" else {"GAVEL_TLS_CERT": "/nowhere", "GAVEL_TLS_KEY": "/nowhere"}
    process = _serve(tmp_path, GAVEL_AUTHENTICATION="required" if name == "token_file" else "none", **variables)
    assert (1, f"gavel: {name} /nowhere cannot be read: No such file or directory{remedy}\n") == (process.returncode, process.stderr)


def test_unreachable_redis_delays_the_start(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """A server that starts while Redis cannot be reached says so, and is ready once Redis is there."""
    there = tmp_path / "redis.sock"
    command = [*forker().command(), "serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    with subprocess.Popen([*command, "--redis", f"unix://{there}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        line = process.stderr.readline()
        while "log.unavailable" not in line:
            assert line
            line = process.stderr.readline()
        assert process.poll() is None
        there.symlink_to(unquote(urlsplit(redis_server.url).path))
        assert process.stdout.readline().startswith("gavel: ready on ")
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
    assert 0 == process.returncode


async def test_a_log_without_attestations_and_authentication(tmp_path: Path) -> None:
    """A server that requires authentication does not start on a bus whose events cannot name their caller, and says what to do."""
    async with EmbeddedRedis(tmp_path) as redis:
        logs = RedisLogs(redis.url)
        log = await logs.open(BUS, idempotency_window_ms=WEEK_MS)
        core = Core(arbiter_version=2)
        for record, event in zip(core.records, core.events, strict=True):
            entry = Entry(record.sequence_number, record.envelope, record.chain_hash, event.event_id, "")
            await log.append(await log.head(), [entry], await log.time_ms(), [])
        await log.close()
        await logs.close()
    tokens = tmp_path / "tokens.toml"
    tokens.touch()
    process = _serve(tmp_path, "--authentication", "required", "--token-file", str(tokens))
    assert (1, "") == (process.returncode, process.stdout)
    assert "gavel: bus default has arbiter version 2, whose events do not name their caller" in process.stderr
    assert "serve this one without authentication" in process.stderr
    assert "this is a bug" not in process.stderr


def test_broken_checkpoint_ends_the_start(tmp_path: Path) -> None:
    """A checkpoint file that cannot be read ends the start with its path and the two ways out."""
    checkpoint = tmp_path / "checkpoint.json"
    checkpoint.write_text("{broken")
    process = _serve(tmp_path)
    assert 1 == process.returncode
    assert f"gavel: {checkpoint} is not a checkpoint of acknowledged events" in process.stderr
    assert "restore it, or remove it to accept what the log holds" in process.stderr
    assert "this is a bug" not in process.stderr


@contextmanager
def _starting(tmp_path: Path, **variables: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a server whose Redis does not become ready; yield it and the process id of its Redis."""
    programs = tmp_path / "bin"
    programs.mkdir()
    redis = programs / "redis-server"
    redis.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Redis server v=99.0.0' && exit\necho $$ > redis.pid\nexec sleep 600\n")
    redis.chmod(0o755)
    data = tmp_path / "data"
    command = [*forker().command(), "serve", "--listen", "127.0.0.1:0", "--data", str(data)]
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", **variables}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            process_file = data / "redis.pid"
            while not (process_file.exists() and process_file.read_text().strip()):
                assert process.poll() is None
                time.sleep(0.02)
            yield process, int(process_file.read_text())
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stop_during_the_start(tmp_path: Path, number: signal.Signals) -> None:
    """A server that gets SIGTERM, SIGINT or SIGHUP before it is ready ends with exit status 0, and its Redis ends too."""
    with _starting(tmp_path) as (process, redis):
        process.send_signal(number)
        output, log = process.communicate(timeout=60)
    assert (0, "") == (process.returncode, output)
    assert "server.stopped" in log
    assert "Traceback" not in log
    with pytest.raises(ProcessLookupError):
        os.kill(redis, 0)


def test_hangup_during_the_start(tmp_path: Path) -> None:
    """SIGHUP does not stop a server with files of credentials while its Redis loads the log: new ones are read after that."""
    tokens = tmp_path / "tokens.toml"
    tokens.touch(0o600)
    with _starting(tmp_path, GAVEL_AUTHENTICATION="required", GAVEL_TOKEN_FILE=str(tokens)) as (process, redis):
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        os.kill(redis, 0)
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert 0 == process.returncode
    assert "Traceback" not in log
