"""A front as a process of its own, between callers and a server that the tests play."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
from gavel.v1 import error_pb2
from gavel_server.errors import ServiceError
from gavel_server.front.keeper import FrontKeeper
from gavel_server.front.link import METHODS
from gavel_server.front.programs import Front
from gavel_server.services.arbitration import Answer
from gavel_server.services.boundary import fitted
from gavel_server.transport import channel_options
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

Context = grpc.aio.ServicerContext[Any, Any]
HOT: Final = f"/gavel.v1.ArbitrationService/{METHODS[0]}"
PROPOSALS: Final = "/gavel.v1.ArbitrationService/StreamProposals"
UNARY: Final = "/gavel.v1.EventService/GetEvent"
STREAM: Final = "/gavel.v1.EventService/SubscribeEvents"
LARGE_ERROR: Final = fitted(ServiceError(error_pb2.ERROR_REASON_WRONG_STATE, "ä" * 1000, [("field", "x" * 1000)] * 20))
TRAILERS: Final = (("kept", "as it is"), ("kept-bin", b"\x00\xff"))
CALL_SECONDS_MAX: Final = 60.0
# Enough for a call to arrive, on a busy machine too.
LATE_SECONDS: Final = 3.0
# A process with the interpreter and gRPC has about 40 MB to start with.
MEMORY_KIB_MAX: Final = 400 * 1024


class Scripted(grpc.GenericRpcHandler):
    """The server: a request's first word says what is to become of the call; `ended` counts calls that `wait` or `flood` and have ended."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[None] = asyncio.Queue()
        self.ended: asyncio.Queue[None] = asyncio.Queue()
        self.flooded = 0  # messages that `flood` has begun to send

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of UNARY or STREAM; there are no others."""
        handlers: dict[str, Any] = {
            UNARY: grpc.unary_unary_rpc_method_handler(self._once),
            STREAM: grpc.unary_stream_rpc_method_handler(self._behave),
        }
        return handlers.get(handler_call_details.method)

    async def _once(self, request: bytes, context: Context) -> bytes:
        return await anext(aiter(self._behave(request, context)))

    async def _behave(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        word, _, rest = request.partition(b" ")
        match word:
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
            case b"tell":
                own = ("user-agent", "grpc-accept-encoding")
                yield repr(sorted(pair for pair in map(tuple, context.invocation_metadata() or ()) if pair[0] not in own)).encode()
            case b"remaining":
                yield repr(context.time_remaining()).encode()
            case b"wait" | b"flood":
                self.entered.put_nowait(None)
                try:
                    while word == b"flood":
                        self.flooded += 1
                        yield bytes(64 * 1024)
                    await asyncio.Event().wait()
                finally:
                    self.ended.put_nowait(None)


class World:
    """A front, the server behind it, and a channel to each. Calls of the hot path wait in `asked` until the test answers them."""

    def __init__(self, directory: Path, program: Front) -> None:
        self.directory = directory
        self.program = program
        self.scripted = Scripted()
        self.asked: asyncio.Queue[tuple[str, bytes, Answer]] = asyncio.Queue()
        self.keeper = self.keeper_on("127.0.0.1:0")
        self.address = ""
        self.channels: list[grpc.aio.Channel] = []

    @property
    def inner(self) -> str:
        """The server's own address."""
        return f"unix:{self.directory}/inner.sock"

    def keeper_on(self, listen: str) -> FrontKeeper:
        """Return a keeper of a front of this server, not started."""
        return FrontKeeper(self.program, {name: self._method(name) for name in METHODS}, listen, self.inner)

    def _method(self, name: str) -> Callable[[bytes, Answer], None]:
        return lambda data, answer: self.asked.put_nowait((name, data, answer))

    @property
    def process_id(self) -> int:
        """The front's process."""
        return self.process.pid

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The same, as the keeper's child."""
        process = self.keeper._process  # nobody else needs it
        assert process is not None
        return process

    async def start(self) -> None:
        """Start the front, let it serve, and connect to both."""
        self.address = await self.keeper.start()
        self.keeper.serve()
        self.channels = [grpc.aio.insecure_channel(target, options=channel_options()) for target in (self.inner, self.address)]

    async def call(self, channel: grpc.aio.Channel, method: str, *requests: bytes, **options: Any) -> list[Any]:
        """Make a call; return its answers, then how it ended: code, details, status, and the metadata that a method sets."""
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
                answers.append(answer)  # noqa: PERF401  # what came before an error counts
        except grpc.aio.AioRpcError as error:
            with suppress(ValueError):
                status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it reads the trailers, which this has
        kept = [
            sorted(pair for pair in map(tuple, metadata) if pair[0].startswith("kept"))  # the order of keys means nothing
            for metadata in (await call.initial_metadata(), await call.trailing_metadata())
        ]
        return [answers, await call.code(), await call.details(), status, *kept]

    async def both(self, method: str, *requests: bytes, **options: Any) -> list[Any]:
        """Make a call to the server and through the front; return what both came to, which must be the same."""
        direct, through = [await self.call(channel, method, *requests, **options) for channel in self.channels]
        assert direct == through
        return through

    async def back(self) -> None:
        """Return once a front that was killed answers again."""
        answers: list[bytes] = []
        async with asyncio.timeout(CALL_SECONDS_MAX):
            while not answers:
                async with grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                    answers, *_ = await self.call(channel, UNARY, b"echo back", wait_for_ready=True)
        assert [b"back"] == answers


async def ended(call: Awaitable[Any]) -> bytes | grpc.StatusCode | None:
    """Return a call's answer, or how it failed."""
    try:
        return bytes(await call)
    except grpc.aio.AioRpcError as error:
        return error.code()
    except asyncio.CancelledError:
        return None


def memory_kib(process_id: int) -> int:
    """Return how much memory a process has resident."""
    return int(next(line for line in of_process(process_id, "status").splitlines() if line.startswith("VmRSS:")).split()[1])


def of_process(process_id: int, what: str) -> str:
    """Return what the kernel says of a process."""
    return Path(f"/proc/{process_id}/{what}").read_text()
