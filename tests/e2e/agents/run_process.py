"""A process that runs a proposal loop once and prints its result as JSON.

Arguments: SERVER BUS RUN_KEY SUBJECT WEIGHT BARRIER PROCESSES. Its provider answers once PROCESSES files are in the directory BARRIER,
where it puts one itself. With PROCESSES 0 it kills the process instead.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from gavel.v1.envelope_pb2 import Envelope
from gavel_client import FactNeed, FactProviders, GavelClient, ProposalLoop, fact_envelope, proposal_envelope

from tests.e2e.world import ACTION, AGENT, DAY_MS, DEPOT


async def run_loop(server: str, bus: str, run_key: str, subject: str, weight: str, barrier: str, processes: str) -> None:
    """Run the loop."""
    async with GavelClient(server, bus=bus) as client:
        providers = FactProviders()
        calls: list[str] = []

        @providers.facts("parcel.status", source=DEPOT.id)
        async def status(need: FactNeed) -> list[Envelope]:
            calls.append(need.subject)
            await asyncio.to_thread(Path(barrier, f"{os.getpid()}-{len(calls)}").touch)
            if processes == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            while len(os.listdir(barrier)) < int(processes):  # noqa: ASYNC110  # the other process is not of this event loop
                await asyncio.sleep(0.005)
            fact = fact_envelope(need.subject, DEPOT, key="parcel.status", value="ready", trace_id=need.trace_id)
            return [(await client.publish_event(fact)).envelope]

        proposal = proposal_envelope(subject, AGENT, action_type=ACTION, params={"weight": float(weight)}, max_fact_age_ms=DAY_MS)
        result = await ProposalLoop(client, providers).run(proposal, run_key=run_key)
        answer = {
            "reason": result.reason.name,
            "decisions": [one.decision.event_id for one in result.rounds if one.decision is not None],
            "calls": len(calls),
        }
        print(json.dumps(answer))


def main() -> None:
    """Run the loop of the arguments."""
    asyncio.run(run_loop(*sys.argv[1:]))
