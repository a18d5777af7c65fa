"""`gavel demo`: one governed trace on a real server, its Redis and an executor, and the proof of what they recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gavel_server.cli.options import BUS_DEFAULT, DATA_DEFAULT, Bus, Debug


def demo(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Where the demo's log is kept.")] = DATA_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Play one governed trace on a real server, then prove its log.

    It may be played any number of times on one data directory; gavel log, trace and replay then show what it left there.
    """
    import asyncio

    from gavel_server.cli.demo_stage import perform

    raise typer.Exit(asyncio.run(perform(data, bus)))
