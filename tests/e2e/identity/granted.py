"""A server that requires authentication, with a token for each right and grants that give each token its right alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
from gavel.v1.administration_service_pb2 import DeployGrantsRequest, DeployGrantsResponse
from gavel.v1.diagnostic_pb2 import AccessRefused
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import ListEventsRequest, ListEventsResponse
from gavel_client import GavelError
from gavel_rules.identity.rights import RIGHTS
from gavel_server.front.programs import FrontSetting
from gavel_server.identity.tokens import add_token
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.e2e.identity.world import CALL_SECONDS_MAX, Metadata, bearer, wait_until
from tests.e2e.world import Server, run_servers

ADMIN: Final = "ada"
_Response = TypeVar("_Response", bound=Message)
GRANTS: Final = "\n".join(
    [
        "gavel: v1",
        "name: one-right-each",
        "version: 1",
        "grants:",
        *(f"  - {{to: [may-{right}], may: [{right}]}}" for right in RIGHTS),
        f"  - {{to: [{ADMIN}], may: [{', '.join(RIGHTS)}]}}",
        "",
    ]
)


class GrantedServer:
    """The server. `tokens` are by the name of their caller: ADMIN, "nobody" without a grant, and "may-RIGHT"."""

    def __init__(self, directory: Path, front: FrontSetting, *, options: tuple[str, ...] = ()) -> None:
        names = (ADMIN, "nobody", *(f"may-{right}" for right in RIGHTS))
        self.front = front
        self.tokens = {name: add_token(directory / "tokens.toml", name, (), None) for name in names}
        lines = ['authentication = "required"', f'token_file = "{directory / "tokens.toml"}"', f"admins = {json.dumps([ADMIN])}"]
        (directory / "gavel.toml").write_text("\n".join(lines) + "\n")
        options = ("--config", str(directory / "gavel.toml"), "--front", front, *options)
        self.server = Server(directory / "data", options=options)

    @contextmanager
    def running(self) -> Iterator[GrantedServer]:
        """Run the server for a block, with the grants in force."""
        with run_servers(self.server):
            self.deploy(GRANTS)
            yield self

    def deploy(self, grants: str) -> None:
        """Deploy grants as the administrator."""
        request = DeployGrantsRequest(document=grants)
        self.call("gavel.v1.AdministrationService/DeployGrants", ADMIN, request, DeployGrantsResponse)

    def channel(self) -> grpc.Channel:
        """Return a new channel with a connection of its own."""
        return grpc.insecure_channel(self.server.address, options=(("grpc.use_local_subchannel_pool", 1),))

    def by(self, name: str) -> Metadata:
        """Return the metadata of a call by one of the callers."""
        return bearer(self.tokens[name])

    def call(self, rpc: str, name: str, request: Message, response: type[_Response]) -> _Response:
        """Make a call by one of the callers. Raises grpc.RpcError."""
        with self.channel() as channel:
            method: Any = channel.unary_unary(f"/{rpc}", response_deserializer=response.FromString)
            answer: _Response = method(request.SerializeToString(), metadata=self.by(name), timeout=CALL_SECONDS_MAX)
            return answer

    def events(self) -> list[Envelope]:
        """Return the events of the default bus."""
        events: list[Envelope] = []
        token = ""
        while True:
            request = ListEventsRequest(page_size=1000, page_token=token)
            page = self.call("gavel.v1.EventService/ListEvents", ADMIN, request, ListEventsResponse)
            events += page.envelopes
            token = page.next_page_token
            if not token:
                return events

    def refusals(self) -> list[AccessRefused]:
        """Return what the log of the default bus says of refused calls."""
        details = [event.agent_diagnostic for event in self.events() if event.HasField("agent_diagnostic")]
        return [detail.access_refused for detail in details if detail.HasField("access_refused")]

    def await_refusal(self, check: Callable[[AccessRefused], bool]) -> AccessRefused:
        """Wait until the log has an event about refused calls that passes a check, and return the event."""
        matches: list[AccessRefused] = []

        def has() -> bool:
            matches[:] = [one for one in self.refusals() if check(one)]
            return bool(matches)

        wait_until(has, "the log has no such AccessRefused")
        return matches[0]


class Methods:
    """Every method that a server describes by reflection, and calls of them with empty requests."""

    def __init__(self, channel: grpc.Channel, metadata: Metadata) -> None:
        """`channel` is for the calls; the server describes itself to the caller of `metadata`."""
        self._channel = channel
        described = grpc.intercept_channel(channel, _WithMetadata(metadata))
        database = ProtoReflectionDescriptorDatabase(described)
        pool = DescriptorPool(database)
        services = [pool.FindServiceByName(name) for name in database.get_services()]
        self.by_name: dict[str, MethodDescriptor] = {
            f"{service.full_name}/{method.name}": method for service in services for method in service.methods
        }

    def code(self, name: str, metadata: Metadata, **fields: object) -> tuple[grpc.StatusCode, str]:
        """Return how a call with these fields ends, or how its first answer does: code and reason."""
        method = self.by_name[name]
        data = GetMessageClass(method.input_type)(**fields).SerializeToString()
        shape = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        call: Any = getattr(self._channel, shape)(f"/{name}")
        argument = iter([data]) if method.client_streaming else data
        try:
            if not method.server_streaming:
                call(argument, metadata=metadata, timeout=CALL_SECONDS_MAX)
                return grpc.StatusCode.OK, ""
            answers = call(argument, metadata=metadata, timeout=CALL_SECONDS_MAX)
            try:
                return _outcome(next(answers), method)
            finally:
                answers.cancel()
        except StopIteration:
            return grpc.StatusCode.OK, ""
        except grpc.RpcError as error:
            failure = GavelError.from_rpc_error(error)
            return failure.code, failure.reason


def _outcome(answer: bytes, method: MethodDescriptor) -> tuple[grpc.StatusCode, str]:
    """Return the outcome in an answer of a stream whose requests are answered one by one."""
    response: Any = GetMessageClass(method.output_type).FromString(answer)
    if "error" in response.DESCRIPTOR.fields_by_name and response.HasField("error"):
        codes = {code.value[0]: code for code in grpc.StatusCode}
        return codes[response.error.code], ""
    return grpc.StatusCode.OK, ""


class _WithMetadata(grpc.StreamStreamClientInterceptor):
    """Adds metadata to each call."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        """Make the call with the metadata."""
        return continuation(details._replace(metadata=[*(details.metadata or ()), *self._metadata]), requests)
