"""HTTP/2 by hand, for what no library sends: paths that are no text, messages that never end, streams that are reset at once.

A gRPC message is a zero byte (one: compressed), its length in four bytes, and its bytes (RFC 9113, gRPC over HTTP/2).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8, 0x9
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
HEADER_TABLE_SIZE: Final = 0x1
INITIAL_WINDOW_SIZE: Final = 0x4
FRAME_BYTES_MAX: Final = 16_384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def header_block(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return headers as literals without Huffman coding or indexing (RFC 7541 §6.2.2)."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)


def call_headers(path: bytes, *further: tuple[bytes, bytes]) -> bytes:
    """Return the header block of a gRPC call."""
    pseudo = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"gavel"))
    return header_block((*pseudo, (b"te", b"trailers"), (b"content-type", b"application/grpc"), *further))


def message(data: bytes, *, compressed: bool = False, length: int | None = None) -> bytes:
    """Return a gRPC message; `length` replaces the length that it announces."""
    return struct.pack(">BI", compressed, len(data) if length is None else length) + data


def grpc_status(block: bytes) -> int | None:
    """Return the status in a block of trailers, whose texts are plain or Huffman coded (RFC 7541 appendix B); None: it has none."""
    for name in (b"\x0bgrpc-status", bytes((0x80 | len(_STATUS_NAME),)) + _STATUS_NAME):
        _, separator, rest = block.partition(name)
        if separator:
            is_huffman, value = rest[0] & 0x80, rest[1 : 1 + (rest[0] & 0x7F)]
            return int(_digits(value) if is_huffman else value)
    return None


def _digits(coded: bytes) -> str:
    """Return digits that are Huffman coded: 0 to 2 have five bits, the others six."""
    bits = "".join(f"{byte:08b}" for byte in coded)
    digits = ""
    while len(bits) >= 5 and set(bits) != {"1"}:
        length = 5 if bits[:5] in ("00000", "00001", "00010") else 6
        code = int(bits[:length], 2)
        digits += str(code if length == 5 else code - 0b011001 + 3)
        bits = bits[length:]
    return digits


# "grpc-status", Huffman coded.
_STATUS_NAME: Final = bytes.fromhex("9acac8b21234da8f")


class Http2Connection:
    """A connection of an unusual client. It answers SETTINGS and PING, and discards everything else that it reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._stream = -1
        self._written_bytes = 0
        self._reading = asyncio.create_task(self._read())
        self.frames: list[tuple[int, int, int, bytes]] = []
        """Frames read, as (type, flags, stream, payload), without DATA of more than one frame's worth."""

    @classmethod
    async def open(cls, host: str, port: int, *, window_bytes: int = 65_535, local_host: str | None = None) -> Http2Connection:
        """Connect, from another address than usual if one is given. `window_bytes`: of an answer the server may send on one stream."""
        local_address = (local_host, 0) if local_host is not None else None
        connection = cls(*await asyncio.open_connection(host, port, local_addr=local_address))
        connection.send(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window_bytes)))
        return connection

    @classmethod
    async def open_plain(cls, address: str) -> Http2Connection:
        """Connect to HOST:PORT or unix:PATH, and ask for headers that refer to no earlier ones, as `grpc_status` needs them."""
        host, _, port = address.rpartition(":")
        if host == "unix":
            connection = cls(*await asyncio.open_unix_connection(port))
        else:
            connection = cls(*await asyncio.open_connection(host, int(port)))
        connection.send(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", HEADER_TABLE_SIZE, 0)))
        return connection

    def send(self, data: bytes) -> None:
        """Send bytes, unless the connection is closed."""
        if not self._writer.is_closing():
            self._writer.write(data)
            self._written_bytes += len(data)

    def start_call(self, path: bytes, *further: tuple[bytes, bytes]) -> int:
        """Send the headers of a call; return its stream."""
        self._stream += 2
        self.send(frame(HEADERS, END_HEADERS, self._stream, call_headers(path, *further)))
        return self._stream

    def send_data(self, stream: int, data: bytes, *, end: bool = True) -> None:
        """Send a part of a call's messages, without regard to flow control."""
        parts = [data[start : start + FRAME_BYTES_MAX] for start in range(0, len(data), FRAME_BYTES_MAX)] or [b""]
        for index, part in enumerate(parts):
            self.send(frame(DATA, END_STREAM if end and index == len(parts) - 1 else 0, stream, part))

    def reset(self, stream: int) -> None:
        """Cancel a call."""
        self.send(frame(RST_STREAM, 0, stream, struct.pack(">I", 8)))

    async def drain(self) -> None:
        """Wait until the server has taken what was sent. Raises ConnectionError if it has closed the connection."""
        await self._writer.drain()

    @property
    def sent_bytes(self) -> int:
        """The bytes that the system has taken."""
        return self._written_bytes - self._writer.transport.get_write_buffer_size()

    @property
    def trailers(self) -> dict[int, bytes]:
        """The last block of headers of each call that has ended with one, by stream."""
        return {stream: payload for kind, flags, stream, payload in self.frames if kind == HEADERS and flags & END_STREAM}

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed the connection."""
        return self._reading.done()

    async def wait_closed(self) -> None:
        """Return once the server has closed the connection."""
        await asyncio.wait([self._reading])

    async def close(self) -> None:
        """Close the connection."""
        self._reading.cancel()
        self._writer.close()

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                length, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
                payload = await self._reader.readexactly(length)
                if kind in (SETTINGS, PING) and not flags & ACK:
                    self.send(frame(kind, ACK, 0, payload if kind == PING else b""))
                elif kind != DATA:
                    self.frames.append((kind, flags, int.from_bytes(head[5:]), payload))
        except (asyncio.IncompleteReadError, ConnectionError):
            return


def _text(data: bytes) -> bytes:
    """Return a string literal of HPACK: its length as an integer with a 7-bit prefix, and its bytes."""
    length = len(data)
    if length < 127:
        return bytes((length,)) + data
    rest, encoded = length - 127, bytearray((127,))
    while rest >= 128:
        encoded.append(rest % 128 + 128)
        rest //= 128
    encoded.append(rest)
    return bytes(encoded) + data
