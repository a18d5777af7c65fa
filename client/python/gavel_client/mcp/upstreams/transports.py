"""The transports to upstream servers, which bound each message before it is parsed.

The transports of the SDK read a line, or an answer over HTTP, of any size. A server that sends too much loses its connection over stdio,
because the rest of the line would have to be read to find the next one. Over HTTP it loses the request.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

# Part of the error of a request whose answer is too large.
TOO_LARGE: Final = "larger than the limit of"
STOP_SECONDS: Final = 2.0
_EVENT_STREAM: Final = "text/event-stream"
_CLOSED: Final = (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


@asynccontextmanager
async def open_stdio(
    command: Sequence[str], environment: Mapping[str, str], directory: Path, message_bytes_max: int, note_too_large: Callable[[], None]
) -> AsyncIterator[Any]:
    """Start a server and yield the streams to and from it; stop it, with its descendants, at the end. Raises OSError.

    A line of more than `message_bytes_max` bytes ends the streams, after `note_too_large`.
    """
    process = await anyio.open_process(
        list(command), env=get_default_environment() | dict(environment), stderr=sys.stderr, cwd=directory, start_new_session=True
    )
    to_session, read = anyio.create_memory_object_stream[Any](0)
    write, from_session = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        assert process.stdout is not None  # noqa: S101  # for the type checker: the process has pipes
        lines = BufferedByteReceiveStream(process.stdout)
        async with to_session:
            with suppress(*_CLOSED):
                try:
                    while True:
                        await to_session.send(_parse(await lines.receive_until(b"\n", message_bytes_max)))
                except anyio.DelimiterNotFound:
                    note_too_large()

    async def send() -> None:
        assert process.stdin is not None  # noqa: S101
        async with from_session:
            with suppress(*_CLOSED):
                async for message in from_session:
                    await process.stdin.send(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        # The session learns that the server takes no more requests.
        await to_session.aclose()

    try:
        async with anyio.create_task_group() as group, read, write:
            group.start_soon(receive)
            group.start_soon(send)
            yield read, write
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(process)


async def _stop(process: Process) -> None:
    """End a server, and read what it still writes: a server that blocks on its output does not see the end of its input."""
    assert process.stdout is not None  # noqa: S101
    async with anyio.create_task_group() as group:
        group.start_soon(_end, process)
        # Descendants that have left the server's process group may hold the pipe.
        with anyio.move_on_after(3 * STOP_SECONDS), suppress(*_CLOSED):
            async for _ in process.stdout:
                pass


async def _end(process: Process) -> None:
    """Close the server's stdin and wait for its end; then end by signals what is left of its process group, be it the server itself."""
    with suppress(*_CLOSED):
        if process.stdin is not None:
            await process.stdin.aclose()
    with anyio.move_on_after(STOP_SECONDS):
        # Not wait(), which also waits for descendants that hold the pipes.
        while process.returncode is None:  # noqa: ASYNC110  # nothing else tells of the end
            await anyio.sleep(0.01)
    # The group keeps its number while it has members, also after the server has ended.
    await terminate_posix_process_tree(process, STOP_SECONDS)


def _parse(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError as error:
        return error


@asynccontextmanager
async def open_http(url: str, headers: Mapping[str, str], connect_seconds: float, message_bytes_max: int) -> AsyncIterator[Any]:
    """Yield the streams to and from a server over streamable HTTP. There is no limit on the time for an answer.

    An answer or event of more than `message_bytes_max` bytes is an error.
    """

    async def bound(response: httpx2.Response) -> None:
        # A stream of events may be of any size, but not compressed.
        is_stream = response.headers.get("content-type", "").lower().startswith(_EVENT_STREAM)
        response.stream = _BoundedBody(response, None if is_stream else message_bytes_max)

    async with (
        httpx2.AsyncClient(
            # The size of a compressed answer says nothing of that of its content.
            headers={**headers, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(connect_seconds, read=None),
            event_hooks={"response": [bound]},
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=message_bytes_max) as streams,
    ):
        yield streams


class _BoundedBody(httpx2.AsyncByteStream):
    """The body of a response, up to a number of bytes; None: of any size. A compressed one is an error."""

    def __init__(self, response: httpx2.Response, bytes_max: int | None) -> None:
        stream = response.stream
        if not isinstance(stream, httpx2.AsyncByteStream):
            raise TypeError(f"the body of the response is a {type(stream).__name__}")
        self._stream: Final = stream
        self._is_encoded: Final = response.headers.get("content-encoding", "identity").lower() != "identity"
        self._bytes_max: Final = bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_encoded:
            raise httpx2.StreamError("the answer is compressed, which the request does not accept")
        size = 0
        async for part in self._stream:
            size += len(part)
            if self._bytes_max is not None and size > self._bytes_max:
                raise httpx2.StreamError(f"the answer is {TOO_LARGE} {self._bytes_max} bytes")
            yield part

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()
