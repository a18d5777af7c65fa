"""Callers without rights beside one that has them: `python -m tests.campaigns.intruders --requests 10000`, or `make intruders`.

A server that requires authentication gets hostile requests: without credentials, with forged and mutated ones, and with valid ones whose
grants allow nothing that is asked; with valid, mutated and random bodies, metadata and HTTP/2 frames. Meanwhile a good caller publishes
facts. The campaign fails if a call is answered INTERNAL, if the server ends or logs a bug, if a call of the good caller fails, if the log
holds anything but the good caller's facts and a bounded number of AccessRefused, if their counts exceed what was sent, or if the log does
not replay. It prints the good caller's p99 before and during the attack, and their ratio, on which nothing depends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc
from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsRequest, PreflightRequest, StreamProposalsRequest, SubmitProposalRequest
from gavel.v1.event_service_pb2 import BatchPublishEventsRequest, PublishEventRequest, PublishEventResponse
from gavel.v1.execution_service_pb2 import BeginExecutionRequest
from gavel.v1.rule_set_service_pb2 import DeployRuleSetRequest
from gavel_client import fact_envelope, proposal_envelope
from gavel_rules.identity.rights import RIGHT_OF_RPC, RIGHTS, RPCS_WITHOUT_RIGHT, WRITING_RPCS
from gavel_server.front.programs import FrontSetting
from gavel_server.identity.tokens import PREFIX
from gavel_server.rpc.identity.access_refusals import PRINCIPALS_MAX, RECORD_SECONDS
from google.protobuf.message import Message
from rich.console import Console

from tests.campaigns.mutations import mutate_bytes
from tests.e2e.cli.programs import gavel
from tests.e2e.identity.granted import ADMIN, GrantedServer
from tests.e2e.world import ACTION, AGENT, COURIER, DEPOT, rule_set, run_servers
from tests.support.http2 import HEADERS, Http2Connection, frame, header_block, message

REQUESTS: Final = 10_000
AT_ONCE: Final = 32
CALL_SECONDS_MAX: Final = 10.0
# The share of hostile calls that a client of gRPC could not make.
RAW_SHARE: Final = 0.2
# Some hundreds of calls, of which the slowest in a hundred is more than one accident.
CALM_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.01
# Each right is for a caller of its own, and for nothing that the attack asks for.
GRANTS: Final = "\n".join(
    [
        "gavel: v1",
        "name: narrow",
        "version: 2",
        "grants:",
        *(
            f"  - {{to: [may-{right}], may: [{right}], actions: [no], subjects: [no/*], facts: [no], produce: {{ids: [no]}}}}"
            for right in ("propose", "publish", "execute", "preflight")
        ),
        f"  - {{to: [{ADMIN}], may: [{', '.join(RIGHTS)}]}}",
        "",
    ]
)
CALLERS: Final = ("nobody", "may-propose", "may-publish", "may-execute", "may-preflight")
EVERY_RPC: Final = (*RIGHT_OF_RPC, *RPCS_WITHOUT_RIGHT, "gavel.v1.EventService/None", "None/None")
# Reasons of AccessRefused; each has events of its own.
REASONS: Final = 5
DENIED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
# INTERNAL as the client's own library says it of metadata that it does not send.
LOCAL: Final = ("Invalid metadata", "Internal error from Core")
BUG: Final = ("call.failed", "Traceback", "this is a bug", "task.failed")


@dataclass
class Report:
    """The observations of a campaign."""

    codes: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    events: int = 0
    refused: int = 0
    p99_before_ms: float = 0.0
    p99_during_ms: float = 0.0
    good_calls: int = 0
    failures: list[str] = field(default_factory=list)

    def expect(self, holds: bool, problem: str) -> None:
        """Note a problem, unless the condition holds."""
        if not holds:
            self.failures.append(problem)


class GoodCaller:
    """Publishes facts one after the other, until stopped."""

    def __init__(self, server: GrantedServer) -> None:
        self._server = server
        self.seconds: list[float] = []
        self.errors: list[str] = []
        self.accepted: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop`."""
        async with grpc.aio.insecure_channel(self._server.server.address) as channel:
            publish: Any = channel.unary_unary("/gavel.v1.EventService/PublishEvent", response_deserializer=PublishEventResponse.FromString)
            for number in count():
                if stop.is_set():
                    return
                request = PublishEventRequest(envelope=fact_envelope(f"parcel/good-{number}", DEPOT, key="parcel.status", value="ready"))
                started = time.monotonic()
                try:
                    answer = await publish(request.SerializeToString(), metadata=self._server.by(ADMIN), timeout=CALL_SECONDS_MAX)
                    self.accepted.add(answer.envelope.event_id)
                except grpc.RpcError as error:
                    self.errors.append(f"{error.code()}: {error.details()}")
                self.seconds.append(time.monotonic() - started)
                await asyncio.sleep(PAUSE_SECONDS)

    def p99_ms(self) -> float:
        """Return the time that 99 of 100 calls did not exceed since the last call of this method."""
        times, self.seconds = sorted(self.seconds), []
        return round(1000 * times[int(len(times) * 0.99)], 1) if times else 0.0


