"""The load of the benchmark: proposals of new orders, sent by ghz at a server, and what came of them."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gavel.v1 import arbitration_service_pb2 as arbitration
from gavel.v1 import arbitration_service_pb2_grpc as arbitration_grpc
from gavel.v1 import common_pb2, decision_pb2, envelope_pb2
from gavel.v1 import event_service_pb2 as event
from gavel.v1 import event_service_pb2_grpc as event_grpc
from gavel.v1 import projection_service_pb2 as projection
from gavel.v1 import projection_service_pb2_grpc as projection_grpc
from google.protobuf import descriptor_pb2

from tests.load import workload
from tests.load.bench.measurements import Cell, Sample
from tests.load.targets import BenchError, Target, cpu_seconds, wait_until_idle

PAGE_SIZE: Final = 1000
PROPOSALS_REUSED: Final = 1000
WARM_UP_DECISIONS: Final = 500
# Facts of the shipped rule set are valid for 60 s; a longer measurement would measure refusals.
SECONDS_MAX: Final = 5.0


@dataclass(frozen=True)
class Call:
    """A call to measure, with its number of decisions per request."""

    name: str
    decisions: int
    preflight: bool

    @property
    def batch(self) -> bool:
        """Whether a request carries several proposals."""
        return self.decisions > 1


CALLS: Final = (
    Call("Preflight", 1, preflight=True),
    Call("SubmitProposal", 1, preflight=False),
    Call("BatchPreflight", workload.BATCH_PROPOSALS, preflight=True),
    Call("BatchSubmitProposals", workload.BATCH_PROPOSALS, preflight=False),
)


@dataclass(frozen=True)
class LoadSettings:
    """How much load: seconds of a measurement, requests under way at once, and the connections that they share."""

    ghz: Path
    seconds: float
    concurrency: int = 64
    batch_concurrency: int = 8
    connections: int = 4


class LoadGenerator:
    """Measures calls. It keeps its files in `directory`."""

    def __init__(self, settings: LoadSettings, directory: Path) -> None:
        self._settings = settings
        self._directory = directory
        self._proposals: list[envelope_pb2.Envelope] = []
        _write_protoset(directory / "gavel.protoset")

    def measure(self, call: Call, target: Target, source: Target, cell: Cell) -> None:
        """Add a sample to `cell`, after a short warm-up that also estimates the rate."""
        warm_up = self._load(call, target, source, WARM_UP_DECISIONS // call.decisions)
        requests = max(1, int(warm_up.decisions_per_second * self._settings.seconds / call.decisions))
        head = _head(source)
        cell.samples.append(self._load(call, target, source, requests))
        if target is source:
            decisions = requests * call.decisions
            cell.outcomes += self._preflight_outcomes(target) if call.preflight else _recorded_outcomes(target, head, decisions)

    def _load(self, call: Call, target: Target, source: Target, requests: int) -> Sample:
        """Send requests and return the sample. Requests that write have proposals of their own; the others reuse a few."""
        writes = target is source and not call.preflight
        file = self._directory / "requests"
        with source.channel() as channel:
            count = requests * call.decisions if writes else min(requests * call.decisions, PROPOSALS_REUSED)
            self._proposals = workload.proposals(channel, count)
        workload.write_requests(file, self._proposals, batch=call.batch, preflight=call.preflight)
        wait_until_idle()
        server_before, redis_before = cpu_seconds(target.process), cpu_seconds(target.redis)
        report = self._ghz(call, target, file, requests)
        server_seconds = cpu_seconds(target.process) - server_before
        redis_seconds = cpu_seconds(target.redis) - redis_before
        latencies_ms = sorted(detail["latency"] / 1e6 for detail in report["details"])
        ends = [datetime.fromisoformat(detail["timestamp"]).timestamp() for detail in report["details"]]
        began = min(end - detail["latency"] / 1e9 for end, detail in zip(ends, report["details"], strict=True))
        decisions = requests * call.decisions
        return Sample(
            decisions_per_second=decisions / (max(ends) - began),
            p50_ms=latencies_ms[len(latencies_ms) // 2],
            p99_ms=latencies_ms[len(latencies_ms) * 99 // 100],
            server_cpu_us_per_decision=server_seconds / decisions * 1e6,
            redis_cpu_us_per_decision=redis_seconds / decisions * 1e6,
        )

    def _ghz(self, call: Call, target: Target, file: Path, requests: int) -> dict[str, Any]:
        """Run ghz and return its report. Raises BenchError unless every request is OK."""
        settings = self._settings
        concurrency = min(requests, settings.batch_concurrency if call.batch else settings.concurrency)
        options = {
            "protoset": self._directory / "gavel.protoset",
            "call": f"gavel.v1.ArbitrationService/{call.name}",
            "binary-file": file,
            "total": requests,
            "concurrency": concurrency,
            "connections": min(concurrency, settings.connections),
            "timeout": "30s",
            "format": "json",
        }
        command = [str(settings.ghz), *target.ghz_options(), *(f"--{name}={value}" for name, value in options.items()), target.address]
        report: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
        if report["statusCodeDistribution"] != {"OK": requests}:
            raise BenchError(f"{call.name} on {target.name} failed: {report['statusCodeDistribution']} {report['errorDistribution']}")
        return report

    def _preflight_outcomes(self, target: Target) -> Counter[str]:
        """Return the outcomes of the last proposals by another Preflight, because a Preflight is not in the log."""
        with target.channel() as channel:
            request = arbitration.BatchPreflightRequest(envelopes=self._proposals[: workload.BATCH_PROPOSALS])
            results = arbitration_grpc.ArbitrationServiceStub(channel).BatchPreflight(request).results
        return Counter(_outcome(result.decision) for result in results)


def _head(target: Target) -> int:
    """Return the sequence number of the target's newest event."""
    with target.channel() as channel:
        return projection_grpc.ProjectionServiceStub(channel).GetStatus(projection.GetStatusRequest()).head_sequence_number


