"""Recorded logs: the story and every scenario, written by one build of the core to a file that later builds replay.

The file contains JSON lines, compressed with gzip, one per event: bus, sequence number, envelope bytes (base64) and chain hash (hex). The
events of a bus stand together, in order. `python -m tests.support.histories.record_log FILE` writes one; tests/data/README.md says when.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gavel_server.log import Record

from tests.scenarios.layers import CoreLayer
from tests.scenarios.player import play_steps
from tests.scenarios.reader import load_scenarios
from tests.support.histories.story import play_story


def record_logs() -> dict[str, Sequence[Record]]:
    """Run the story and the scenarios on the core and return their logs by bus."""
    story = play_story()
    logs: dict[str, Sequence[Record]] = {story.bus: story.records}
    for scenario in load_scenarios():
        if scenario.engines_disagree:
            continue  # replay would find the disagreement that the scenario injects
        layer = CoreLayer(scenario.id)
        asyncio.run(play_steps(scenario, layer, len(scenario.steps)))
        logs[scenario.id] = layer.core.records
    return logs


def write_logs(path: Path, logs: Mapping[str, Sequence[Record]]) -> None:
    """Write the logs of several buses. The same logs give the same file."""
    lines = (
        json.dumps(
            {
                "bus": bus,
                "sequence_number": record.sequence_number,
                "envelope": base64.b64encode(record.envelope).decode(),
                "chain_hash": record.chain_hash.hex(),
            }
        )
        for bus, records in logs.items()
        for record in records
    )
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), compresslevel=9, mtime=0))


def read_logs(path: Path) -> dict[str, list[Record]]:
    """Return the records of a file by bus."""
    logs: dict[str, list[Record]] = {}
    for line in gzip.decompress(path.read_bytes()).splitlines():
        entry = json.loads(line)
        record = Record(entry["sequence_number"], base64.b64decode(entry["envelope"]), bytes.fromhex(entry["chain_hash"]))
        logs.setdefault(entry["bus"], []).append(record)
    return logs


def main(path: Path) -> None:
    """Write the file and print what it holds."""
    logs = record_logs()
    write_logs(path, logs)
    print(f"{path}: {sum(map(len, logs.values()))} events of {len(logs)} buses, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
