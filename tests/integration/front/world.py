"""A front as a process of its own, between callers and a server that the tests script."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
from gavel.v1 import error_pb2
from gavel_server.errors import ServiceError, abort
from gavel_server.front.frames import METHODS
from gavel_server.front.programs import FrontSetting, native_program
from gavel_server.front.supervisor import FrontSupervisor
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.callback_methods import Answer, Method
from gavel_server.rpc.errors import fit
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.rpc.limits import RECEIVE_BYTES_MAX, SEND_BYTES_MAX
from gavel_server.rpc.service_descriptors import ARBITRATION
from gavel_server.rpc.transport import bind, make_server
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

Context = grpc.aio.ServicerContext[Any, Any]
HOT: Final = f"/gavel.v1.ArbitrationService/{METHODS[0]}"
PROPOSALS: Final = "/gavel.v1.ArbitrationService/StreamProposals"
UNARY: Final = "/gavel.v1.EventService/PublishEvent"
ACTIVATE: Final = "/gavel.v1.RuleSetService/ActivateRuleSet"
STREAM: Final = "/gavel.v1.EventService/SubscribeEvents"
LARGE_ERROR: Final = fit(ServiceError(error_pb2.ERROR_REASON_WRONG_STATE, "ä" * 1000, [("field", "x" * 1000)] * 20))
TRAILERS: Final = (("kept", "as it is"), ("kept-bin", b"\x00\xff"))
CALL_SECONDS_MAX: Final = 60.0
# Enough for a call to arrive, on a busy machine too.
LATE_SECONDS: Final = 3.0
# A process with the interpreter and gRPC has about 40 MB to start with.
MEMORY_KIB_MAX: Final = 400 * 1024


class Scripted(grpc.GenericRpcHandler):
    """The server: the first word of a request selects its behaviour; `ended` has an item for each `wait` or `flood` that ended."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[None] = asyncio.Queue()
        self.ended: asyncio.Queue[None] = asyncio.Queue()
        self.seen: set[str] = set()  # methods that were called
        self.refusals = 0  # calls of `busy`
        self.flooded = 0  # messages that `flood` has started to send

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of UNARY, ACTIVATE or STREAM; there are no others."""
        self.seen.add(handler_call_details.method)
        handlers: dict[str, Any] = {
            UNARY: grpc.unary_unary_rpc_method_handler(self._unary),
            ACTIVATE: grpc.unary_unary_rpc_method_handler(self._unary),
            STREAM: grpc.unary_stream_rpc_method_handler(self._behave),
        }
        return handlers.get(handler_call_details.method)

    async def _unary(self, request: bytes, context: Context) -> bytes:
        return await anext(aiter(self._behave(request, context)))

    async def _behave(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        verb, _, rest = request.partition(b" ")
        match verb:
            case b"echo":
                await context.send_initial_metadata(TRAILERS)
                context.set_trailing_metadata(TRAILERS)
                yield rest
            case b"many":
                for number in range(int(rest)):
                    yield b"%d" % number
            case b"grow":
                yield bytes(int(rest))
            case b"fail":
                if rest:
                    yield rest
                await context.abort_with_status(rpc_status.to_status(LARGE_ERROR.status()))
            case b"busy":
                self.refusals += 1
                await abort(context, ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, "full", retry_after_ms=int(rest)))
            case b"tell":
                own = ("user-agent", "grpc-accept-encoding", "gavel-peer", "gavel-received")
                yield repr(sorted(pair for pair in map(tuple, context.invocation_metadata() or ()) if pair[0] not in own)).encode()
            case b"remaining":
                yield repr(context.time_remaining()).encode()
            case b"wait" | b"flood":
                self.entered.put_nowait(None)
                try:
                    while verb == b"flood":
                        self.flooded += 1
                        yield bytes(64 * 1024)
                    await asyncio.Event().wait()
                finally:
                    self.ended.put_nowait(None)


class World:
    """A server on a transport, and a channel to each of its addresses. Calls of the hot path wait in `requests` for the test to answer.

    On grpc.aio alone ("none") both channels lead to the server itself.
    """

    def __init__(self, directory: Path, transport: FrontSetting) -> None:
        self.directory = directory
        self.transport = transport
        self.scripted = Scripted()
        self.requests: asyncio.Queue[tuple[str, bytes, Answer]] = asyncio.Queue()
        self.contexts: list[CallContext] = []  # of the calls of the hot path
        self.methods: dict[str, Method] = {name: self._method(name) for name in METHODS}
        self.interceptor = Interceptor()  # of grpc.aio
        self.supervisor = self.supervisor_on("127.0.0.1:0")
        self.address = ""
        self.channels: list[grpc.aio.Channel] = []
        self._server = make_server(behind_front=True)

    @property
    def inner(self) -> str:
        """The server's own address."""
        return f"unix:{self.directory}/inner.sock"

    def supervisor_on(self, listen: str) -> FrontSupervisor:
        """Return a supervisor of a front of this server, not started."""
        return FrontSupervisor(native_program(), self.methods, listen, self.inner)

    def _method(self, name: str) -> Method:
        def method(data: bytes, context: CallContext, answer: Answer) -> None:
            self.contexts.append(context)
            self.requests.put_nowait((name, data, answer))

        return method

    async def serve(self) -> None:
        """Start the server, without a front."""
        self._server.add_generic_rpc_handlers((self.scripted,))
        if self.transport == "none":
            self.interceptor.register_methods(self._server, ARBITRATION, self.methods)
        bind(self._server, self.inner)
        await self._server.start()

    async def stop(self) -> None:
        """Stop everything."""
        for channel in self.channels:
            await channel.close()
        await self.supervisor.stop()
        await self._server.stop(None)

    @property
    def process_id(self) -> int:
        """The front's process."""
        return self.process.pid

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The same, as the supervisor's child."""
        process = self.supervisor._process  # only tests need it
        assert process is not None
        return process

    async def start(self) -> None:
        """Start the front if there is one, let it serve, and connect to both."""
        self.address = self.inner
        if self.transport == "native":
            self.address = await self.supervisor.start()
            self.supervisor.serve()
        options = [("grpc.max_receive_message_length", SEND_BYTES_MAX), ("grpc.max_send_message_length", RECEIVE_BYTES_MAX)]
        self.channels = [grpc.aio.insecure_channel(target, options=options) for target in (self.inner, self.address)]

    async def call(self, channel: grpc.aio.Channel, method: str, *requests: bytes, **options: Any) -> list[Any]:
        """Make a call; return its answers, code, details, status, and the metadata that a method sets."""
        options = {"timeout": CALL_SECONDS_MAX, **options}
        if len(requests) == 1:
            one: Any = channel.unary_stream(method)
            call = one(requests[0], **options)
        else:
            many: Any = channel.stream_stream(method)
            call = many(iter(requests), **options)
        answers: list[Any] = []
        status: Status | None = None
        try:
            async for answer in call:
                answers.append(answer)  # noqa: PERF401  # the answers before an error count
        except grpc.aio.AioRpcError as error:
            with suppress(ValueError):
                status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it reads the trailers, which this has
        metadata_of_server = [
            sorted(pair for pair in map(tuple, metadata) if pair[0].startswith("kept"))  # the order of keys has no meaning
            for metadata in (await call.initial_metadata(), await call.trailing_metadata())
        ]
        return [answers, await call.code(), await call.details(), status, *metadata_of_server]

    async def call_both(self, method: str, *requests: bytes, **options: Any) -> list[Any]:
        """Make a call to the server and through the front; assert that the results are equal and return one."""
        direct, through = [await self.call(channel, method, *requests, **options) for channel in self.channels]
        assert direct == through
        return through

    async def wait_until_restarted(self) -> None:
        """Wait until a killed front answers again."""
        answers: list[bytes] = []
        async with asyncio.timeout(CALL_SECONDS_MAX):
            while not answers:
                async with grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                    answers, *_ = await self.call(channel, UNARY, b"echo back", wait_for_ready=True)
        assert [b"back"] == answers


async def result_of(call: Awaitable[Any]) -> bytes | grpc.StatusCode | None:
    """Return a call's answer, its status code, or None if it was cancelled."""
    try:
        return bytes(await call)
    except grpc.aio.AioRpcError as error:
        return error.code()
    except asyncio.CancelledError:
        return None


def memory_kib(process_id: int) -> int:
    """Return the resident memory of a process."""
    return int(next(line for line in of_process(process_id, "status").splitlines() if line.startswith("VmRSS:")).split()[1])


def of_process(process_id: int, what: str) -> str:
    """Return a file of /proc about a process."""
    return Path(f"/proc/{process_id}/{what}").read_text()
