"""The environment and the priority of child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gavel_server.process.children import child_environment, log_reader_environment

AUTOGROUP = Path("/proc/self/autogroup")

# Prints the niceness of the process, the autogroup of its session with its niceness, and the scheduling policy.
PROGRAM = """
import os
from pathlib import Path
from gavel_server.process import children
{call}
autogroup = Path("/proc/self/autogroup")
print(os.nice(0), autogroup.read_text().strip() if autogroup.exists() else "", os.sched_getscheduler(0), sep=",")
"""


def test_children_get_no_settings_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child gets what programs need to run, and neither settings nor variables that Gavel does not know."""
    monkeypatch.setenv("GAVEL_REDIS", "redis://:secret@host")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    environment = child_environment()
    assert (os.environ["PATH"], "C.UTF-8") == (environment["PATH"], environment["LC_ALL"])
    assert "secret" not in " ".join(environment.values())


def test_readers_of_logs_get_the_variables_of_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that opens the log and its archive gets the variables of PostgreSQL, object stores and proxies, and no settings of Gavel."""
    variables = {
        "PGPASSWORD": "for PostgreSQL",
        "AWS_SECRET_ACCESS_KEY": "for S3",
        "HOME": "/home/gavel",
        "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": "localhost",
        "REQUESTS_CA_BUNDLE": "/etc/authorities.pem",
    }
    for name, value in {**variables, "GAVEL_REDIS": "redis://:secret@host"}.items():
        monkeypatch.setenv(name, value)
    environment = log_reader_environment()
    assert variables.items() <= environment.items()
    assert "secret" not in " ".join(environment.values())


def run(call: str, *, leads_session: bool) -> list[str]:
    """Run the call in a process of its own; return what it prints."""
    command = [sys.executable, "-c", PROGRAM.format(call=call)]
    result = subprocess.run(command, start_new_session=leads_session, capture_output=True, text=True, check=True)
    return result.stdout.strip().split(",")


@pytest.mark.parametrize(
    ("call", "niceness", "of_session", "policy"),
    [
        ("children.lower_priority(5)", 5, 5, os.SCHED_OTHER),
        ("children.use_idle_time()", 0, 19, os.SCHED_IDLE),
    ],
)
def test_a_session_of_its_own_gives_way(call: str, niceness: int, of_session: int, policy: int) -> None:
    """A child that leads a session lowers the weight of the session, since its own counts only within it."""
    of_process, autogroup, used = run(call, leads_session=True)
    assert (of_process, used) == (str(os.nice(0) + niceness), str(policy))
    if AUTOGROUP.exists():  # otherwise this kernel weighs processes, not sessions
        assert autogroup.endswith(f" nice {of_session}")


def test_a_shared_session_keeps_its_weight() -> None:
    """A child in its parent's session lowers its own priority and not that of its parent."""
    # Empty for the first session of a machine, which has no autogroup.
    before = AUTOGROUP.read_text().strip() if AUTOGROUP.exists() else ""
    assert run("children.lower_priority(7)", leads_session=False) == [str(os.nice(0) + 7), before, str(os.SCHED_OTHER)]