class Attack:
    """Hostile requests to one server, with every choice from a seed."""

    def __init__(self, address: str, tokens: dict[str, str], seed: int, *, is_native: bool) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._address = address
        self._tokens = tokens
        self._random = random.Random(seed)
        self._is_native = is_native
        self.codes: Counter[str] = Counter()
        self.internal: list[str] = []
        self.denied = 0  # writes
        self.sent = 0

    async def run(self, requests: int) -> None:
        """Make the requests, a few at once."""
        async with grpc.aio.insecure_channel(self._address, options=(("grpc.max_metadata_size", 1 << 20),)) as channel:
            while self.sent < requests:
                calls = [self._raw() if self._random.random() < RAW_SHARE else self._call(channel) for _ in range(AT_ONCE)]
                self.sent += len(calls)
                await asyncio.gather(*calls)

    async def _call(self, channel: grpc.aio.Channel) -> None:
        rpc, body = self._request()
        kinds = ("unary_unary", "unary_stream", "stream_stream")
        kind = self._random.choice(kinds)
        call: Any = getattr(channel, kind)(f"/{rpc}")
        argument = iter([body] * self._random.choice((0, 1, 3))) if kind == "stream_stream" else body
        try:
            answer = call(argument, metadata=self._metadata(), timeout=self._random.choice((0.05, 2.0, CALL_SECONDS_MAX)))
            if kind == "unary_unary":
                await answer
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.2):  # a subscription or a watch has no end
                        async for _ in answer:
                            pass
                answer.cancel()
            self.codes["OK"] += 1
        except grpc.RpcError as error:
            if error.details() in LOCAL:
                self.codes["not sent"] += 1
                return
            self.codes[error.code().name] += 1
            self.denied += rpc in WRITING_RPCS and error.code() in DENIED
            if error.code() is grpc.StatusCode.INTERNAL:
                self.internal.append(f"{rpc} as {kind}: {error.details()}"[:300])
        except asyncio.CancelledError:  # so gRPC tells of a stream that the server has reset
            self.codes["CANCELLED"] += 1
        except Exception:  # noqa: BLE001  # gRPC's client refuses the metadata itself, with errors of several kinds
            self.codes["not sent"] += 1

    async def _raw(self) -> None:
        """Send a call in frames of its own making."""
        try:
            connection = await Http2Connection.open(self._host, self._port)
        except OSError:
            self.codes["not connected"] += 1
            return
        try:
            rpc, body = self._request()
            headers = [(key.encode(), value if isinstance(value, bytes) else value.encode()) for key, value in self._metadata()]
            headers += self._random.sample(self._odd_headers(), 2)
            if self._random.random() < 0.5:
                stream = connection.start_call(f"/{rpc}".encode(), *headers)
                connection.send_data(stream, message(body, length=self._random.choice((None, 0, 1, len(body) + 1, 2**31))))
            else:
                block = mutate_bytes(header_block([(b":method", b"POST"), (b":path", f"/{rpc}".encode()), *headers]), self._random)
                if self._is_native or block.isascii():  # grpc.aio stops at a path that is not UTF-8: docs/operating.md
                    connection.send(frame(HEADERS, self._random.randrange(256), self._random.choice((0, 1, 2, 2**31 - 1)), block[:16_000]))
            if self._random.random() < 0.3:
                connection.send(mutate_bytes(frame(self._random.randrange(12), self._random.randrange(256), 1, body[:200]), self._random))
            await connection.drain()
            await asyncio.sleep(0.02)
            self.codes["frames"] += 1
        except OSError:
            self.codes["closed"] += 1
        finally:
            await connection.close()

    def _request(self) -> tuple[str, bytes]:
        """Return a method and a body: valid, mutated or random."""
        rpc = self._random.choice(EVERY_RPC)
        choice = self._random.random()
        if choice < 0.7:
            rpc, request = self._random.choice(_valid_requests())
            body = request.SerializeToString()
            return rpc, body if choice < 0.35 else mutate_bytes(body, self._random)
        return rpc, self._random.choice((b"", self._random.randbytes(self._random.choice((1, 30, 5000))), b"\x0a\x07default"))

    def _metadata(self) -> list[tuple[str, str | bytes]]:
        """Return credentials of any kind, and further keys."""
        metadata: list[tuple[str, str | bytes]] = []
        token = self._tokens[self._random.choice(CALLERS)]
        choice = self._random.randrange(8)
        if choice < 3:
            metadata.append(("authorization", f"Bearer {token}"))
        elif choice == 3:
            metadata.append(("authorization", "Bearer " + mutate_bytes(token.encode(), self._random).decode("ascii", "replace")))
        elif choice == 4:
            metadata.append(
                ("authorization", self._random.choice(("", "Bearer", "Bearer ", "Basic eA==", f"bearer {token} ", PREFIX * 2000)))
            )
        elif choice == 5:
            metadata += [("authorization", f"Bearer {token}")] * 2
        elif choice == 6:
            metadata.append(("authorization", f"Bearer {_forged_web_token(self._random)}"))
        metadata += self._random.sample(
            [
                ("gavel-secret", "0" * 64),
                ("gavel-handle", "1"),
                ("gavel-peer", "127.0.0.9:1"),
                ("gavel-bus-incarnation", "x" * 100),
                ("traceparent", "00-" + "f" * 32 + "-zz"),
                ("x-bin", self._random.randbytes(20)),
                ("x", "y" * self._random.choice((1, 9000))),
            ],
            self._random.choice((0, 1, 2)),
        )
        return metadata

    def _odd_headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"authorization", self._random.randbytes(20)),
            (b"Authorization", b"Bearer x"),
            (b"gavel-handle", b"\xff\xff"),
            (b"grpc-timeout", b"99999999999H"),
            (b"grpc-encoding", b"gzip"),
            (b"x-bin", b"!!!"),
            (b"", b""),
        ]


