"""The environment of child processes."""

from __future__ import annotations

import os

import pytest
from gavel_server.process.children import child_environment, log_reader_environment


def test_children_get_no_settings_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child gets what programs need to run, and neither settings nor variables that Gavel does not know."""
    monkeypatch.setenv("GAVEL_REDIS", "redis://:secret@host")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    environment = child_environment()
    assert (os.environ["PATH"], "C.UTF-8") == (environment["PATH"], environment["LC_ALL"])
    assert "secret" not in " ".join(environment.values())


def test_readers_of_logs_get_the_variables_of_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that opens the log and its archive gets the variables of PostgreSQL and of object stores, and no settings of Gavel."""
    variables = {"PGPASSWORD": "for PostgreSQL", "AWS_SECRET_ACCESS_KEY": "for S3", "HOME": "/home/gavel"}
    for name, value in {**variables, "GAVEL_REDIS": "redis://:secret@host"}.items():
        monkeypatch.setenv(name, value)
    environment = log_reader_environment()
    assert variables.items() <= environment.items()
    assert "secret" not in " ".join(environment.values())
