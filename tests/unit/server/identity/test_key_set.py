"""The keys of issuers: when they are fetched, how long they serve, and what is refused."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from gavel_server.errors import ServiceError
from gavel_server.identity import key_set
from gavel_server.identity.development_certificates import Authority, host_name
from gavel_server.identity.key_set import KEY_SET_BYTES_MAX, KEYS_MAX, KeySet, KeySetError
from structlog.testing import capture_logs

from tests.support.identity.issuer import Issuer
from tests.support.identity.key_server import KeyServer, running_key_server


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyServer]:
    """An issuer's web server, which may be asked at any time."""
    monkeypatch.setattr(key_set, "RETRY_SECONDS", 0.0)
    with running_key_server() as served:
        served.content = Issuer("one").key_set().encode()
        yield served


async def refusal(keys: KeySet, key_id: str) -> str:
    """Return the message with which a key is refused."""
    with pytest.raises(ServiceError) as raised:
        await keys.key(key_id)
    return str(raised.value)


async def test_keys_are_fetched_once(web: KeyServer) -> None:
    """A known key is fetched once; it serves until it is old, and is then fetched again."""
    keys = KeySet("issuer", url=web.url)
    first = await keys.key("one")
    assert first == await keys.key("one")
    assert 1 == web.requests
    await keys.reload()
    assert (2, True, 1) == (web.requests, keys.has("one", first), keys.version)


