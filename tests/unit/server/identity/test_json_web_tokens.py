"""Principals of JSON Web Tokens: names, groups, chains of actors, and the times between which a token is accepted."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest
from gavel_rules.limits import PRINCIPAL_GROUPS_MAX
from gavel_server.errors import ServiceError
from gavel_server.identity.identity import Identity
from gavel_server.identity.json_web_tokens import ACTORS_MAX, JwtAuthenticator
from gavel_server.identity.names import NAME_CHARACTERS_MAX
from gavel_server.identity.settings import IdentitySettings, JwtIssuer
from gavel_server.identity.tokens import add_token
from structlog.testing import capture_logs

from tests.support.identity.issuer import AUDIENCE, ISSUER, Issuer


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    """An issuer."""
    return Issuer()


@pytest.fixture(scope="module")
def file(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of its keys."""
    path = tmp_path_factory.mktemp("issuer") / "keys.json"
    issuer.write(path)
    return path


def authenticator(file: Path, **settings: Any) -> JwtAuthenticator:
    """Return the authenticator of the issuer with some settings."""
    document = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": file, "leeway_seconds": 0, **settings}
    return JwtAuthenticator([JwtIssuer.model_validate(document)])


async def refusal(authenticator: JwtAuthenticator, token: str) -> str:
    """Return the message with which a token is refused."""
    with pytest.raises(ServiceError) as raised:
        await authenticator.session(token)
    assert token not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("path", "claims", "groups"),
    [
        ("groups", {"groups": ["b", "a", "b"]}, ("a", "b")),
        ("groups", {"groups": "one"}, ("one",)),
        ("groups", {}, ()),
        ("realm_access.roles", {"realm_access": {"roles": ["r"]}}, ("r",)),
        ("https://acme.example/groups", {"https://acme.example/groups": ["g"]}, ("g",)),
        ("a.b", {"a.b": ["flat"], "a": {"b": ["deep"]}}, ("flat",)),
        ("a.b", {"a": ["b"]}, ()),
        ("", {"groups": ["x"], "": ["y"]}, ()),
    ],
)
async def test_groups(issuer: Issuer, file: Path, path: str, claims: dict[str, Any], groups: tuple[str, ...]) -> None:
    """Groups come from the claim of the configured name, else from the path; without the claim there are none."""
    session = await authenticator(file, groups_claim=path).session(issuer.token(**claims))
    assert groups == session.principal.groups


async def test_groups_have_the_prefix_of_their_issuer(issuer: Issuer, file: Path) -> None:
    """With a prefix, the groups of one issuer are not those of another one that have the same names."""
    session = await authenticator(file, groups_prefix="corp:").session(issuer.token(groups=["b", "a"]))
    assert ("corp:a", "corp:b") == session.principal.groups


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ({}, {}, ["names", "groups"]),
        ({"name_prefix": "a:"}, {}, ["groups"]),
        ({"groups_prefix": "a:"}, {}, ["names"]),
        ({"groups_claim": ""}, {"name_prefix": "b:"}, []),
        ({"name_prefix": "a:", "groups_prefix": "a:"}, {"name_prefix": "b:", "groups_prefix": "b:"}, []),
        ({"name_prefix": "a:", "groups_prefix": "a:"}, {"name_prefix": "a:"}, ["names"]),
    ],
)
def test_issuers_that_share_names(file: Path, first: dict[str, str], second: dict[str, str], shared: list[str]) -> None:
    """A server whose issuers can give the same names or groups warns of it at its start, and names the setting that helps."""
    issuers = tuple(
        JwtIssuer.model_validate({"issuer": issuer, "audience": AUDIENCE, "jwks_file": file, **settings})
        for issuer, settings in (("https://one.example", first), ("https://two.example", second))
    )
    with capture_logs() as logs:
        Identity(IdentitySettings("required", issuers=issuers))
    problems = [line["problem"] for line in logs if line["event"] == "identity.shared_names"]
    assert [f"one space of {kind}" in problem for kind, problem in zip(shared, problems, strict=True)] == [True] * len(shared)
    assert all("https://one.example, https://two.example" in problem and "prefix" in problem for problem in problems)
    with capture_logs() as logs:
        Identity(IdentitySettings("required", issuers=issuers[:1]))
    assert [] == logs


