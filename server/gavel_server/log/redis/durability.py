"""Which settings of a Redis may lose acknowledged events, and what to set instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gavel_server.log.protocol import volatility_message
from gavel_server.log.redis.replies import info_fields, reason
from gavel_server.log.redis.resp import Command

# The settings that `volatility_reasons` judges.
SETTINGS: Final = ("maxmemory-policy", "appendonly", "appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write")
# The commands whose replies `judge` takes.
COMMANDS: Final[tuple[Command, ...]] = (*(("CONFIG", "GET", name) for name in SETTINGS), ("INFO", "replication"))


def judge(replies: Sequence[Any]) -> list[str]:
    """Return the reasons why the Redis that gave these replies to COMMANDS may lose acknowledged events; [] if there is none.

    A setting that cannot be read counts as one that loses events.
    """
    refused = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if refused is not None:
        return [f"Redis does not say how durable it is: it answers {reason(refused)}; allow CONFIG GET and INFO to the server's user"]
    *settings, info = replies
    values = {name: setting[1].decode() if setting else "" for name, setting in zip(SETTINGS, settings, strict=True)}
    return volatility_reasons(values, info_fields(info))


def is_replica(replies: Sequence[Any]) -> bool:
    """Return whether the Redis that gave these replies to COMMANDS is a replica."""
    return isinstance(replies[-1], bytes) and info_fields(replies[-1]).get("role") == "slave"


def volatility(replies: Sequence[Any]) -> str:
    """Return the message about a Redis whose replies to COMMANDS show that it may lose acknowledged events, or ""."""
    return volatility_message(judge(replies))


def volatility_reasons(settings: Mapping[str, str], replication: Mapping[str, str]) -> list[str]:
    """Return the reasons why a Redis may lose acknowledged events, a sentence each; [] if they survive kill -9 and power loss.

    `settings` holds the values of SETTINGS, "" for one that this Redis does not have. `replication` is its INFO replication.
    """
    reasons = []
    if replication.get("role") == "slave":
        primary = f"{replication.get('master_host')}:{replication.get('master_port')}"
        reasons.append(f"it is a replica of {primary}, whose next copy undoes what is written here; name the primary")
    policy, appendfsync = settings["maxmemory-policy"], settings["appendfsync"]
    if policy != "noeviction":
        reasons.append(f"maxmemory-policy is {policy}, so Redis may evict the log; set it to noeviction")
    if settings["appendonly"] != "yes":
        reasons.append("appendonly is off, so a restart of Redis loses acknowledged events; set it to yes")
    elif appendfsync == "everysec":
        reasons.append("appendfsync is everysec, so a crash may lose up to 1 s of acknowledged events; set it to always")
    elif appendfsync != "always":
        reasons.append(f"appendfsync is {appendfsync}, so a crash may lose acknowledged events; set it to always")
    elif settings["no-appendfsync-on-rewrite"] == "yes":
        reasons.append(
            "no-appendfsync-on-rewrite is yes, so a crash while Redis rewrites its file may lose acknowledged events; set it to no"
        )
    replicas = int(replication.get("connected_slaves", "0"))
    if replicas and settings["min-replicas-to-write"] == "0":
        reasons.append(
            f"{replicas} replica(s) and min-replicas-to-write 0, so a failover may lose acknowledged events; set it to at least 1"
        )
    return reasons
