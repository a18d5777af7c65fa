"""The users that `gavel redis-acl` prints, on the real Redis programs of this machine."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel_client import SyncGavelClient
from gavel_rules.redis_keys import head_key, log_key, work_key
from gavel_server.log import empty_head
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.work.protocol import GROUP_OF_QUEUE, QueueName

from tests.e2e.cli.programs import gavel, play
from tests.e2e.cli.test_processes import HANDLERS, first_line, running, stop
from tests.e2e.world import GAVEL, START_SECONDS_MAX
from tests.support.entries import NOW_MS, entries_after, records_of
from tests.support.redis.programs import redis_programs


class GuardedRedis:
    """A Redis with the printed users, on a Unix socket."""

    def __init__(self, socket: Path, passwords: dict[str, str]) -> None:
        self.socket = socket
        self.passwords = passwords

    def url(self, user: str) -> str:
        """Return the URL for a user."""
        return f"unix://{user}:{self.passwords[user]}@{self.socket}"


def answers(path: Path) -> bool:
    """Report whether a Redis answers at a socket. The file exists before anybody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)  # an error is an answer: nobody has logged in
        except (FileNotFoundError, ConnectionError):
            return False
    return answer != b"" and not answer.startswith(b"-LOADING")


@pytest.fixture(scope="module", params=sorted(redis_programs()))
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    """A Redis that has read the output of `gavel redis-acl` as its ACL file."""
    folder = tmp_path_factory.mktemp("acl")
    printed = gavel("redis-acl")
    assert 0 == printed.returncode, printed.stderr
    passwords = dict(re.findall(r"password of (\S+): (\S+)", printed.stderr))
    assert not any(password in printed.stdout for password in passwords.values())
    (folder / "users.acl").write_text(printed.stdout)
    path = folder / "redis.sock"
    arguments = ["--port", "0", "--unixsocket", str(path), "--aclfile", str(folder / "users.acl"), "--dir", str(folder)]
    arguments += ["--appendonly", "yes", "--appendfsync", "always"]
    process = subprocess.Popen([redis_programs()[request.param], *arguments])
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not answers(path):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield GuardedRedis(path, passwords)
    finally:
        process.kill()
        process.wait()


async def test_only_the_server_appends(guarded: GuardedRedis, bus: str) -> None:
    """The server's user can do all that a log and its queues need; the others read or consume, and can change neither log nor head."""
    log = await RedisLog.connect(guarded.url("gavel-server"), bus)
    entries = entries_after(empty_head(bus), 2, works=("decisions",))
    await log.append(empty_head(bus), entries, NOW_MS, ["checked"])
    await log.ensure_groups()
    await log.work.join("decisions", "g", "a")
    assert 2 == len(await log.work.take_new("decisions", "g", "a", 9))
    assert await log.work.reject("decisions", "g", "a", 1, 1, 0)
    assert 1 == len(await log.work.take_due("decisions", "g", "a", 9))
    await log.work.remove_silent("decisions", "g", 0)
    await log.work.remove("decisions", [1])
    assert all("does not say" not in reason for reason in await log.durability())
    key, head, queue = log_key(bus), head_key(bus), work_key(bus, "decisions")
    for user in ("gavel-reader", "gavel-work"):
        with redis.Redis.from_url(guarded.url(user), protocol=2) as other:
            assert 1 == len(other.execute_command("XRANGE", queue, "-", "+"))
            for command in (
                ("XADD", key, "*", "e", "x"),
                ("XADD", queue, "*", "e", "x"),
                ("HSET", head, "sequence_number", "0"),
                ("DEL", key),
                ("XTRIM", key, "MAXLEN", "0"),
                ("EVAL", "return redis.call('XADD', KEYS[1], '*', 'e', 'x')", 1, key),
                ("FLUSHALL",),
                ("ACL", "SETUSER", user, "allcommands"),
            ):
                with pytest.raises(redis.RedisError, match=r"(?i)permission|ACL failure|can't run|Error running script"):
                    other.execute_command(*command)
    with redis.Redis(unix_socket_path=str(guarded.socket), protocol=2) as nobody, pytest.raises(redis.RedisError):
        nobody.execute_command("XLEN", key)
    assert records_of(entries) == await log.read(1, 9)
    await log.close()


@pytest.mark.long
def test_processes_with_their_users(guarded: GuardedRedis, tmp_path: Path) -> None:
    """A server, an executor, a reactor and a replay work with the printed users, each with its own; a password is no argument."""
    work = {"GAVEL_WORK_REDIS": guarded.url("gavel-work")}
    (tmp_path / "parcels.py").write_text(HANDLERS)
    serve = ("serve", "--listen", "127.0.0.1:0", "--data", tmp_path / "data", "--no-fdr")
    with running(*serve, GAVEL_REDIS=guarded.url("gavel-server")) as server:
        address = first_line(server).removeprefix("gavel: ready on ")
        decision = play(address)["light"]
        executor_command = ("executor", tmp_path / "parcels.py", "--server", address)
        with (
            running(*executor_command, program=[GAVEL], **work) as executor,
            running("fdr", "--server", address, program=[GAVEL], **work) as reactor,
            SyncGavelClient(address) as client,
            redis.Redis.from_url(guarded.url("gavel-server"), protocol=2) as connection,
        ):
            assert "gavel: executor gavel-executor carries out parcel.send on bus default" == first_line(executor)
            assert "gavel: deriving facts on bus default" == first_line(reactor)
            statuses = []
            for response in client.subscribe_events(from_sequence_number=decision.sequence_number, timeout_ms=60_000):
                statuses.append(response.envelope.execution.status)
                if response.envelope.fact.decision_id == decision.event_id:
                    break
            assert EXECUTION_STATUS_SUCCESS in statuses
            # They have read Redis themselves: the server's consumers would have its process id in their names.
            queues: list[tuple[subprocess.Popen[str], QueueName]] = [(executor, "decisions"), (reactor, "executions")]
            for process, queue in queues:
                names = [str(one["name"]) for one in connection.xinfo_consumers(work_key("default", queue), GROUP_OF_QUEUE[queue])]
                assert [True] == [f"-{process.pid}-" in name for name in names]
            assert 0 == stop(executor, signal.SIGTERM)[0]
            assert 0 == stop(reactor, signal.SIGTERM)[0]
        assert 0 == stop(server, signal.SIGTERM)[0]
    replay = gavel("replay", GAVEL_REDIS=guarded.url("gavel-reader"))
    assert (0, True) == (replay.returncode, replay.stdout.startswith("proved: ")), replay.stderr
    argument = gavel(*executor_command, "--redis", guarded.url("gavel-work").replace("unix://", "redis://"))
    assert (2, True) == (argument.returncode, "give the URL in the environment, as GAVEL_WORK_REDIS" in argument.stderr)