@pytest.mark.parametrize(("prefix", "expected"), [("corp:", []), ("", ["https://one.example and tokens share one space of names"])])
def test_an_issuer_that_shares_names_with_tokens(file: Path, tmp_path: Path, prefix: str, expected: list[str]) -> None:
    """A server warns at its start if an issuer without a prefix can give the name of a token's caller."""
    add_token(tmp_path / "tokens.toml", "alice", (), None)
    fields = {"issuer": "https://one.example", "audience": AUDIENCE, "jwks_file": file, "name_prefix": prefix}
    issuer = JwtIssuer.model_validate(fields)
    with capture_logs() as logs:
        Identity(IdentitySettings("required", token_file=tmp_path / "tokens.toml", issuers=(issuer,)))
    assert expected == [line["problem"].partition(";")[0] for line in logs if line["event"] == "identity.shared_names"]


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        ({"a": 1}, "is not a list of texts"),
        ([1], "has a group that is not a text"),
        ([""], "has a group that is not a text"),
        (["a\nb"], "has a group that is not a text"),
        (["x" * (NAME_CHARACTERS_MAX + 1)], "has a group that is not a text"),
        ([f"g{number}" for number in range(PRINCIPAL_GROUPS_MAX + 1)], f"has more than {PRINCIPAL_GROUPS_MAX} groups"),
    ],
)
async def test_groups_that_are_refused(issuer: Issuer, file: Path, groups: Any, problem: str) -> None:
    """A token with malformed groups is refused, and not taken without them."""
    assert problem in await refusal(authenticator(file), issuer.token(groups=groups))


async def test_chain_of_actors(issuer: Issuer, file: Path) -> None:
    """The chain of `act` claims is kept in its order, nearest first."""
    act = {"sub": "agent-7", "act": {"sub": "orchestrator"}}
    session = await authenticator(file).session(issuer.token(act=act))
    assert ("alice", ("agent-7", "orchestrator")) == (session.principal.name, session.principal.actors)


async def test_actors_have_the_prefix_of_their_issuer(issuer: Issuer, file: Path) -> None:
    """An actor is named as its own token would name it: separation of duties would take two names for two persons."""
    verified = authenticator(file, name_prefix="corp:")
    own = (await verified.session(issuer.token(sub="agent-7"))).principal
    delegated = (await verified.session(issuer.token(act={"sub": "agent-7", "act": {"sub": "bob"}}))).principal
    assert ("corp:alice", (own.name, "corp:bob")) == (delegated.name, delegated.actors)


async def test_a_header_that_is_nested_deeply(file: Path) -> None:
    """A header that nobody can parse is refused as any other malformed one, and is not an error of the server."""
    header = base64.urlsafe_b64encode(b"[" * 5_000).decode()
    assert "is not a JSON Web Token" in await refusal(authenticator(file), f"{header}.e30.e30")


def chain(length: int) -> dict[str, Any]:
    """Return a chain of so many actors."""
    act: dict[str, Any] = {"sub": "a"}
    for _ in range(length - 1):
        act = {"sub": "a", "act": act}
    return act


async def test_chains_of_actors_that_are_refused(issuer: Issuer, file: Path) -> None:
    """A chain that is malformed or too long is refused: a shortened one would hide who acts."""
    verified = authenticator(file)
    assert ACTORS_MAX == len((await verified.session(issuer.token(act=chain(ACTORS_MAX)))).principal.actors)
    malformed: list[Any] = [chain(ACTORS_MAX + 1), [], "agent", {"sub": "a", "act": "b"}]
    for act in malformed:
        assert "is not a chain" in await refusal(verified, issuer.token(act=act))
    assert "the sub of an actor" in await refusal(verified, issuer.token(act={}))
    assert "is reserved" in await refusal(verified, issuer.token(act={"sub": "gavel:server"}))


LIKE_OTHERS = ["a\u202eb", "alice\ufe0f", "ali\u034fce", "\u3164", "e\u0301ve"]


