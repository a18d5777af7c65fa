"""Credentials of calls: which header counts, what is protected, and under which key verified ones are kept."""

from __future__ import annotations

import asyncio

import pytest
from gavel_server.errors import ServiceError
from gavel_server.identity.authenticator import SESSIONS_MAX, Authenticator
from gavel_server.identity.credentials import AUTHORIZATION_BYTES_MAX, Credentials
from gavel_server.identity.handles import Handles
from gavel_server.identity.tokens import TokenAuthenticator, TokenEntry, token_digest
from gavel_server.identity.unix_users import UserAuthenticator

ENTRY = TokenEntry("id-1", "agent", ("a",), token_digest("gvl_good"), float("inf"))


def bearer(token: str, peer: str = "127.0.0.1:1", **others: bool) -> Credentials:
    """Return the credentials of a call with a token."""
    return Credentials(peer, authorizations=(f"Bearer {token}",), **others)  # type: ignore[arg-type]


@pytest.mark.parametrize("header", ["Bearer x", "bearer x", "BEARER   x  "])
def test_bearer(header: str) -> None:
    """The scheme is compared without regard to case, as RFC 9110 §11.1 says, and spaces around the token do not count."""
    assert "x" == Credentials("unix:", authorizations=(header,)).bearer()


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (("",), "not of the form"),
        (("Bearer",), "not of the form"),
        (("Bearer ",), "not of the form"),
        (("Basic x",), "not of the form"),
        (("x",), "not of the form"),
        (("Bearer x", "Bearer x"), "several authorization headers"),
        (("Bearer " + "x" * AUTHORIZATION_BYTES_MAX,), f"larger than {AUTHORIZATION_BYTES_MAX} bytes"),
    ],
)
def test_headers_that_are_refused(headers: tuple[str, ...], message: str) -> None:
    """A header that is not exactly one bearer token is refused, and not taken for a call without credentials."""
    with pytest.raises(ServiceError, match=message):
        Credentials("unix:", authorizations=headers).bearer()


@pytest.mark.parametrize(
    ("credentials", "expected"),
    [
        (Credentials("127.0.0.1:1"), True),
        (Credentials("127.8.8.8:1"), True),
        (Credentials("[::1]:1"), True),
        (Credentials("unix:"), True),
        (Credentials("192.0.2.1:1", is_encrypted=True), True),
        (Credentials("192.0.2.1:1"), False),
        (Credentials("[fe80::1%eth0]:1"), False),
        (Credentials("[::ffff:192.0.2.1]:1"), False),
        (Credentials("localhost:1"), False),
        (Credentials(""), False),
    ],
)
def test_protection(credentials: Credentials, expected: bool) -> None:
    """Only TLS, loopback addresses and Unix sockets protect what a caller sends; an address that is not understood does not."""
    assert expected is credentials.is_protected


def test_digests_differ() -> None:
    """Credentials that differ in any part that counts are kept under different keys."""
    kinds = [
        Credentials("192.0.2.1:1"),
        Credentials("192.0.2.1:1", is_encrypted=True),
        Credentials("unix:", user_id=0),
        Credentials("unix:", user_id=1),
        Credentials("unix:", certificates=(b"ab", b"c")),
        Credentials("unix:", certificates=(b"a", b"bc")),
        Credentials("unix:", authorizations=("ab", "c")),
        Credentials("unix:", authorizations=("a", "bc")),
        Credentials("unix:", certificates=(b"ab",)),
        Credentials("unix:", authorizations=("ab",)),
    ]
    assert len(kinds) == len({one.digest() for one in kinds})


async def refusal(authenticator: Authenticator, credentials: Credentials) -> str:
    """Return the message with which credentials are refused."""
    with pytest.raises(ServiceError) as raised:
        await authenticator.authenticate(credentials)
    return str(raised.value)


