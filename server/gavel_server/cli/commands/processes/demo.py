"""`gavel demo`: one trace on a real server, Redis and executor, and the replay that proves its log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gavel_server.cli.options import BUS_DEFAULT, DATA_DEFAULT, Bus, Debug


def demo(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The directory for the demo's log.")] = DATA_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Play one trace on a real server, then prove its log.

    The demo can run any number of times on one data directory. Afterwards gavel log, trace and replay show its log.
    """
    import asyncio

    from gavel_server.cli.demo.stage import perform

    raise typer.Exit(asyncio.run(perform(data, bus)))
