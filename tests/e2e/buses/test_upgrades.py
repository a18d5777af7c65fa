"""Upgrades of a bus of arbiter version 2: real servers of a build that knows this version alone, and of this build."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError, fact_envelope
from gavel_rules.events.hash_chain import chain
from gavel_rules.events.timestamps import milliseconds
from gavel_server.log import Entry, Head, Record
from gavel_server.log.redis.log import RedisLog

from tests.e2e.buses import older_build
from tests.e2e.runs import RUN_SECONDS_MAX, run_gavel
from tests.e2e.world import AGENT, DEPOT, PATIENT_MS, POLICY, Server, proposal, prove, publish_status, replay, rule_set, run_servers
from tests.support.driver import Core
from tests.support.histories.record_log import read_logs
from tests.support.paths import ROOT
from tests.support.redis.cluster import DURABLE
from tests.support.redis.tcp import redis_on_tcp

OLDER = (sys.executable, "-P", older_build.__file__)
OPTIONS = ("--no-front",)
DATA = ROOT / "tests/data"


@pytest.fixture
def core(bus: str) -> Core:
    """A bus of version 2 with the tests' rule set and a decision."""
    core = Core(rule_set(), bus=bus, arbiter_version=2)
    fact = core.fact("parcel.status", "ready", subject="parcel/0", source=DEPOT.id)
    core.propose([fact], subject="parcel/0", producer=AGENT, action_type="parcel.send", params={"weight": 1.0})
    return core


async def write_log(redis_url: str, bus: str, envelopes: Sequence[bytes]) -> None:
    """Write envelopes as the log of the bus."""
    log = await RedisLog.connect(redis_url, bus)
    head = before = await log.head()
    entries = []
    events = [Envelope.FromString(content) for content in envelopes]
    for number, (content, event) in enumerate(zip(envelopes, events, strict=True), 1):
        head = Head(number, chain(head.chain_hash, content))
        entries.append(Entry(number, content, head.chain_hash, event.event_id, ""))
    await log.append(before, entries, milliseconds(events[-1].recorded_at), ())
    await log.close()


async def decide(client: GavelClient, subject: str) -> Decision:
    """Return the decision on sending a parcel that is ready."""
    fact = (await publish_status(client, [subject]))[subject]
    return (await client.submit_proposal(proposal(fact))).decision.decision


