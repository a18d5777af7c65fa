"""A TCP proxy in front of a Redis or PostgreSQL that cuts, silences, delays or garbles the link at will."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Final
from urllib.parse import unquote, urlsplit

DELAY_SECONDS: Final = 0.15
GARBAGE: Final = b"HTTP/1.1 400 Bad Request\r\n\r\n"


class Link(Enum):
    """How the proxy treats its connections."""

    PASS = 1  # forwards everything
    CUT = 2  # closes the connections, and every new one
    SILENT = 3  # accepts connections, and drops everything that is sent; what was sent meanwhile never arrives
    GARBLE = 4  # answers every request with what is no reply of Redis
    DELAY = 5  # forwards everything, each part after a pause


class TcpProxy:
    """The proxy. `url` is its address as a URL of Redis; `accepted` counts the connections that it has forwarded."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._link = Link.PASS
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._silenced: set[asyncio.Event] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self.accepted = 0
        self.url = ""

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def set_link(self, link: Link) -> None:
        """Change what the proxy does. A link that was silent stays so for its old connections, as after lost packets."""
        self._link = link
        if link is Link.CUT:
            self._close_all()

    def silence_open_connections(self) -> None:
        """Drop from now on what the open connections send; new ones are served."""
        for silenced in self._silenced:
            silenced.set()

    async def stop(self) -> None:
        """Close everything."""
        assert self._server is not None
        self._server.close()
        self._close_all()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self._server.wait_closed()

    def _close_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.scheme == "unix":
            return await asyncio.open_unix_connection(unquote(self._target.path))
        return await asyncio.open_connection(self._target.hostname, self._target.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._link is Link.CUT:
            writer.transport.abort()
            return
        try:
            from_target, to_target = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_target}
        self.accepted += 1
        silenced = asyncio.Event()
        self._silenced.add(silenced)
        handler: asyncio.Task[None] | None = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        directions = (self._copy(reader, to_target, writer, silenced), self._copy(from_target, writer, None, silenced))
        await asyncio.gather(*directions)
        self._writers -= {writer, to_target}
        self._silenced.discard(silenced)

    async def _copy(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, back: asyncio.StreamWriter | None, silenced: asyncio.Event
    ) -> None:
        """Copy one direction; `back` leads to the caller, if this is the direction of the requests."""
        with suppress(OSError):
            while data := await source.read(65_536):
                if self._link is Link.SILENT:
                    silenced.set()
                if silenced.is_set():
                    continue
                if self._link is Link.GARBLE and back is not None:
                    back.write(GARBAGE)
                    continue
                if self._link is Link.DELAY:
                    await asyncio.sleep(DELAY_SECONDS)
                sink.write(data)
        sink.close()


@asynccontextmanager
async def running_proxy(target: str) -> AsyncIterator[TcpProxy]:
    """Run a proxy in front of the Redis at the URL `target`."""
    proxy = TcpProxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
