"""What a build makes of the same story and of a given log. As a program: `python -m tests.compiled.program tell|replay FILE`.

`tell` writes the log, a record a line; `replay` recomputes a written one. Both print which build they ran on and what the log came to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gavel_server.build import build
from gavel_server.log import Record

from tests.unit.core.driver import BUS, replayed
from tests.unit.core.story import tell


def main(verb: str, file: Path) -> None:
    """Tell or replay; an exception is a log that does not hold."""
    if verb == "tell":
        core = tell()
        records, state = core.records, core.state
        file.write_text("".join(f"{record.envelope.hex()} {record.chain_hash.hex()}\n" for record in records), encoding="ascii")
    else:
        lines = [line.split() for line in file.read_text(encoding="ascii").splitlines()]
        records = [Record(number, bytes.fromhex(envelope), bytes.fromhex(chain)) for number, (envelope, chain) in enumerate(lines, 1)]
        state = replayed(BUS, records).state
    print(json.dumps({"build": build(), "events": len(records), "chain_hash": records[-1].chain_hash.hex(), "digest": state.digest()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