def upgrade(server: Server, bus: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `gavel upgrade` on a server."""
    return run_gavel(["upgrade", "--server", server.address, "--bus", bus, "--by", "ada", *options], {"COLUMNS": "300"})


def replay_by_older_build(redis_url: str, bus: str) -> subprocess.CompletedProcess[str]:
    """Run `gavel replay` of the older build."""
    command = [*OLDER, "replay", "--log", redis_url, "--bus", bus]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)


@pytest.mark.long
async def test_a_rolling_upgrade(core: Core, redis_url: str, bus: str, tmp_path: Path) -> None:
    """Servers are restarted one after the other with a build that implements both versions, and go on with version 2. The plan names each
    server that still lacks version 3. Then the bus is upgraded while it works, every server decides by version 3, and the whole log is
    proved; a server of the older build that nobody named writes no more, and there is no way back.
    """
    await write_log(redis_url, bus, [record.envelope for record in core.records])
    first, second = (Server(tmp_path / name, redis_url=redis_url, options=OPTIONS, program=OLDER) for name in ("first", "second"))
    outdated = Server(tmp_path / "outdated", redis_url=redis_url, options=OPTIONS, program=OLDER)
    with run_servers(first, second, outdated):
        async with first.client(bus) as client:
            assert 2 == (await decide(client, "parcel/1")).arbiter_version
        plan = upgrade(first, bus, "--to", "3", "--plan")
        assert 1 == plan.returncode, plan
        assert f"obstacle: the server at {first.address} implements arbiter version 2, not arbiter version 3; restart it" in plan.stdout

        absent = upgrade(first, bus, "--other-server", "127.0.0.1:9")
        assert (1, True) == (
            absent.returncode,
            "127.0.0.1:9; start one with `gavel serve`, or name another with --other-server" in absent.stderr,
        )

        assert 0 == first.terminate()
        first.program = ()
        first.start()
        others = ("--other-server", second.address)
        for options in (("--plan",), ()):
            refused = upgrade(first, bus, *others, *options)
            assert 1 == refused.returncode, refused
            assert f"the server at {second.address} implements arbiter version 2, not arbiter version 3" in refused.stdout + refused.stderr
        async with first.client(bus) as client, second.client(bus) as other:
            assert [2, 2] == [(await decide(each, "parcel/2")).arbiter_version for each in (client, other)]

        assert 0 == second.terminate()
        second.program = ()
        second.start()
        others = ("--other-server", second.address)
        plan = upgrade(first, bus, *others, "--plan")
        assert 0 == plan.returncode, plan
        assert "2, to become 3" in plan.stdout
        assert "refusals have remedies" in plan.stdout
        async with first.client(bus) as client, second.client(bus) as other:
            assert 2 == (await decide(other, "parcel/3")).arbiter_version
            done = upgrade(first, bus, *others, "--reason", "remedies")
            assert 0 == done.returncode, done
            assert f"bus {bus} is decided by arbiter version 3 after event" in done.stdout
            assert [3, 3] == [(await decide(each, "parcel/4")).arbiter_version for each in (client, other)]
            for target in ("2", "3"):
                again = upgrade(first, bus, "--to", target)
                assert 1 == again.returncode, again
                assert f"bus {bus} has arbiter version 3" in again.stderr
            async with outdated.client(bus, tries_max=1) as last:
                with pytest.raises(GavelError) as error:
                    await last.activate_rule_set(POLICY, 1)
                assert "ARBITER_VERSION_NOT_IMPLEMENTED" == error.value.reason
                status = await last.get_status()
                assert (3, False) == (status.arbiter_version, status.writable)
            await prove(client)
    assert 0 == replay(redis_url, bus).returncode
    assert 5 == (older := replay_by_older_build(redis_url, bus)).returncode, older


async def test_a_log_that_is_not_proved_is_not_upgraded(core: Core, redis_url: str, bus: str, tmp_path: Path) -> None:
    """If a recorded decision does not follow from the log, the upgrade says which, exits as a replay does, and changes nothing."""
    changed = Envelope.FromString(core.records[-1].envelope)
    changed.decision.reason_code = "ANOTHER"
    envelopes = [*(record.envelope for record in core.records[:-1]), changed.SerializeToString(deterministic=True)]
    await write_log(redis_url, bus, envelopes)
    server = Server(tmp_path / "server", redis_url=redis_url, options=OPTIONS)
    with run_servers(server):
        unexplained = upgrade(server, bus)
        assert (2, "") == (unexplained.returncode, unexplained.stdout), unexplained  # before the log is read
        refused = upgrade(server, bus, "--reason", "remedies")
        assert 3 == refused.returncode, refused
        assert changed.event_id in refused.stdout
        async with server.client(bus) as client:
            assert 2 == (await client.get_status()).arbiter_version


def longest_logs() -> dict[str, list[Record]]:
    """Return the longest recorded log of each kind of scenario by bus. The unit tests of the core upgrade all of them."""
    logs = [log for path in sorted(DATA.glob("*_arbiter_version_2.jsonl.gz")) for log in read_logs(path).items()]
    by_kind = groupby(sorted(logs), lambda log: log[0].rpartition("-")[0])
    return dict(max(kind, key=lambda log: len(log[1])) for _, kind in by_kind)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_recorded_buses_are_upgraded(tmp_path: Path) -> None:
    """A bus that an earlier build recorded is upgraded, whatever is open on it; it then takes events by version 3 and is proved."""
    logs = longest_logs()
    assert len(logs) > 10
    async with redis_on_tcp(tmp_path / "redis", *DURABLE) as store:
        for bus, records in logs.items():
            await write_log(store.url, bus, [record.envelope for record in records])
        server = Server(tmp_path / "server", redis_url=store.url, options=OPTIONS)
        with run_servers(server):
            for bus, records in logs.items():
                done = await asyncio.to_thread(upgrade, server, bus, "--reason", "remedies")
                assert 0 == done.returncode, (bus, done)
                async with server.client(bus) as client:
                    fact = await client.publish_event(
                        fact_envelope("parcel/last", DEPOT, key="parcel.status", value="ready"), timeout_ms=PATIENT_MS
                    )
                    assert fact.envelope.sequence_number > len(records)
                    assert 3 == (await client.get_status()).arbiter_version
                    await prove(client)
