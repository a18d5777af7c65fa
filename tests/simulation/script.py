"""A script of commands from a seed, decided in batches of a given size: `python -m tests.simulation.script SEED BATCH`.

It is a program, so that a test can run it under another hash seed, time zone or locale and compare the output. The times of the
commands are fixed; the size of the batches is not.
"""

from __future__ import annotations

import json
import random
import sys

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import BeginExecution, Command, Tick
from gavel_rules.state.state import State
from gavel_server.bus.batch.decision import decide_batch
from gavel_server.bus.recent_events import RecentEvents
from gavel_server.bus.request import Request
from gavel_server.log import empty_head
from gavel_server.log.memory import MemoryLog

from tests.support.citations import references_for
from tests.support.driver import BUS, EXECUTOR, Core, copy_command
from tests.support.histories.plays import VERSIONS, Step, command_of

KINDS = (*["fact", "proposal"] * 4, *["begin", "report", "derive"] * 4, "observation", "evidence", "renew", "rules")
TIMES = 60
COMMANDS_PER_TIME = 8


def commands(seed: int) -> list[tuple[Command, int]]:
    """Return the script: commands and the times at which they are decided. It is recorded by running each command on a core."""
    randomness = random.Random(seed)
    core = Core(VERSIONS[0])
    for _ in range(TIMES):
        core.pass_time(randomness.choice((50, 500, 1_000, 9_000)))
        for _ in range(COMMANDS_PER_TIME):
            step = Step(randomness.choice(KINDS), randomness.randrange(21), randomness.randrange(21), randomness.randrange(21))
            command = command_of(core, step)
            if command is not None:
                core.run(command)
    core.run(BeginExecution(core.new_id(), EXECUTOR, 1_000))
    core.run(Tick(1))
    return core.commands


def decide(seed: int, batch_size: int) -> dict[str, object]:
    """Decide the script in batches and return a summary of the log to compare."""
    script = commands(seed)
    state, head, lookup = State(BUS), empty_head(BUS), RecentEvents(MemoryLog(BUS, lambda: 0))
    events: dict[str, Envelope] = {}
    position = 0
    while position < len(script):
        now_ms = script[position][1]
        batch: list[Command] = []
        while position < len(script) and script[position][1] == now_ms and len(batch) < batch_size:
            batch.append(copy_command(script[position][0]))
            position += 1
        pending = [Request(item, lambda _: None, "", 0, references=references_for(item, state, lookup.citable, events)) for item in batch]
        decision = decide_batch(state, lookup, head, pending, now_ms)
        state.commit()
        head = decision.head
        for envelope in decision.envelopes:
            lookup.add(envelope)
            events[envelope.event_id] = envelope
    names = sorted({event.event_name for event in events.values()})
    return {"events": head.sequence_number, "chain_hash": head.chain_hash.hex(), "digest": state.digest(), "names": names}


if __name__ == "__main__":
    print(json.dumps(decide(int(sys.argv[1]), int(sys.argv[2])), sort_keys=True))