def _valid_requests() -> Sequence[tuple[str, Message]]:
    proposal = proposal_envelope("parcel/1", AGENT, action_type=ACTION, params={"weight": 1}, max_fact_age_ms=1000, confidence=0.5)
    fact = fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")
    arbitration, event = "gavel.v1.ArbitrationService/", "gavel.v1.EventService/"
    return (
        (arbitration + "SubmitProposal", SubmitProposalRequest(envelope=proposal)),
        (arbitration + "BatchSubmitProposals", BatchSubmitProposalsRequest(envelopes=[proposal] * 3)),
        (arbitration + "StreamProposals", StreamProposalsRequest(envelope=proposal)),
        (arbitration + "Preflight", PreflightRequest(envelope=proposal)),
        (event + "PublishEvent", PublishEventRequest(envelope=fact)),
        (event + "BatchPublishEvents", BatchPublishEventsRequest(envelopes=[fact] * 3)),
        ("gavel.v1.ExecutionService/BeginExecution", BeginExecutionRequest(decision_id=fact.event_id, producer=COURIER)),
        ("gavel.v1.RuleSetService/DeployRuleSet", DeployRuleSetRequest(document=rule_set())),
    )


def _forged_web_token(randomness: random.Random) -> str:
    return ".".join(randomness.choice(("eyJhbGciOiJub25lIn0", "e30", "", "%%%", "A" * 3000)) for _ in range(3))