def _recorded_outcomes(target: Target, head: int, decisions: int) -> Counter[str]:
    """Return the outcomes of the first decisions after `head`, from the log. Raises BenchError if their number is wrong."""
    outcomes: Counter[str] = Counter()
    with target.channel() as channel:
        stub = event_grpc.EventServiceStub(channel)
        request = event.ListEventsRequest(
            categories=[common_pb2.EVENT_CATEGORY_DECISION_EVENT], from_sequence_number=head + 1, page_size=PAGE_SIZE
        )
        while True:
            page = stub.ListEvents(request)
            # Other decisions follow an earlier one, e.g. the expiry of an approval.
            first = [envelope.decision for envelope in page.envelopes if not envelope.decision.previous_decision_id]
            outcomes.update(map(_outcome, first))
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
    if outcomes.total() != decisions:
        raise BenchError(f"{target.name}: {decisions} proposals were answered, and {outcomes.total()} decisions are in the log")
    return outcomes


def _outcome(decision: decision_pb2.Decision) -> str:
    """Return outcome and reason code. Raises BenchError if no rule decided, because such a decision costs less."""
    name = decision_pb2.Outcome.Name(decision.outcome).removeprefix("OUTCOME_")
    if not decision.rule_id:
        raise BenchError(f"a decision did not come from a rule: {name} {decision.reason_code}")
    return f"{name} {decision.reason_code}".strip()


def _write_protoset(path: Path) -> None:
    """Write the service's descriptor for ghz with every nested message as bytes, which is the same on the wire.

    ghz handles messages by reflection, at several times the cost of the server.
    """
    file = descriptor_pb2.FileDescriptorProto()
    arbitration.DESCRIPTOR.CopyToProto(file)
    del file.dependency[:]
    for message in file.message_type:
        for member in message.field:
            if member.type == descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE:
                member.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
            elif member.type == descriptor_pb2.FieldDescriptorProto.TYPE_ENUM:
                member.type = descriptor_pb2.FieldDescriptorProto.TYPE_INT32
            member.ClearField("type_name")
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
