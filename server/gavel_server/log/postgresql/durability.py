"""Which settings of a PostgreSQL may lose acknowledged events, and what to set instead."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.protocol import volatility_message

# pg_receivewal, which archives, and a running backup are not standbys. A role without the right to see a state gets NULL, which counts.
STATEMENT: Final = """
SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
  current_setting('synchronous_standby_names'),
  (SELECT count(*) FROM pg_stat_replication AS r
    WHERE r.state IS NULL OR (r.state <> 'backup' AND r.application_name NOT IN ('pg_basebackup', 'pg_receivewal'))),
  (SELECT count(*) FROM pg_replication_slots AS s LEFT JOIN pg_stat_replication AS r ON r.pid = s.active_pid
    WHERE s.slot_type = 'physical' AND NOT s.temporary AND r.application_name IS DISTINCT FROM 'pg_receivewal'),
  (SELECT coalesce(string_agg(c.relname, ', '), '') FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'gavel' AND c.relkind = 'r' AND c.relpersistence <> 'p')
"""


class Durability(NamedTuple):
    """The answer to STATEMENT of a session that appends."""

    is_standby: bool
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    synchronous_standby_names: str
    standbys: int
    slots: int
    unlogged_tables: str

    @property
    def synchronous_standbys(self) -> int:
        """How many standbys each commit waits for, until they have it on disk."""
        return standby_count(self.synchronous_standby_names) if self.synchronous_commit in ("on", "remote_apply") else 0

    @property
    def asynchronous_standbys(self) -> int:
        """How many standbys, or replication slots for them, there are, if commits wait for none."""
        return 0 if self.synchronous_standbys or self.is_standby else max(self.standbys, self.slots)


def standby_count(names: str) -> int:
    """Return how many standbys `synchronous_standby_names` waits for."""
    match = re.match(r"\s*(?:(?:FIRST|ANY)\s+)?(\d+)\s*\(", names, re.IGNORECASE)
    if match is not None:
        return int(match[1])
    return 1 if names.strip() else 0


def volatility_reasons(durability: Durability) -> list[str]:
    """Return the reasons why a PostgreSQL may lose acknowledged events, a sentence each; [] if they survive kill -9 and power loss."""
    reasons = []
    if durability.is_standby:
        reasons.append("it is a standby, which nothing can be written to; name the primary")
    if durability.fsync != "on":
        reasons.append("fsync is off, so a power cut may lose acknowledged events; set it to on")
    if durability.full_page_writes != "on":
        reasons.append("full_page_writes is off, so a power cut may damage the log; set it to on")
    if durability.synchronous_commit == "off":
        reasons.append("synchronous_commit is off, so a crash may lose acknowledged events; set it to on")
    if durability.unlogged_tables:
        reasons.append(f"the tables {durability.unlogged_tables} are unlogged, so a crash empties them; ALTER TABLE … SET LOGGED")
    standbys = durability.asynchronous_standbys
    if standbys:
        reasons.append(
            f"{standbys} standby(s) or physical replication slot(s), and commits wait for none of them, so a failover may lose "
            "acknowledged events; set synchronous_standby_names, and synchronous_commit to on"
        )
    return reasons


def acknowledgement_problem(durability: Durability, acknowledgement: Acknowledgement) -> str:
    """Return why commits do not wait for as many standbys as `--ack` promises, or ""."""
    replicas = acknowledgement.replicas
    if acknowledgement.is_synced:
        return f"--ack aof:{replicas} is for Redis; use replicas:{replicas}, which waits for the disks of standbys here"
    if durability.synchronous_standbys >= replicas:
        return ""
    return (
        f"--ack replicas:{replicas} needs commits that wait for {replicas} standby(s), but they wait for "
        f"{durability.synchronous_standbys}: synchronous_commit is {durability.synchronous_commit} and synchronous_standby_names is "
        f"{durability.synchronous_standby_names!r}; set them to on and e.g. 'ANY {replicas} (*)'"
    )


def volatility(durability: Durability) -> str:
    """Return the message about a PostgreSQL that may lose acknowledged events, or ""."""
    return volatility_message(volatility_reasons(durability))
