"""The keys of one issuer of JWTs: a JSON Web Key Set (RFC 7517) from a URL or a file, cached.

The set is read again after REFRESH_SECONDS, if `refresh` is called regularly. It is read at once when a token names a key that is not in
it, but at most every RETRY_SECONDS, so that callers cannot make the server flood an issuer. While an issuer cannot be reached its keys
serve for STALE_SECONDS, then none of its tokens is accepted. Each URL is fetched in a thread of its own: a name server that does not answer
holds this thread and nothing else.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
import structlog

from gavel_server.identity.errors import unauthenticated
from gavel_server.identity.keys import Key

# Not Final: tests change them.
REFRESH_SECONDS = 300.0
RETRY_SECONDS = 10.0
STALE_SECONDS = 3600.0
FETCH_SECONDS_MAX = 5.0
KEY_SET_BYTES_MAX: Final = 1024 * 1024
KEYS_MAX: Final = 256
_ASYMMETRIC: Final = frozenset({"RSA", "EC", "OKP"})

_LOG: Final = structlog.get_logger("gavel.identity")


class KeySetError(Exception):
    """A key set cannot be had; the message says why."""


class KeySet:
    """The keys of an issuer. Either `url` or `file` is given."""

    def __init__(self, issuer: str, *, url: str | None = None, file: Path | None = None) -> None:
        self._issuer: Final = issuer
        self._url: Final = url
        self._file: Final = file
        self._keys: dict[str, Key] = {}
        self._version = 0
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        # Whether the issuer's last valid set has no key that may serve.
        self._is_empty = False
        self._reading: asyncio.Task[None] | None = None
        self._fetching: asyncio.Future[bytes | KeySetError] | None = None

    @property
    def file(self) -> Path | None:
        """The file of the keys, if they come from one."""
        return self._file

    @property
    def version(self) -> int:
        """A number that rises when the keys change."""
        return self._version

    async def key(self, key_id: str) -> Key:
        """Return a key: at once if it is known, also while the issuer is asked again. Raises ServiceError UNAUTHENTICATED."""
        if key_id not in self._keys or time.monotonic() - self._read_at >= STALE_SECONDS:
            await self._read(RETRY_SECONDS)
        if not self._keys:
            problem = "the key set of issuer {} has no key that can verify its tokens"
            if not self._is_empty:
                problem = "the keys of issuer {} cannot be read now, so its tokens cannot be verified; try again later"
            raise unauthenticated(problem.format(self._issuer))
        key = self._keys.get(key_id)
        if key is None:
            raise unauthenticated(f"the token's key (kid) is not among the keys of issuer {self._issuer}")
        return key

    def has(self, key_id: str, key: Key | None) -> bool:
        """Whether tokens with this key are accepted."""
        return key is not None and self._keys.get(key_id) == key

    async def refresh(self) -> None:
        """Read the set again if it is old. Forget it if it cannot be read and is too old."""
        if time.monotonic() - self._read_at >= REFRESH_SECONDS:
            await self._read(RETRY_SECONDS)

    async def reload(self) -> None:
        """Read the set again now."""
        await self._read(0.0)

    async def _read(self, pause_seconds: float) -> None:
        """Read the set, unless another try is less than `pause_seconds` old. Callers that come meanwhile wait for it.

        The set's own task reads: a caller that goes does not end what others wait for.
        """
        while self._reading is not None:
            await asyncio.shield(self._reading)
        if time.monotonic() - self._tried_at < pause_seconds:
            return
        self._reading = asyncio.create_task(self._try())
        await asyncio.shield(self._reading)

    async def _try(self) -> None:
        """Read the set once. Forget it if it cannot be read and is too old."""
        began_at = time.monotonic()
        try:
            keys = _decode(await self._content())
            self._note_emptiness(keys)
            self._use(keys)
            self._read_at = time.monotonic()
        except (KeySetError, OSError) as error:
            if began_at - self._read_at >= STALE_SECONDS:
                self._use({})
                self._is_empty = False
            _LOG.error(
                "identity.keys_unavailable",
                issuer=self._issuer,
                problem=str(error),
                consequence=f"the previous {len(self._keys)} keys are used" if self._keys else "no token of this issuer is accepted",
            )
        finally:
            self._tried_at = time.monotonic()
            self._reading = None

    async def _content(self) -> bytes:
        if self._url is None:
            return await asyncio.to_thread(_read_file, self._file or Path())
        return await self._fetch(self._url)

    async def _fetch(self, url: str) -> bytes:
        """Return what a URL answers within FETCH_SECONDS_MAX in all. Raises KeySetError."""
        if self._fetching is not None and not self._fetching.done():
            raise KeySetError(f"{_place(url)} cannot be fetched: the previous try has not ended; its name server may not answer")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[bytes | KeySetError] = loop.create_future()

        def run() -> None:
            result: bytes | KeySetError
            try:
                result = _fetch(url)
            except KeySetError as error:
                result = error
            except BaseException as error:  # noqa: BLE001  without an outcome no later fetch would begin
                result = KeySetError(f"{_place(url)} cannot be fetched: {type(error).__name__}")
            with suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(outcome.set_result, result)

        try:
            threading.Thread(target=run, name="keys of an issuer", daemon=True).start()
        except RuntimeError as error:
            raise KeySetError(f"{_place(url)} cannot be fetched: {error}") from None
        self._fetching = outcome
        await asyncio.wait([outcome], timeout=FETCH_SECONDS_MAX)
        if not outcome.done():  # it hangs where its deadline does not reach
            raise _too_slow(url, FETCH_SECONDS_MAX)
        result = outcome.result()
        if isinstance(result, KeySetError):
            raise result
        return result

    def _note_emptiness(self, keys: dict[str, Key]) -> None:
        if not keys and not self._is_empty:
            _LOG.error(
                "identity.no_keys",
                issuer=self._issuer,
                problem="the key set has no public key for signatures with an id (kid)",
                consequence="no token of this issuer is accepted",
            )
        self._is_empty = not keys

    def _use(self, keys: dict[str, Key]) -> None:
        if keys != self._keys:
            self._keys = keys
            self._version += 1


class _Deadline:
    """A total time for one fetch: then its connections are shut down. A socket's own timeout counts from each read anew."""

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def watch(self, connection: socket.socket) -> None:
        """Shut a connection down at the deadline. Its duplicate is kept: TLS takes the socket over. Raises TimeoutError."""
        with self._lock:
            if self.is_over:
                raise TimeoutError("timed out")
            self._sockets.append(connection.dup())

    def close(self) -> None:
        """End the watch."""
        self._timer.cancel()
        with self._lock:
            for one in self._sockets:
                one.close()
            self._sockets.clear()

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            for one in self._sockets:
                with suppress(OSError):  # the other side has closed it
                    one.shutdown(socket.SHUT_RDWR)


