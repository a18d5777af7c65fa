"""The byte layout of the link between server and native front; server/front/internal/link/frames.go is its copy in Go.

All integers are little-endian and unsigned.

    frame   = content length (4 bytes), number (4), kind (1), content
    request = caller length (2), remaining ms (4), received (8), handle (4), caller, message     the content of a method's frame
    caller  = peer length (1), peer, then for each value of the metadata: key length (2), value length (2), key, value

`received` is when the front received the request, in nanoseconds since the epoch.

The front sends a call's request under a number of its choice; the kind is the method's place in METHODS. The server answers under the same
number, with the response or with a google.rpc.Status, unless the front has cancelled it. Neither side waits for the other: calls overtake
each other.

A stream of requests has a number of its own too (OPEN_STREAM). The server counts it among the streams of its caller, or refuses it, before
the front sends its requests.

The front asks the server once for each connection and credential who the caller is (AUTHENTICATE) and gets a handle, which every request of
that caller carries from then on. The server ends a handle with REVOKE when the credential is revoked, the front with FORGET when it needs
the handle no more.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from gavel_server.rpc.call_context import Caller, own_metadata

# The version of the link: of its layout, kinds and methods, and of the arguments of the program. Raise it with any change, also in
# server/front/main.go: a front may have been built before the server that starts it.
PROTOCOL: Final = 7

# The methods that go over the link, by kind of frame.
METHODS: Final = ("SubmitProposal", "BatchSubmitProposals", "Preflight", "BatchPreflight", "StreamProposals")

# Kinds of the server's frames.
RESPONSE: Final = 0
STATUS: Final = 1
SERVE: Final = 2  # begin to answer calls; content: JSON (`orders`)
STOP: Final = 3  # end gracefully
PING: Final = 4  # answer with PONG
REVOKE: Final = 5  # number: the handle; content: why
TLS: Final = 6  # use other certificates for new connections; content: JSON (`orders`)

# Kinds of the front's frames besides the methods.
OPEN_STREAM: Final = 248  # a stream of requests begins; content: a request without a message; CANCEL of this number ends the stream
REFUSED: Final = 249  # a call of a caller without valid credentials was refused; content: the method
AUTHENTICATE: Final = 250  # content: JSON (`authentication`); the response is HANDLE
FORGET: Final = 251  # number: the handle
CANCEL: Final = 252  # the caller of the request with this number has gone, or its deadline has passed; no content
PONG: Final = 253
BOUND: Final = 254  # content: the address
UNBOUND: Final = 255  # content: why the address cannot be bound

HEADER: Final = Struct("<IIB")
REQUEST_HEADER: Final = Struct("<HIQI")
_HANDLE_PLACE: Final = 14
# The response to AUTHENTICATE: the handle, and for how many milliseconds the credential is valid.
HANDLE: Final = Struct("<IQ")
# In place of the milliseconds: the credential does not expire.
NO_EXPIRY: Final = 2**64 - 1
# In place of the remaining time: the call has no deadline.
NO_DEADLINE: Final = 0xFFFFFFFF
_METADATA_HEADER: Final = Struct("<HH")


def message_start(content: bytes) -> int:
    """Return where the message starts in a request frame's content."""
    return REQUEST_HEADER.size + int.from_bytes(content[:2], "little")


def decode_handle(content: bytes) -> int:
    """Return the handle in a request frame's content."""
    return int.from_bytes(content[_HANDLE_PLACE : _HANDLE_PLACE + 4], "little")


def decode_peer(content: bytes) -> str:
    """Return the address of the caller of a request frame's content."""
    start = REQUEST_HEADER.size + 1
    return content[start : start + content[start - 1]].decode()


def has_metadata(content: bytes) -> bool:
    """Return whether the caller of a request frame's content has sent metadata of its own."""
    return message_start(content) > REQUEST_HEADER.size + 1 + content[REQUEST_HEADER.size]


def decode_caller(content: bytes, received_seconds: float) -> Caller:
    """Return the caller of a request frame's content, which was received at `received_seconds` of `time.monotonic`."""
    caller_bytes, remaining_ms, received_ns, _ = REQUEST_HEADER.unpack_from(content)
    place = REQUEST_HEADER.size
    end = place + caller_bytes
    peer_end = place + 1 + content[place]
    peer = content[place + 1 : peer_end].decode()
    place = peer_end
    pairs: list[tuple[str, str | bytes]] = []
    while place < end:
        key_bytes, value_bytes = _METADATA_HEADER.unpack_from(content, place)
        place += _METADATA_HEADER.size
        key = content[place : place + key_bytes].decode()
        value = content[place + key_bytes : place + key_bytes + value_bytes]
        pairs.append((key, value if key.endswith("-bin") else value.decode(errors="replace")))
        place += key_bytes + value_bytes
    deadline_seconds = None if remaining_ms == NO_DEADLINE else received_seconds + remaining_ms / 1000
    return Caller("native", peer, own_metadata(pairs) if pairs else (), deadline_seconds, received_ns)
