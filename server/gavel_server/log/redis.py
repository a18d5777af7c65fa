"""The log in Redis: a stream per bus, written by one Lua script, `append.lua`, that compares the head and appends all or nothing.

The keys of a bus share its name in braces, so a cluster keeps them together:

    gavel:{bus}:log              stream; entry id <sequence_number>-0, field e: envelope, field h: chain hash
    gavel:{bus}:head             hash; sequence_number, chain_hash, count (entries in the stream), format_version, fence
    gavel:{bus}:work:decisions   stream; approved decisions for executors, same ids and fields
    gavel:{bus}:work:executions  stream; executions for the fact derivation reactor, likewise
    gavel:{bus}:ids:<day>        hash; event_id -> "number" or "number:number of its decision"; expires after the window

An append whose answer was lost may still lie in a socket that Redis has not read. So after one, `head` raises the fence: the
script refuses an append that carries an older one, the lost append can no longer arrive, and the head read in the same
transaction is the last word. Nothing here retries an append whose outcome is unknown, trims the log, or acknowledges work.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from gavel_rules.chain import genesis_hash
from gavel_rules.limits import BUS, IDEMPOTENCY_WINDOW_MS_DEFAULT

from gavel_server.log.entries import Entry, Head, Record, check_sequence
from gavel_server.log.packing import Argument, Command, flags_and_arguments
from gavel_server.log.protocol import (
    DAY_MS,
    READ_LIMIT,
    ConsumerGroup,
    EventIdTakenError,
    HeadMovedError,
    IdEntry,
    LogCorruptError,
    LogUnavailableError,
    NotReplicatedError,
    describe,
    empty_head,
    window_days,
)
from gavel_server.log.wire import REDIS_VERSION_MIN, Wire, reason

FORMAT_VERSION: Final = 1
TIMEOUT_MS_DEFAULT: Final = 5000
READ_CONNECTIONS_MAX: Final = 16
# Lookups sent in one go by read_many and find.
LOOKUPS_MAX: Final = 1000
# An append that others' fences refuse so many times in a row meets a Redis that loses one answer after another.
FENCED_MAX: Final = 5

Item = TypeVar("Item")

GROUP_OF_QUEUE: Final = {"decisions": "executors", "executions": "fdr"}

_SCRIPT: Final = Path(__file__).with_name("append.lua").read_text(encoding="utf-8")
_SCRIPT_DIGEST: Final = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()


class RedisLog:
    """The log of one bus in a Redis (6.2 or later) or Valkey. Made by `connect`; used from one event loop."""

    def __init__(
        self, appends: Wire, reads: Wire, bus: str, idempotency_window_ms: int, acknowledge_replicas: int, timeout_ms: int
    ) -> None:
        self.bus = bus
        self._appends = appends
        self._reads = reads
        self.idempotency_window_ms = idempotency_window_ms
        self._acknowledge_replicas = acknowledge_replicas
        self._genesis = genesis_hash(bus)
        prefix = f"gavel:{{{bus}}}:"
        self._log_key, self._head_key, self._ids_prefix = _log_key(bus), f"{prefix}head", f"{prefix}ids:"
        self._work_keys = {queue: f"{prefix}work:{queue}" for queue in GROUP_OF_QUEUE}
        # Sent behind each append on its connection, because WAIT speaks of what its own connection wrote.
        self._wait_ms = timeout_ms if acknowledge_replicas else 0
        self._wait_for_replicas: list[Command] = [("WAIT", acknowledge_replicas, timeout_ms)] if acknowledge_replicas else []
        self._fence = 0
        # Appends without an answer so far, and how many of them a later look at the head has settled.
        self._doubts = 0
        self._doubts_settled = 0

    @classmethod
    async def connect(
        cls,
        url: str,
        bus: str,
        *,
        idempotency_window_ms: int = IDEMPOTENCY_WINDOW_MS_DEFAULT,
        acknowledge_replicas: int = 0,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> RedisLog:
        """Connect to the Redis at `url` (redis://, rediss:// or unix://) and check that it can hold the log of `bus`.

        `idempotency_window_ms`: until the attribute of that name is set to what the bus was opened with.
        `acknowledge_replicas`: replicas that must confirm each append within `timeout_ms` (GAVEL_ACK=replicas:N).
        Raises ValueError for a URL or a bus that cannot be, LogUnavailableError, LogCorruptError.
        """
        if not re.fullmatch(BUS, bus):
            raise ValueError(f"bus {bus!r} is not a name of 1..63 lower-case letters, digits and hyphens")
        reads = Wire(url, timeout_ms, READ_CONNECTIONS_MAX)
        log = cls(Wire(url, timeout_ms, 1), reads, bus, idempotency_window_ms, acknowledge_replicas, timeout_ms)
        try:
            await log._check_version()
            await log.head()
        except BaseException:
            await log.close()
            raise
        return log

    async def head(self) -> Head:
        """See EventLog. With an append in doubt it raises the fence, and waits for the replicas that must confirm."""
        doubts = self._doubts
        in_doubt = doubts != self._doubts_settled
        replies = await self._reads.ask(
            ("MULTI",),
            ("HINCRBY", self._head_key, "fence", 1) if in_doubt else ("HGET", self._head_key, "fence"),
            ("HMGET", self._head_key, "sequence_number", "chain_hash", "count", "format_version"),
            ("XINFO", "STREAM", self._log_key),
            ("EXEC",),
            *(self._wait_for_replicas if in_doubt else ()),
            extra_ms=self._wait_ms,
        )
        fence, fields, stream = self._answers(replies[:5])[4]
        if isinstance(fields, Exception):
            raise LogCorruptError(f"{self._head_key} is no hash: {reason(fields)}")
        head = self._checked_head(fields, stream)
        self._check_replicas(head.sequence_number, replies[5:] if in_doubt else None)
        self._fence = int(fence or 0)
        self._doubts_settled = doubts
        return head

    async def append(self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, check_ids: Sequence[str]) -> None:
        """See EventLog. One round trip."""
        check_sequence(expected, entries)
        keys, arguments = self._append_arguments(entries, recorded_at_ms, check_ids)
        for _ in range(FENCED_MAX):
            (status, *details), *waited = await self._run_append((len(keys), *keys, *expected, self._fence, *arguments))
            if status != b"FENCED":
                break
            # Somebody settled a doubt of their own. This append was refused, so sending it again is safe.
            self._fence = int(details[0])
        if status != b"OK":
            raise self._refusal(expected, status, details)
        self._check_replicas(entries[-1].sequence_number, waited)

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = READ_LIMIT) -> list[Record]:
        """See EventLog."""
        first = max(from_sequence_number, 1)
        if to_sequence_number < first or limit < 1:
            return []
        (rows,) = self._answers(await self._reads.ask(("XRANGE", self._log_key, f"{first}-0", f"{to_sequence_number}-0", "COUNT", limit)))
        records = [self._record(row) for row in rows]
        if records and records[-1].sequence_number - records[0].sequence_number != len(records) - 1:
            missing = next(number for number, record in enumerate(records, records[0].sequence_number) if record.sequence_number != number)
            raise LogCorruptError(f"event {missing} is missing from {self._log_key}; restore it from an archive or a backup")
        return records

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """See EventLog."""
        found: dict[int, Record] = {}
        for numbers in _chunks([number for number in sequence_numbers if number > 0]):
            replies = await self._reads.ask(*(("XRANGE", self._log_key, f"{number}-0", f"{number}-0") for number in numbers))
            for rows in self._answers(replies):
                found.update((record.sequence_number, record) for record in map(self._record, rows))
        return found

    async def find(self, event_ids: Sequence[str], now_ms: int) -> dict[str, IdEntry]:
        """See EventLog."""
        found: dict[str, IdEntry] = {}
        days = [f"{self._ids_prefix}{day}" for day in window_days(now_ms, self.idempotency_window_ms)]
        for ids in _chunks(event_ids):
            for values in self._answers(await self._reads.ask(*(("HMGET", day, *ids) for day in days))):
                found.update((event_id, _id_entry(value)) for event_id, value in zip(ids, values, strict=True) if value is not None)
        return found

    async def time_ms(self) -> int:
        """Redis's clock."""
        (reply,) = self._answers(await self._reads.ask(("TIME",)))
        seconds, microseconds = map(int, reply)
        return seconds * 1000 + microseconds // 1000

    async def durability(self) -> list[str]:
        """See EventLog. What Redis's settings do not promise; a setting that cannot be read promises nothing."""
        names = ("maxmemory-policy", "appendonly", "appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write")
        *settings, info = await self._reads.ask(*(("CONFIG", "GET", name) for name in names), ("INFO", "replication"))
        refused = next((reply for reply in settings if isinstance(reply, Exception)), None)
        if refused is not None:
            return [f"Redis does not say how durable it is: CONFIG GET answers {reason(refused)}; allow it to the server's user"]
        policy, appendonly, appendfsync, not_on_rewrite, min_replicas = (setting[1].decode() if setting else "" for setting in settings)
        replication = _info(self._answers([info])[0])
        reasons = []
        if replication.get("role") == "slave":
            primary = f"{replication.get('master_host')}:{replication.get('master_port')}"
            reasons.append(f"it is a replica of {primary}, whose next copy undoes what is written here; name the primary")
        if policy != "noeviction":
            reasons.append(f"maxmemory-policy is {policy}, so Redis may evict the log; set it to noeviction")
        if appendonly != "yes":
            reasons.append("appendonly is off, so a restart of Redis loses acknowledged events; set it to yes")
        elif appendfsync == "everysec":
            reasons.append("appendfsync is everysec, so a crash may lose up to 1 s of acknowledged events; set it to always")
        elif appendfsync != "always":
            reasons.append(f"appendfsync is {appendfsync}, so a crash may lose acknowledged events; set it to always")
        elif not_on_rewrite == "yes":
            reasons.append(
                "no-appendfsync-on-rewrite is yes, so a crash while Redis rewrites its file may lose acknowledged events; set it to no"
            )
        replicas = int(replication.get("connected_slaves", "0"))
        if replicas and min_replicas == "0":
            reasons.append(
                f"{replicas} replica(s) and min-replicas-to-write 0, so a failover may lose acknowledged events; set it to at least 1"
            )
        return reasons

    async def consumers(self) -> list[ConsumerGroup]:
        """See EventLog.

        Redis before 7, and any Redis once entries were deleted, does not know a group's lag. Then it is counted as what the
        queue holds and the group does not have pending, which includes what was acknowledged and not trimmed yet.
        """
        groups: list[ConsumerGroup] = []
        for queue, key in self._work_keys.items():
            stream, rows = await self._reads.ask(("XINFO", "STREAM", key), ("XINFO", "GROUPS", key))
            if isinstance(rows, Exception) and "no such key" in str(rows):
                continue
            stream, rows = self._answers([stream, rows])
            queue_info = _pairs(stream)
            for group in map(_pairs, rows):
                name, pending = group[b"name"].decode(), int(group[b"pending"])
                lag = group.get(b"lag")
                if group[b"last-delivered-id"] == queue_info[b"last-generated-id"]:
                    lag = 0
                elif lag is None:
                    lag = max(int(queue_info[b"length"]) - pending, 0)
                groups.append(ConsumerGroup(name, queue, int(lag), pending, int(group[b"consumers"])))
        return groups

    async def ensure_groups(self) -> None:
        """See EventLog. A group starts at the queue's first entry."""
        for queue, group in GROUP_OF_QUEUE.items():
            (reply,) = await self._reads.ask(("XGROUP", "CREATE", self._work_keys[queue], group, "0", "MKSTREAM"))
            if isinstance(reply, Exception) and not reason(reply).startswith("BUSYGROUP"):
                self._answers([reply])

    async def close(self) -> None:
        """Close the connections."""
        await self._appends.close()
        await self._reads.close()

    async def _check_version(self) -> None:
        (reply,) = self._answers(await self._reads.ask(("INFO", "server")))
        version = _info(reply).get("redis_version", "0")
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < REDIS_VERSION_MIN:
            raise LogUnavailableError(f"Redis at {self._reads.address} is version {version}; Gavel needs 6.2 or later, or Valkey")

    def _answers(self, replies: list[Any]) -> list[Any]:
        """The replies, none of which may be an error."""
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._error_of(reply)
        return replies

    def _error_of(self, reply: Exception) -> LogCorruptError | LogUnavailableError:
        text = reason(reply)
        if "WRONGTYPE" in text or "equal or smaller than the target stream" in text:
            return LogCorruptError(f"bus {self.bus}: Redis refuses, a key of the log is not what it must be: {text}")
        return LogUnavailableError(f"Redis at {self._reads.address} refuses: {text}")

    def _head_of(self, fields: list[bytes | None]) -> Head:
        number, chain_hash = fields[0], fields[1]
        return empty_head(self.bus) if number is None or chain_hash is None else Head(int(number), chain_hash)

    def _checked_head(self, fields: list[bytes | None], stream: Any) -> Head:
        """The head, if the stream agrees with it; `stream` is XINFO's answer, an error when there is none."""
        count, version = fields[2], fields[3]
        if version is not None and int(version) != FORMAT_VERSION:
            raise self._other_format(version)
        head = self._head_of(fields)
        if isinstance(stream, Exception):
            if "no such key" not in str(stream):
                raise self._error_of(stream)
            length, last_id, last_hash = 0, b"0-0", None
        else:
            info = _pairs(stream)
            length, last_id, last_entry = int(info[b"length"]), info[b"last-generated-id"], info[b"last-entry"]
            last_hash = self._record(last_entry).chain_hash if last_entry else None
        wrong = None
        if last_id != b"%d-0" % head.sequence_number:
            wrong = f"the last id of the stream is {last_id.decode()}"
        elif length != int(count or 0):
            wrong = f"the head counts {int(count or 0)} entries, the stream holds {length}"
        elif last_hash is not None and last_hash != head.chain_hash:
            wrong = f"the last entry of the stream has chain hash {last_hash.hex()[:8]}…"
        if wrong:
            raise LogCorruptError(
                f"{self._head_key} says {describe(head)}, but {wrong} in {self._log_key}; restore both from one backup or replica"
            )
        return head

    def _append_arguments(self, entries: Sequence[Entry], recorded_at_ms: int, check_ids: Sequence[str]) -> tuple[list[Argument], ...]:
        """What the script is given before and after the expected head: keys, then flags, hashes, entries, ids and ids to check."""
        day = recorded_at_ms // DAY_MS
        keys: list[Argument] = [self._log_key, self._head_key, *self._work_keys.values(), f"{self._ids_prefix}{day}"]
        if check_ids:
            window = window_days(recorded_at_ms, self.idempotency_window_ms)
            keys += [f"{self._ids_prefix}{earlier}" for earlier in window if earlier != day]
        flags, hashes, of_entries = flags_and_arguments(entries)
        # An event_id may be written at the end of its day and is known until a day beyond the window.
        ids_seconds = (self.idempotency_window_ms + 2 * DAY_MS) // 1000
        return keys, [self._genesis, FORMAT_VERSION, ids_seconds, flags, len(check_ids), hashes, *of_entries, *check_ids]

    async def _run_append(self, body: tuple[Argument, ...]) -> list[Any]:
        """The script's reply, then WAIT's if it was asked and came. The script is sent only to a Redis that does not know it."""
        try:
            replies = await self._appends.tell(("EVALSHA", _SCRIPT_DIGEST, *body), *self._wait_for_replicas, extra_ms=self._wait_ms)
            if isinstance(replies[0], Exception) and reason(replies[0]).startswith("NOSCRIPT"):
                replies = await self._appends.tell(("EVAL", _SCRIPT, *body), *self._wait_for_replicas, extra_ms=self._wait_ms)
        except LogUnavailableError:
            raise
        except BaseException:
            self._doubts += 1  # no answer came, or nobody waited for it
            raise
        # The script fails before or at its first write, or not at all: an error reply means that nothing was written.
        self._answers(replies[:1])
        return replies

    def _check_replicas(self, sequence_number: int, waited: list[Any] | None) -> None:
        """Refuse to call events replicated that too few replicas confirmed; `waited`: WAIT's reply if it came, None if not asked."""
        if not self._acknowledge_replicas or waited is None:
            return
        what = f"events up to {sequence_number} are in the log, but"
        if not waited:
            raise NotReplicatedError(f"{what} Redis at {self._reads.address} did not say whether replicas have them")
        if isinstance(waited[0], Exception):
            raise NotReplicatedError(f"{what} Redis at {self._reads.address} refuses to wait for replicas: {reason(waited[0])}")
        if waited[0] < self._acknowledge_replicas:
            raise NotReplicatedError(
                f"{what} only {waited[0]} of {self._acknowledge_replicas} replicas confirmed within {self._wait_ms} ms"
            )

    def _refusal(self, expected: Head, status: bytes, details: list[bytes]) -> Exception:
        if status == b"MOVED":
            return HeadMovedError(expected, Head(int(details[0]), details[1]))
        if status == b"TAKEN":
            pairs = zip(details[::2], details[1::2], strict=True)
            return EventIdTakenError({event_id.decode(): _id_entry(value) for event_id, value in pairs})
        if status == b"FORMAT":
            return self._other_format(details[0])
        if status == b"CORRUPT":
            return LogCorruptError(f"bus {self.bus}: {details[0].decode()}; nothing was appended")
        return LogUnavailableError(f"Redis at {self._reads.address} lost the answers of {FENCED_MAX} servers in a row; try again")

    def _other_format(self, version: bytes) -> LogUnavailableError:
        return LogUnavailableError(
            f"the log of bus {self.bus} has format {version.decode()}, this build knows {FORMAT_VERSION}; use the build that wrote it"
        )

    def _record(self, row: Any) -> Record:
        try:
            number, rest = row[0].split(b"-")
            name_e, envelope, name_h, chain_hash = row[1]
            if rest == b"0" and name_e == b"e" and name_h == b"h":
                return Record(int(number), envelope, chain_hash)
        except (TypeError, ValueError, IndexError, AttributeError):
            pass  # said below, with the entry
        raise LogCorruptError(f"entry {row[0]!r} of {self._log_key} is not <number>-0 with fields e and h")


class RedisTails:
    """The ends of the logs of many buses in the Redis at `url`, asked about in one command."""

    def __init__(self, url: str, timeout_ms: int = TIMEOUT_MS_DEFAULT) -> None:
        self._wire = Wire(url, timeout_ms, 1)
        self._known: dict[str, int] = {}
        self._commands: list[tuple[list[str], dict[bytes, str], Command]] = []  # for what is known: buses, these by key, the command

    async def moved(self, known: Mapping[str, int]) -> set[str]:
        """Return the buses whose streams hold more than these numbers. Where Redis refuses to say, any may; raises LogUnavailableError."""
        if known != self._known:
            self._known = dict(known)
            self._commands = [_ends(buses, known) for buses in _chunks(list(known))]
        found: set[str] = set()
        for buses, bus_of_key, command in self._commands:
            (reply,) = await self._wire.ask(command)
            if isinstance(reply, Exception):
                # One key that is no stream spoils it for all: each log says for itself what is wrong with it.
                found.update(buses)
            elif reply is not None:
                found.update(bus_of_key[key] for key, _ in reply)
        return found

    async def close(self) -> None:
        """Close the connection."""
        await self._wire.close()


def _ends(buses: Sequence[str], known: Mapping[str, int]) -> tuple[list[str], dict[bytes, str], Command]:
    keys = [_log_key(bus) for bus in buses]
    ids = [f"{known[bus]}-0" for bus in buses]
    return list(buses), {key.encode(): bus for bus, key in zip(buses, keys, strict=True)}, ("XREAD", "COUNT", 1, "STREAMS", *keys, *ids)


def _log_key(bus: str) -> str:
    return f"gavel:{{{bus}}}:log"


def _chunks(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (items[first : first + LOOKUPS_MAX] for first in range(0, len(items), LOOKUPS_MAX))


def _id_entry(value: bytes) -> IdEntry:
    number, _, decision_number = value.partition(b":")
    return IdEntry(int(number), int(decision_number or 0))


def _pairs(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _info(text: bytes) -> dict[str, str]:
    """The answer of INFO: lines `name:value`."""
    return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
