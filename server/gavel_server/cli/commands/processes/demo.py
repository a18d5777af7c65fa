"""`gavel demo`: one trace on a real server and Redis, with a process for each party, and the replay that proves its log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from gavel_server.cli.options import BUS_DEFAULT, Bus, Debug

# Not that of `gavel serve`: the demo puts grants in force, after which a server without authentication allows no calls.
DATA_DEFAULT: Final = Path(".gavel-demo")


def demo(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The directory for the demo's log and tokens.")] = DATA_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Play one trace on a real server, then prove its log.

    The demo can run any number of times on one data directory. Afterwards gavel log, trace and replay show its log.
    """
    import asyncio

    from gavel_server.cli.demo.stage import perform

    raise typer.Exit(asyncio.run(perform(data, bus)))
