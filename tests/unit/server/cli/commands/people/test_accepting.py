"""`gavel accept-clock` and `gavel accept-loss`: the name that their requests give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from gavel.v1.event_service_pb2 import AcceptClockResponse, AcceptLossResponse
from gavel_client import GavelError, Violation
from gavel_server.cli.main import run
from gavel_server.cli.options import person
from grpc import StatusCode

COMMANDS = [("accept_clock", ["accept-clock"], AcceptClockResponse()), ("accept_loss", ["accept-loss", "--at", "7"], AcceptLossResponse())]


class FakeClient:
    """Notes the name in each request. Without authentication it refuses a request without a name, as a server does."""

    def __init__(self, response: object, *, authenticates: bool) -> None:
        self.names: list[str] = []
        self._response = response
        self._authenticates = authenticates

    def accept_clock(self, *, accepted_by: str, **_: Any) -> object:
        """See GavelClient."""
        self.names.append(accepted_by)
        if not accepted_by and not self._authenticates:
            violation = Violation("accepted_by", "is required")
            raise GavelError(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "accepted_by is required", (violation,))
        return self._response

    accept_loss = accept_clock


@pytest.mark.parametrize(("module", "arguments", "response"), COMMANDS)
@pytest.mark.parametrize(
    ("authenticates", "by", "names"), [(True, [], [""]), (False, [], ["", person(None)]), (False, ["--by", "ada"], ["ada"])]
)
def test_name_of_the_person(
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    arguments: list[str],
    response: object,
    authenticates: bool,
    by: list[str],
    names: list[str],
) -> None:
    """A server that authenticates takes the name from the credentials; another one gets --by, or the login name once it asks for a name."""
    client = FakeClient(response, authenticates=authenticates)

    @contextmanager
    def connect(server: str, bus: str) -> Iterator[FakeClient]:
        yield client

    monkeypatch.setattr(f"gavel_server.cli.commands.people.{module}.connect", connect)
    assert 0 == run([*arguments, "--reason", "seen", "--json", *by])
    assert names == client.names
