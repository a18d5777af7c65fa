"""The users that `gavel redis-acl` prints, on the real Redis programs of this machine."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from gavel_rules.redis_keys import head_key, log_key, work_key
from gavel_server.log import empty_head
from gavel_server.log.redis.log import RedisLog

from tests.e2e.cli.programs import gavel
from tests.e2e.world import START_SECONDS_MAX
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


@pytest.fixture(scope="module", params=sorted(redis_programs()))
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    """A Redis that has read the output of `gavel redis-acl` as its ACL file."""
    folder = tmp_path_factory.mktemp("acl")
    printed = gavel("redis-acl")
    assert 0 == printed.returncode, printed.stderr
    passwords = dict(re.findall(r"password of (\S+): (\S+)", printed.stderr))
    assert not any(password in printed.stdout for password in passwords.values())
    (folder / "users.acl").write_text(printed.stdout)
    socket = folder / "redis.sock"
    arguments = ["--port", "0", "--unixsocket", str(socket), "--aclfile", str(folder / "users.acl"), "--dir", str(folder)]
    process = subprocess.Popen([redis_programs()[request.param], *arguments])
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not socket.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield GuardedRedis(socket, passwords)
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
