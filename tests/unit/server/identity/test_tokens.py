"""The token file: what it holds, which files are refused, and which tokens are accepted."""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from gavel_server.errors import ServiceError
from gavel_server.identity.errors import IdentityFileError
from gavel_server.identity.tokens import PREFIX, TokenAuthenticator, add_token, read_token_file, token_digest

DIGEST = "0" * 64


def entry(**changes: str) -> str:
    """Return an entry of a token file, with changed lines; "" leaves one out."""
    lines = {"id": '"one"', "name": '"agent"', "groups": '["b", "a"]', "sha256": f'"{DIGEST}"', **changes}
    return "[[tokens]]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items() if value)


def test_added_tokens(tmp_path: Path) -> None:
    """A token is random and not in its file, which only its owner can read; it opens a session with the entry's name and groups."""
    path = tmp_path / "tokens.toml"
    tokens = [add_token(path, "agent", ("b", "a", "b"), None) for _ in range(2)]
    assert 2 == len({*tokens})
    assert 0o600 == path.stat().st_mode & 0o777
    for token in tokens:
        assert token.startswith(PREFIX)
        assert len(token) >= len(PREFIX) + 43  # 256 bits
        assert token.removeprefix(PREFIX) not in path.read_text()
        assert hashlib.sha256(token.encode()).hexdigest() in path.read_text()
        session = TokenAuthenticator(read_token_file(path)).session(token)
        principal = session.principal
        assert ("agent", "token", ("a", "b"), math.inf) == (principal.name, principal.method, principal.groups, session.expires_at)
        assert principal.credential_id not in token


@pytest.mark.parametrize(
    "groups", [("",), ("a\x7f",), tuple(f"group-{number}" for number in range(1_000))], ids=["empty", "control", "many"]
)
def test_groups_that_no_file_may_hold(tmp_path: Path, groups: tuple[str, ...]) -> None:
    """A token with a group that the file may not hold is refused, and the file stays as it is."""
    path = tmp_path / "tokens.toml"
    add_token(path, "agent", ("a",), None)
    before = path.read_bytes()
    with pytest.raises(IdentityFileError):
        add_token(path, "other", groups, None)
    assert before == path.read_bytes()


def test_expiry_and_revocation(tmp_path: Path) -> None:
    """An expired token is refused; a session whose entry is gone or was changed has a problem."""
    path = tmp_path / "tokens.toml"
    token = add_token(path, "agent", (), datetime.now(UTC) + timedelta(hours=1))
    verified = TokenAuthenticator(read_token_file(path))
    session = verified.session(token)
    assert "" == verified.problem(session)
    verified.use(tuple(one._replace(name="other") for one in read_token_file(path)))
    assert "was changed" in verified.problem(session)
    verified.use(())
    assert "was revoked" in verified.problem(session)
    for entries, message in (
        ((), "is unknown or was revoked"),
        (tuple(one._replace(expires_at=0.0) for one in read_token_file(path)), "the credentials have expired"),
    ):
        verified.use(entries)
        with pytest.raises(ServiceError, match=message) as raised:
            verified.session(token)
        assert token not in str(raised.value)


@pytest.mark.parametrize("token", ["", " ", "ä", "\ud800", "x" * 9000, DIGEST])
def test_texts_that_are_no_tokens(token: str) -> None:
    """Any text that is not a token is refused, the digest in the file included."""
    verified = TokenAuthenticator(())
    with pytest.raises(ServiceError, match="is unknown or was revoked"):
        verified.session(token)
    assert 32 == len(token_digest(token))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[[tokens]", "is not TOML"),
        (f"tokens = {'[' * 50_000}", "is not TOML"),
        ("users = []", "it may hold [[tokens]] tables only"),
        ("tokens = 1", "it may hold [[tokens]] tables only"),
        ("tokens = [1]", "token 1 is not a table"),
        (entry(digest='"secret"'), "token 1 holds unknown keys (digest)"),
        (entry(name='""'), "token 1: name is missing"),
        (entry(name='"uid:0"'), "token 1: name is reserved"),
        (entry(name="1"), "token 1: name is missing or not a text"),
        (entry(groups='"a"'), "token 1: groups is not a list of texts"),
        (entry(groups="[1]"), "token 1: groups is not a list of texts"),
        (entry(groups=str([f"g{number}" for number in range(257)])), "token 1: groups has more than 256 items"),
        (entry(sha256='"secret"'), "token 1: sha256 is not 64 lower-case hexadecimal digits"),
        (entry(sha256=f'"{"A" * 64}"'), "token 1: sha256 is not 64 lower-case hexadecimal digits"),
        (entry(id=""), "token 1: id is missing"),
        (entry(expires_at='"tomorrow"'), "token 1: expires_at is not a date and time with a time zone"),
        (entry(expires_at="2027-01-31T00:00:00"), "token 1: expires_at is not a date and time with a time zone"),
        (entry() + entry(), "two tokens have the same id"),
        (entry() + entry(id='"two"'), "two tokens have the same sha256"),
        (entry() + entry(id='"two"', sha256='"x"'), "token 2: sha256"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: str, problem: str) -> None:
    """An invalid file is refused as a whole, with the place of the mistake and without a value that may be a secret."""
    path = tmp_path / "tokens.toml"
    path.write_text(content)
    with pytest.raises(IdentityFileError) as raised:
        read_token_file(path)
    assert problem in str(raised.value)
    assert str(path) in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_file_that_is_invalid_gets_no_entry(tmp_path: Path) -> None:
    """No token is added to an invalid file, and none with an invalid name."""
    path = tmp_path / "tokens.toml"
    with pytest.raises(IdentityFileError, match="is reserved"):
        add_token(path, "gavel:server", (), None)
    assert not path.exists()
    path.write_text("tokens = 1")
    with pytest.raises(IdentityFileError, match="tables only"):
        add_token(path, "agent", (), None)
    assert "tokens = 1" == path.read_text()
