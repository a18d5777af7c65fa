"""A program to compare builds: `python -m tests.compiled.program tell|replay FILE`.

`tell` runs the story and writes its log, a record per line. `replay` recomputes such a log. Both print the build, the number of
events, the last chain hash and the digest of the state.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gavel_server.log import Record
from gavel_server.process.build import build

from tests.support.driver import BUS, replay_log
from tests.support.histories.story import play_story


def main(verb: str, file: Path) -> None:
    """Run `tell` or `replay`. An exception means that the log does not replay."""
    if verb == "tell":
        core = play_story()
        records, state = core.records, core.state
        file.write_text("".join(f"{record.envelope.hex()} {record.chain_hash.hex()}\n" for record in records), encoding="ascii")
    else:
        lines = [line.split() for line in file.read_text(encoding="ascii").splitlines()]
        records = [Record(number, bytes.fromhex(envelope), bytes.fromhex(chain)) for number, (envelope, chain) in enumerate(lines, 1)]
        state = replay_log(BUS, records).state
    print(json.dumps({"build": build(), "events": len(records), "chain_hash": records[-1].chain_hash.hex(), "digest": state.digest()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