async def test_tokens_in_the_clear() -> None:
    """A token that came over a network in the clear is refused, also after it was accepted elsewhere: others may have read it."""
    authenticator = Authenticator(tokens=TokenAuthenticator((ENTRY,)))
    assert "agent" == (await authenticator.authenticate(bearer("gvl_good"))).principal.name
    assert "over TLS, loopback and Unix sockets only" in await refusal(authenticator, bearer("gvl_good", "192.0.2.1:1"))
    await authenticator.authenticate(bearer("gvl_good", "192.0.2.1:1", is_encrypted=True))


async def test_an_invalid_credential_is_not_replaced_by_another() -> None:
    """A call with an invalid token is refused, although its user or certificate alone would be accepted."""
    authenticator = Authenticator(tokens=TokenAuthenticator((ENTRY,)), users=UserAuthenticator({}))
    assert "uid:7" == (await authenticator.authenticate(Credentials("unix:", user_id=7))).principal.name
    both = Credentials("unix:", authorizations=("Bearer gvl_bad",), user_id=7)
    assert "is unknown or was revoked" in await refusal(authenticator, both)
    assert "it has no issuers" in await refusal(authenticator, bearer("a.b.c"))


async def test_a_verification_waits_for_its_turn() -> None:
    """Each verification waits for a turn of its peer; credentials that are verified already, or meanwhile, take none more."""
    peers: list[str] = []
    has_come, is_free = asyncio.Semaphore(0), asyncio.Event()

    async def take_turn(peer: str) -> None:
        peers.append(peer)
        has_come.release()
        await is_free.wait()

    authenticator = Authenticator(tokens=TokenAuthenticator((ENTRY,)), take_turn=take_turn)
    calls = [asyncio.create_task(authenticator.authenticate(bearer(token))) for token in ("gvl_good", "gvl_good", "gvl_bad")]
    for _ in calls:
        await has_come.acquire()
    assert not any(call.done() for call in calls)
    is_free.set()
    first, second, refused = await asyncio.gather(*calls, return_exceptions=True)
    assert first is second
    assert isinstance(refused, ServiceError)
    assert first is await authenticator.authenticate(bearer("gvl_good"))
    assert 3 == len(peers)


async def test_sessions_are_kept_and_ended() -> None:
    """Equal credentials share a session, until their entry is withdrawn; then the session is over and the next call is refused."""
    tokens = TokenAuthenticator((ENTRY,))
    authenticator = Authenticator(tokens=tokens)
    session = await authenticator.authenticate(bearer("gvl_good"))
    assert session is await authenticator.authenticate(bearer("gvl_good"))
    assert 0 == authenticator.end_revoked()
    handles, revoked = Handles(), list[int]()
    handle = handles.open(session, revoked.append)
    tokens.use(())
    assert (1, [handle]) == (authenticator.end_revoked(), revoked)
    with pytest.raises(ServiceError, match="the token was revoked"):
        session.check()
    assert "is unknown or was revoked" in await refusal(authenticator, bearer("gvl_good"))
    handles.forget(handle)
    assert handles.get(handle) is None


async def test_kept_sessions_are_bounded() -> None:
    """However many credentials are presented, at most SESSIONS_MAX sessions are kept."""
    authenticator = Authenticator(users=UserAuthenticator({}))
    for user in range(SESSIONS_MAX + 10):
        await authenticator.authenticate(Credentials("unix:", user_id=user))
    assert SESSIONS_MAX == len(authenticator._kept)


async def test_refused_credentials_are_not_kept() -> None:
    """Refused credentials take no memory."""
    authenticator = Authenticator(tokens=TokenAuthenticator((ENTRY,)))
    for number in range(10):
        await refusal(authenticator, bearer(f"gvl_{number}"))
    assert 0 == len(authenticator._kept)


@pytest.mark.parametrize("names", [{"0": "uid:0"}, {"0": ""}, {"no-such-login-name": "root"}])
def test_names_of_users_that_are_refused(names: dict[str, str]) -> None:
    """Names of users that are reserved or missing, and users that do not exist, are refused at the start."""
    with pytest.raises(ValueError, match="unix_users"):
        UserAuthenticator(names)
