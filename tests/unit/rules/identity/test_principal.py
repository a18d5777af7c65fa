"""Tests of principals."""

from __future__ import annotations

import dataclasses

import pytest
from gavel_rules.identity.principal import ANONYMOUS, Principal


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