async def run(directory: Path, front: FrontSetting, requests: int, seed: int) -> Report:
    """Run the campaign; return the report."""
    report = Report()
    granted = GrantedServer(directory, front)
    with run_servers(granted.server):
        granted.deploy(GRANTS)
        before = len(granted.events())
        good, stop = GoodCaller(granted), asyncio.Event()
        calling = asyncio.create_task(good.run(stop))
        await asyncio.sleep(CALM_SECONDS)
        report.p99_before_ms = good.p99_ms()
        started = time.monotonic()
        attacked = await _attack(granted, requests, seed)
        report.sent, report.codes = attacked["sent"], Counter(attacked["codes"])
        report.p99_during_ms = good.p99_ms()
        stop.set()
        await calling
        minutes = (time.monotonic() - started) / RECORD_SECONDS
        report.expect(granted.server.running.poll() is None, "the server ended")
        report.expect(granted.server.terminate() == 0, "the server did not stop as it should")
    report.good_calls = len(good.accepted)
    report.expect(not good.errors, f"{len(good.errors)} calls of the good caller failed: {good.errors[:3]}")
    report.expect(report.codes["INTERNAL"] == 0, f"calls were answered INTERNAL: {attacked['internal'][:5]}")
    report.expect(report.codes["UNAUTHENTICATED"] > 0 and report.codes["PERMISSION_DENIED"] > 0, f"nothing was denied: {report.codes}")
    bugs = [line for line in granted.server.log().splitlines() if any(sign in line for sign in BUG)]
    report.expect(not bugs, f"the server logged a bug: {bugs[:3]}")
    with run_servers(granted.server):
        _check_log(granted, report, good.accepted, before, minutes)
        report.expect(report.refused >= attacked["denied"], f"{attacked['denied']} writes were denied, but {report.refused} are counted")
    result = gavel("replay", "--data", granted.server.data)
    report.expect(result.returncode == 0, f"gavel replay exits with {result.returncode}: {result.stdout}{result.stderr}")
    return report


async def _attack(granted: GrantedServer, requests: int, seed: int) -> dict[str, Any]:
    """Run the attack in a process of its own; return what it prints."""
    arguments = [granted.server.address, str(requests), str(seed), granted.front]
    command = [sys.executable, "-m", "tests.campaigns.intruders", "--attack", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    output, _ = await process.communicate(json.dumps(granted.tokens).encode())
    assert process.returncode == 0, f"the attack exits with {process.returncode}"
    result: dict[str, Any] = json.loads(output)
    return result


def _check_log(granted: GrantedServer, report: Report, accepted: set[str], before: int, minutes: float) -> None:
    """Check that the log holds the good caller's facts and a bounded number of AccessRefused, and nothing else."""
    events = granted.events()[before:]
    report.events = len(events)
    others = [event for event in events if event.event_id not in accepted and not event.agent_diagnostic.HasField("access_refused")]
    report.expect(not others, f"{len(others)} other events are in the log: {[event.event_name for event in others[:3]]}")
    report.expect(accepted <= {event.event_id for event in events}, "facts of the good caller are missing")
    refusals = granted.refusals()
    report.refused = sum(one.count for one in refusals)
    bound = (PRINCIPALS_MAX + REASONS) * (int(minutes) + 2)
    report.expect(0 < len(refusals) <= bound, f"{len(refusals)} AccessRefused are in the log; at most {bound} were allowed")
    # A batch counts each of its three items.
    report.expect(0 < report.refused <= 3 * report.sent * 3, f"{report.refused} refused calls were counted, {report.sent} were made")


def lines_of(report: Report) -> Iterator[str]:
    """Yield the report for people."""
    ratio = report.p99_during_ms / report.p99_before_ms if report.p99_before_ms else 0.0
    yield f"attack: {report.sent} requests: {dict(report.codes.most_common())}"
    yield f"log: {report.events} events; {report.refused} refused calls and items counted"
    yield (
        f"good caller: {report.good_calls} calls; p99 {report.p99_before_ms} ms before, {report.p99_during_ms} ms during the attack, "
        f"ratio {ratio:.1f}"
    )
    for failure in report.failures:
        yield f"FAILED: {failure}"


async def _attack_program(address: str, requests: str, seed: str, front: str) -> None:
    # The attackers stand for other machines: what they compute themselves must not take the processors from the server.
    os.nice(19)
    attack = Attack(address, json.loads(sys.stdin.read()), int(seed), is_native=front == "native")
    await attack.run(int(requests))
    print(json.dumps({"sent": attack.sent, "codes": attack.codes, "denied": attack.denied, "internal": attack.internal}))


def main() -> int:
    """Run the campaign, print what it saw, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"how many (default {REQUESTS})")
    parser.add_argument("--seed", type=int, default=1, help="of every choice (default 1)")
    parser.add_argument("--front", choices=("native", "none"), default="native", help="what speaks gRPC (default native)")
    parser.add_argument("--attack", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        asyncio.run(_attack_program(*options.attack))
        return 0
    with tempfile.TemporaryDirectory(prefix="gavel-intruders-") as directory:
        report = asyncio.run(run(Path(directory), options.front, options.requests, options.seed))
    console = Console(highlight=False)
    for line in lines_of(report):
        console.print(line)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
