"""The environment of child processes."""

from __future__ import annotations

import os

import pytest
from gavel_server.process.children import child_environment


def test_children_get_no_settings_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child gets what programs need to run, and neither settings nor variables that Gavel does not know."""
    monkeypatch.setenv("GAVEL_REDIS", "redis://:secret@host")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    environment = child_environment()
    assert (os.environ["PATH"], "C.UTF-8") == (environment["PATH"], environment["LC_ALL"])
    assert "secret" not in " ".join(environment.values())
