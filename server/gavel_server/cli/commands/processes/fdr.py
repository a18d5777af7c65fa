"""`gavel fdr`: the fact derivation reactor as a process of its own."""

from __future__ import annotations

from gavel_server.cli.connection import open_client
from gavel_server.cli.consumer import Data, Redis, run_until_signal, stop_on_signal, work_queue_url
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Server


def fdr(redis: Redis = "", data: Data = None, server: Server = SERVER_DEFAULT, bus: Bus = BUS_DEFAULT, debug: Debug = False) -> None:
    """Derive facts from executions. A server does so itself unless it runs with --no-fdr.

    SIGTERM, SIGINT or SIGHUP stops the command.
    """
    url = work_queue_url(data, redis)

    async def run() -> None:
        from gavel_client.consumers.fact_derivation import FactDerivationReactor

        from gavel_server.cli.rendering import output

        async with open_client(server, bus) as client:
            reactor = FactDerivationReactor(client, redis_url=url)
            output.print_line(f"gavel: deriving facts on bus {bus}")
            stop_on_signal(reactor.stop)
            await reactor.run()

    run_until_signal(run)
