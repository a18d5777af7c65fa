"""Tests of principals."""

from __future__ import annotations

import dataclasses

import pytest
from gavel_rules.identity.principal import ANONYMOUS, SERVER, Principal


def test_principals_are_frozen_and_hashable() -> None:
    """A principal is a value: equal ones are one key of a dictionary, and nobody can change one after authentication."""
    one = Principal("alice", "jwt", issuer="https://issuer", groups=("risk",), actors=("agent",), credential_id="7")
    assert {one: 1} == {Principal("alice", "jwt", "https://issuer", ("risk",), ("agent",), "7"): 1}
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "bob"  # type: ignore[misc]


def test_only_an_unauthenticated_caller_is_anonymous() -> None:
    """A caller who is authenticated under the name "anonymous" is not taken for one without credentials."""
    assert ANONYMOUS.is_anonymous
    assert not Principal("anonymous", "token").is_anonymous


def test_only_the_server_is_the_server() -> None:
    """A principal is the server only with its name and method: another method may give the same name to somebody else."""
    assert SERVER.is_server
    assert not Principal(SERVER.name, "token").is_server
    assert not Principal("agent", "unix").is_server
    assert not ANONYMOUS.is_server


def test_principals_that_differ_are_not_equal() -> None:
    """Two principals are equal, and hash alike, only if all their fields are: a hash of some fields never makes them one."""
    principal = Principal("agent", "jwt", "https://issuer", ("staff",), ("backend",), "id-1")
    assert principal == Principal("agent", "jwt", "https://issuer", ("staff",), ("backend",), "id-1")
    assert hash(principal) == hash(Principal("agent", "jwt", "https://issuer", ("staff",), ("backend",), "id-1"))
    others = [Principal("agent", "jwt", issuer, groups, (), "id-1") for issuer in ("", "https://issuer") for groups in ((), ("staff",))]
    assert principal not in others
    assert len({principal, *others}) == 5