class _Connection(http.client.HTTPConnection):
    """A connection under a deadline."""

    deadline: _Deadline

    def connect(self) -> None:
        """Connect; the deadline holds from now on, for a handshake too."""
        super().connect()
        self.deadline.watch(self.sock)


class _EncryptedConnection(http.client.HTTPSConnection, _Connection):
    """A connection with TLS under a deadline: HTTPSConnection connects by the method above, before its handshake."""


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens URLs under a deadline."""

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a URL without TLS, on this machine."""
        return self.do_open(partial(self._connection, _Connection), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a URL with TLS."""
        return self.do_open(partial(self._connection, _EncryptedConnection), request)

    def _connection(self, kind: type[_Connection], *args: Any, **kwargs: Any) -> _Connection:
        connection = kind(*args, **kwargs)
        connection.deadline = self._deadline
        return connection


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they could lead away from https, or from the issuer."""

    def redirect_request(self, *_: Any) -> None:
        """Return no request to follow."""


def _fetch(url: str, seconds_max: float = FETCH_SECONDS_MAX) -> bytes:
    """Return what a URL answers within a total time. Raises KeySetError."""
    request = urllib.request.Request(url, headers={"accept": "application/json", "user-agent": "gavel"})  # noqa: S310  # settings check it
    deadline = _Deadline(seconds_max)
    problem = ""
    content = b""
    try:
        # The timeout of each read is longer than the deadline, which comes first and says what has happened.
        with urllib.request.build_opener(_Handler(deadline), _NoRedirects).open(request, timeout=seconds_max + 1) as response:
            content = response.read(KEY_SET_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        raise KeySetError(f"{_place(url)} answered {error.code}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:  # the last one: a malformed or truncated response
        problem = str(error)
    finally:
        deadline.close()
    if deadline.is_over:  # also if the response only seems to be complete
        raise _too_slow(url, seconds_max)
    if problem:
        raise KeySetError(f"{_place(url)} cannot be fetched: {problem}")
    return content


def _too_slow(url: str, seconds_max: float) -> KeySetError:
    return KeySetError(f"{_place(url)} cannot be fetched: it took longer than {seconds_max:g} s")


def _place(url: str) -> str:
    """Return a URL without the parts that may hold a secret, for the log."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(KEY_SET_BYTES_MAX + 1)


def _decode(content: bytes) -> dict[str, Key]:
    """Return the keys by id. Keys without an id, symmetric ones and those that are not for signatures are left out."""
    if len(content) > KEY_SET_BYTES_MAX:
        raise KeySetError(f"the key set is larger than {KEY_SET_BYTES_MAX} bytes")
    try:
        document = json.loads(content)
        entries = document["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise KeySetError("the key set is not a JSON Web Key Set: an object with the list keys") from None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise KeySetError(f"the key set has no list keys, or more than {KEYS_MAX} of them")
    keys: dict[str, Key] = {}
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or "d" in entry:
            continue
        kind, key_id, algorithm = entry.get("kty"), entry.get("kid"), entry.get("alg", "")
        if not isinstance(kind, str) or kind not in _ASYMMETRIC:
            continue
        if not isinstance(key_id, str) or not key_id or not isinstance(algorithm, str):
            continue
        try:
            keys[key_id] = Key(jwt.PyJWK.from_dict(entry).key, algorithm)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue  # of a kind that no accepted algorithm uses
    return keys