async def test_old_keys_are_fetched_again(web: KeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`refresh` fetches keys that are older than REFRESH_SECONDS, so that a withdrawn key is no longer accepted."""
    keys = KeySet("issuer", url=web.url)
    first = await keys.key("one")
    web.content = Issuer("two").key_set().encode()
    await keys.refresh()
    assert first == await keys.key("one")
    monkeypatch.setattr(key_set, "REFRESH_SECONDS", 0.0)
    await keys.refresh()
    assert "is not among the keys of issuer issuer" in await refusal(keys, "one")
    assert not keys.has("one", first)


async def test_an_unknown_key_is_looked_for(web: KeyServer) -> None:
    """A token with an unknown key makes the server fetch the set at once, so a new key is accepted without delay."""
    keys = KeySet("issuer", url=web.url)
    await keys.key("one")
    web.content = Issuer("two").key_set().encode()
    await keys.key("two")
    assert 2 == web.requests


async def test_unknown_keys_do_not_flood_the_issuer(web: KeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tokens name unknown keys, the set is fetched once in RETRY_SECONDS."""
    monkeypatch.setattr(key_set, "RETRY_SECONDS", 3600.0)
    keys = KeySet("issuer", url=web.url)
    for number in range(20):
        assert "is not among the keys" in await refusal(keys, f"unknown-{number}")
    assert 1 == web.requests


async def test_another_key_under_the_same_name_ends_sessions(web: KeyServer) -> None:
    """A key that is replaced under its name is another key: sessions of the old one are no longer accepted."""
    keys = KeySet("issuer", url=web.url)
    first = await keys.key("one")
    web.content = Issuer("one").key_set().encode()
    await keys.reload()
    assert (False, 2) == (keys.has("one", first), keys.version)


async def test_an_issuer_that_is_away(web: KeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the issuer is away its keys serve; after STALE_SECONDS none of its tokens is accepted."""
    keys = KeySet("issuer", url=web.url)
    first = await keys.key("one")
    web.status = 500
    monkeypatch.setattr(key_set, "REFRESH_SECONDS", 0.0)
    assert first == await keys.key("one")
    monkeypatch.setattr(key_set, "STALE_SECONDS", 0.0)
    assert "cannot be read now" in await refusal(keys, "one")
    assert not keys.has("one", first)


async def test_known_keys_do_not_wait_for_the_issuer(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an issuer is asked again and does not answer, tokens with keys that are known do not wait for it."""
    begins, answers = asyncio.Event(), threading.Event()
    content = Issuer("one").key_set().encode()
    loop = asyncio.get_running_loop()

    def hang(_: str) -> bytes:
        loop.call_soon_threadsafe(begins.set)
        answers.wait()
        return content

    monkeypatch.setattr(key_set, "_fetch", lambda _: content)
    keys = KeySet("issuer", url="https://issuer.example/keys")
    first = await keys.key("one")
    monkeypatch.setattr(key_set, "_fetch", hang)
    reloading = asyncio.create_task(keys.reload())
    try:
        await begins.wait()
        assert first == await keys.key("one")
        assert not reloading.done()
    finally:
        answers.set()
        await reloading


async def test_a_caller_that_goes_does_not_end_the_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that a token with an unknown key begins serves the others although its caller goes: strangers must not lock them out."""
    monkeypatch.setattr(key_set, "STALE_SECONDS", 0.0)
    content = Issuer("one").key_set().encode()
    keys = KeySet("issuer", url="https://issuer.example/keys")
    for fails in (False, True):
        answers, results = threading.Event(), iter([KeySetError("away")] if fails else [])

        def hang(_: str, answers: threading.Event = answers, results: Iterator[KeySetError] = results) -> bytes:
            answers.wait()
            for error in results:
                raise error
            return content

        monkeypatch.setattr(key_set, "_fetch", hang)
        monkeypatch.setattr(key_set, "RETRY_SECONDS", 0.0)
        stranger = asyncio.create_task(keys.key("unknown"))
        await asyncio.sleep(0)
        monkeypatch.setattr(key_set, "RETRY_SECONDS", 3600.0)  # later callers wait for this fetch, or get nothing
        waiting = asyncio.create_task(keys.key("one"))
        await asyncio.sleep(0)
        stranger.cancel()
        await asyncio.wait([stranger])
        answers.set()
        if fails:
            with pytest.raises(ServiceError, match="cannot be read now"):
                await waiting
        else:
            assert keys.has("one", await waiting)


@pytest.mark.parametrize("place", ["_fetch", "threading.Thread.start"])
async def test_a_fetch_that_fails_unexpectedly(web: KeyServer, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Whatever a fetch raises counts as an issuer that is away, and the next fetch begins."""
    error = RuntimeError("can't start new thread")

    def fail(*_: object) -> None:
        raise error

    keys = KeySet("issuer", url=web.url)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail) if place != "_fetch" else patch.setattr(key_set, "_fetch", fail)
        with capture_logs() as logs:
            await keys.reload()
    assert ["identity.keys_unavailable"] == [line["event"] for line in logs]
    assert "ES256" == (await keys.key("one")).algorithm


@pytest.mark.parametrize("response", [b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\n{"])
async def test_an_issuer_whose_answers_are_cut(web: KeyServer, monkeypatch: pytest.MonkeyPatch, response: bytes) -> None:
    """An answer that is malformed or cut counts as none: whoever cuts answers on the way must not keep withdrawn keys in force."""
    keys = KeySet("issuer", url=web.url)
    first = await keys.key("one")
    monkeypatch.setattr(key_set, "REFRESH_SECONDS", 0.0)
    web.raw = response
    assert first == await keys.key("one")
    monkeypatch.setattr(key_set, "STALE_SECONDS", 0.0)
    assert "cannot be read now" in await refusal(keys, "one")


async def test_redirects_are_refused(web: KeyServer) -> None:
    """A redirect is not followed: it could lead away from https, or from the issuer."""
    with running_key_server() as other:
        other.content = web.content
        web.status, web.location = 302, other.url
        assert "cannot be read now" in await refusal(KeySet("issuer", url=web.url), "one")
        assert 0 == other.requests


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"keys": {}}',
        b'{"keys": [' + b" " * KEY_SET_BYTES_MAX + b"]}",
        json.dumps({"keys": [{}] * (KEYS_MAX + 1)}).encode(),
        b"[" * 100_000,
    ],
    ids=["empty", "a list", "no text", "no list", "too large", "too many", "too deep"],
)
async def test_invalid_key_sets(web: KeyServer, content: bytes) -> None:
    """A key set that is invalid is refused as a whole, and the keys of before serve."""
    keys = KeySet("issuer", url=web.url)
    first = await keys.key("one")
    web.content = content
    with capture_logs() as logs:
        await keys.reload()
    assert ["identity.keys_unavailable"] == [line["event"] for line in logs]
    assert keys.has("one", first)


async def test_keys_that_are_never_used(tmp_path: Path) -> None:
    """Symmetric keys, private keys, keys for encryption and keys without an id are left out, whatever a token names."""
    (own,) = json.loads(Issuer("own").key_set())["keys"]
    entries = [
        {"kty": "oct", "kid": "symmetric", "k": "c2VjcmV0"},
        {"kty": ["EC"], "kid": "list"},
        {"kty": {"EC": 1}, "kid": "object"},
        {**own, "kid": "private", "d": "c2VjcmV0"},
        {**own, "kid": "encryption", "use": "enc"},
        {**own, "kid": ""},
        {**own, "kid": "damaged", "x": "!"},
        "text",
        {**own, "kid": "usable"},
    ]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": entries}))
    keys = KeySet("issuer", file=file)
    assert "ES256" == (await keys.key("usable")).algorithm
    for name in ("symmetric", "private", "encryption", "", "damaged"):
        assert "is not among the keys" in await refusal(keys, name)


async def test_urls_with_secrets_are_not_logged() -> None:
    """The log names the place of a key set that cannot be fetched, without the password or key that its URL may hold."""
    keys = KeySet("issuer", url="http://alice:planted@127.0.0.1:1/keys?api_key=planted")
    with capture_logs() as logs:
        assert "planted" not in await refusal(keys, "one")
    assert "http://127.0.0.1:1/keys cannot be fetched" in logs[0]["problem"]
    assert "planted" not in str(logs)


@pytest.mark.parametrize("content", [b'{"keys": []}', b'{"keys": [{"kty": "oct", "kid": "one", "k": "c2VjcmV0"}]}'])
async def test_a_key_set_without_a_usable_key(web: KeyServer, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """An issuer that publishes no usable key has withdrawn its keys: the refusal and one line of the log say so, not that it is away."""
    keys = KeySet("issuer", url=web.url)
    first = await keys.key("one")
    good, web.content = web.content, content
    with capture_logs() as logs:
        for _ in range(2):
            await keys.reload()
            assert "the key set of issuer issuer has no key that can verify its tokens" == await refusal(keys, "one")
    assert ["identity.no_keys"] == [line["event"] for line in logs]
    assert not keys.has("one", first)
    web.status = 500
    monkeypatch.setattr(key_set, "STALE_SECONDS", 0.0)
    assert "cannot be read now" in await refusal(keys, "one")
    web.status, web.content = 200, good
    assert first == await keys.key("one")


def certificate_of(directory: Path, authority: Authority, host: str, *, valid_days: float = 1.0) -> tuple[Path, Path]:
    """Issue a certificate for a web server."""
    files = directory / "web.pem", directory / "web-key.pem"
    start = datetime.now(UTC) - timedelta(days=1)
    authority.issue(*files, host, [host_name(host)], for_server=True, valid_from=start, valid_days=1 + valid_days)
    return files


@pytest.mark.parametrize(
    ("host", "valid_days", "is_known", "problem"),
    [
        ("localhost", 1.0, True, ""),
        ("elsewhere.example", 1.0, True, "not valid for 'localhost'"),
        ("localhost", -0.5, True, "certificate has expired"),
        ("localhost", 1.0, False, "unable to get local issuer certificate"),
    ],
    ids=["valid", "another host", "expired", "unknown authority"],
)
async def test_certificates_of_issuers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, valid_days: float, is_known: bool, problem: str
) -> None:
    """Keys come from a web server with a valid certificate for its host alone; the log says what is wrong with another one."""
    authority, other = Authority.create(), Authority.create()
    (authority if is_known else other).save(tmp_path / "ca.pem", tmp_path / "ca-key.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with running_key_server(*certificate_of(tmp_path, authority, host, valid_days=valid_days)) as web, capture_logs() as logs:
        web.content = Issuer("one").key_set().encode()
        keys = KeySet("issuer", url=web.url)
        if not problem:
            assert "ES256" == (await keys.key("one")).algorithm
            return
        assert "cannot be read now" in await refusal(keys, "one")
        assert 0 == web.requests
    assert problem in logs[0]["problem"]


async def test_a_name_server_that_does_not_answer(web: KeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that hangs beyond the reach of its deadline is given up in time, and no other one begins beside it."""
    hangs = threading.Event()
    begun: list[str] = []

    def resolve(url: str) -> bytes:
        begun.append(url)
        hangs.wait()
        return web.content

    monkeypatch.setattr(key_set, "_fetch", resolve)
    monkeypatch.setattr(key_set, "FETCH_SECONDS_MAX", 0.05)
    keys = KeySet("issuer", url=web.url)
    try:
        with capture_logs() as logs:
            for _ in range(3):
                await keys.reload()
    finally:
        hangs.set()
    assert ["took longer than 0.05 s", "the previous try has not ended", "the previous try has not ended"] == [
        next(part for part in ("took longer than 0.05 s", "the previous try has not ended") if part in line["problem"]) for line in logs
    ]
    assert [web.url] == begun


@pytest.mark.parametrize("slow", ["headers", "content"])
def test_a_slow_answer_ends_at_the_deadline(slow: str) -> None:
    """An issuer that sends a byte now and then is given up after one total time, whichever part of the answer is slow."""
    content = Issuer("one").key_set().encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(content)}\r\n\r\n".encode()
    quick = 20 if slow == "headers" else len(head)
    stopped = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall((head + content)[:quick])
            for byte in (head + content)[quick:]:
                if stopped.wait(0.1):
                    return
                connection.sendall(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        try:
            with pytest.raises(KeySetError, match=r"took longer than 0\.5 s"):
                key_set._fetch(f"http://127.0.0.1:{listener.getsockname()[1]}/keys", 0.5)
        finally:
            stopped.set()
            thread.join()
