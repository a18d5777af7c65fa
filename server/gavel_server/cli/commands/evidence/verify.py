"""`gavel evidence verify`: hashes again all evidence that a trace pins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.commands.evidence.store import Store, open_store
from gavel_server.cli.connection import connect
from gavel_server.cli.errors import CommandError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, JsonReport, Server

if TYPE_CHECKING:
    from gavel.v1.envelope_pb2 import Envelope
    from gavel_client import SyncGavelClient

_PAGE_SIZE = 1000


def verify_evidence(
    trace_id: Annotated[str, typer.Argument(metavar="TRACE", help="The trace.")],
    store: Store,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Hash again what the tool results, observations and decisions of a trace rest on.

    Exit status 1: some of it is missing or altered. Evidence that was never kept is listed and is no failure.
    """
    import json
    from dataclasses import asdict

    from gavel_client.evidence.store import EvidenceError
    from gavel_client.evidence.verification import ALTERED, MISSING, verify_trace

    from gavel_server.cli.rendering import output

    opened = open_store(store)
    with connect(server, bus) as client:
        events = list(_events(client, trace_id))
        if not events:
            raise CommandError(f"bus {bus} has no trace {trace_id}; check the id and --bus")

        def trace_of(sequence_number: int) -> Iterator[Envelope]:
            return _events(client, client.get_event(sequence_number=sequence_number).envelope.trace_id)

        try:
            checks = verify_trace(opened, events, trace_of)
        except EvidenceError as error:
            raise CommandError(f"{error} (--store {store})") from error
    if as_json:
        output.print_line(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        output.print_table(
            ("state", "hash", "pinned by"),
            ((check.state, check.hash, ", ".join(check.pinned_by)) for check in checks),
            title=f"Evidence of trace {trace_id}",
            empty=f"Trace {trace_id} pins no evidence.",
        )
    failed = [check for check in checks if check.state in (MISSING, ALTERED)]
    if failed:
        problem = f"{len(failed)} of {len(checks)} pieces of evidence do not verify"
        raise CommandError(f"{problem}; the table names them: restore the store from a copy")


def _events(client: SyncGavelClient, trace_id: str) -> Iterator[Envelope]:
    """Iterate over all events of a trace."""
    page_token = ""
    while True:
        page = client.list_events(trace_id=trace_id, page_size=_PAGE_SIZE, page_token=page_token)
        yield from page.envelopes
        page_token = page.next_page_token
        if not page_token:
            return