@pytest.mark.parametrize(
    "name", ["", " alice", *LIKE_OTHERS, "x" * (NAME_CHARACTERS_MAX + 1), "uid:0", "group:admins", "gavel:server", "anonymous", 7, None]
)
async def test_names_that_are_refused(issuer: Issuer, file: Path, name: Any) -> None:
    """A name that is missing, unprintable, invisible in part, too long or reserved is refused, also behind a prefix."""
    for settings in ({}, {"name_claim": "email"}, {"name_prefix": "corp:"}):
        token = issuer.token(sub=name, email=name) if name is not None else issuer.token(sub=None)
        assert "claim" in await refusal(authenticator(file, **settings), token)


async def test_names(issuer: Issuer, file: Path) -> None:
    """The name is the configured claim behind the issuer's prefix; the credential is named by `jti`, else by the key."""
    verified = authenticator(file, name_claim="email", name_prefix="corp:")
    principal = (await verified.session(issuer.token(email="a@acme.example"))).principal
    assert ("corp:a@acme.example", "jwt", ISSUER, "token-1") == (
        principal.name,
        principal.method,
        principal.issuer,
        principal.credential_id,
    )
    assert "kid:key-1" == (await verified.session(issuer.token(email="a", jti=None))).principal.credential_id


async def test_leeway(issuer: Issuer, file: Path) -> None:
    """The leeway for clocks applies to the start and the end of a token, and the session ends with it."""
    now = int(time.time())
    token = issuer.token(exp=now - 10, nbf=now - 20)
    assert "the credentials have expired" in await refusal(authenticator(file), token)
    session = await authenticator(file, leeway_seconds=60).session(token)
    assert now + 50 == session.expires_at
    early = issuer.token(nbf=now + 30)
    assert "is not valid yet" in await refusal(authenticator(file), early)
    await authenticator(file, leeway_seconds=60).session(early)


async def test_an_end_beyond_all_times(issuer: Issuer, file: Path) -> None:
    """An end that no clock can hold is a malformed claim, not an error of the server."""
    assert "the token's time of expiry (exp) is malformed" in await refusal(authenticator(file), issuer.token(exp=10**400))


async def test_algorithms(issuer: Issuer, file: Path) -> None:
    """A token is refused if its algorithm is not one of the issuer's, even if its key could verify it."""
    assert "is not one that issuer" in await refusal(authenticator(file, algorithms=["RS256"]), issuer.token())


@pytest.mark.parametrize("algorithm", ["HS256", "none"])
def test_symmetric_algorithms_cannot_be_configured(file: Path, algorithm: str) -> None:
    """The settings take asymmetric algorithms only."""
    with pytest.raises(ValueError, match="algorithms"):
        authenticator(file, algorithms=[algorithm])


@pytest.mark.parametrize(
    "url", ["http://login.example/keys", "file:///etc/keys", "https://", "ftp://login.example", "http://localhost.evil.example/"]
)
def test_urls_of_keys_that_are_refused(url: str) -> None:
    """Keys are fetched over https, or from this machine."""
    with pytest.raises(ValueError, match="is not an https URL"):
        JwtIssuer.model_validate({"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": url})


def test_urls_with_a_password_are_refused() -> None:
    """A URL of keys with a user or a password is refused, and the error does not show them."""
    with pytest.raises(ValueError, match="holds a user or a password") as raised:
        JwtIssuer.model_validate({"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "https://alice:planted@login.example/keys"})
    assert "planted" not in raised.value.errors()[0]["msg"]  # type: ignore[attr-defined]  # pydantic's error, of which the server shows this


async def test_withdrawn_key(issuer: Issuer, tmp_path: Path) -> None:
    """A session whose key was withdrawn has a problem; one whose key stays has none."""
    path = tmp_path / "keys.json"
    issuer.write(path)
    verified = authenticator(path)
    session = await verified.session(issuer.token())
    assert "" == verified.problem(session)
    Issuer("other").write(path)
    await verified.key_sets[ISSUER].reload()
    assert "is no longer among the keys" in verified.problem(session)
