"""A fixed script of commands, made by a seed and decided in batches of a given size: prints what came of it.

Run as a program, so that a test can run it under another hash seed, time zone or locale and compare:
`python -m tests.simulation.script SEED BATCH`. The moments are fixed; how many commands one batch takes is not.
"""

from __future__ import annotations

import json
import random
import sys

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import BeginExecution, Command, Tick
from gavel_rules.projection import State
from gavel_server.bus.lookup import Lookup
from gavel_server.bus.planning import Pending, plan
from gavel_server.log import empty_head
from gavel_server.log.memory import MemoryLog

from tests.unit.core.citing import references_for
from tests.unit.core.driver import BUS, EXECUTOR, Core, copied
from tests.unit.core.plays import VERSIONS, Step, command_of

KINDS = (*["fact", "proposal"] * 4, *["begin", "report", "derive"] * 4, "observation", "evidence", "renew", "rules")
MOMENTS = 60
COMMANDS_PER_MOMENT = 8


def commands(seed: int) -> list[tuple[Command, int]]:
    """The script: commands with the moments at which they are decided. Made by playing it once, one command at a time."""
    randomness = random.Random(seed)
    core = Core(VERSIONS[0])
    for _ in range(MOMENTS):
        core.pass_time(randomness.choice((50, 500, 1_000, 9_000)))
        for _ in range(COMMANDS_PER_MOMENT):
            step = Step(randomness.choice(KINDS), randomness.randrange(21), randomness.randrange(21), randomness.randrange(21))
            command = command_of(core, step)
            if command is not None:
                core.run(command)
    core.run(BeginExecution(core.new_id(), EXECUTOR, 1_000))
    core.run(Tick(1))
    return core.commands


def decide(seed: int, batch_size: int) -> dict[str, object]:
    """Decide the script in batches and return what can be compared."""
    script = commands(seed)
    state, head, lookup = State(BUS), empty_head(BUS), Lookup(MemoryLog(BUS, lambda: 0))
    events: dict[str, Envelope] = {}
    position = 0
    while position < len(script):
        now_ms = script[position][1]
        batch: list[Command] = []
        while position < len(script) and script[position][1] == now_ms and len(batch) < batch_size:
            batch.append(copied(script[position][0]))
            position += 1
        pending = [Pending(item, lambda _: None, "", 0, references=references_for(item, state, lookup.cited, events)) for item in batch]
        decided = plan(state, lookup, head, pending, now_ms)
        state.commit()
        head = decided.head
        for envelope in decided.envelopes:
            lookup.note(envelope)
            events[envelope.event_id] = envelope
    names = sorted({event.event_name for event in events.values()})
    return {"events": head.sequence_number, "chain_hash": head.chain_hash.hex(), "digest": state.digest(), "names": names}


if __name__ == "__main__":
    print(json.dumps(decide(int(sys.argv[1]), int(sys.argv[2])), sort_keys=True))
