"""Private sockets and their directories: removed with their server, without touching those of others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from gavel_server.process.sockets import LOCK, private_socket, socket_directory

HOLDER = """
from gavel_server.process.sockets import socket_directory
with socket_directory() as directory:
    print(directory, flush=True)
    input()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory, the test's own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def hold() -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has a directory."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_private_socket_has_no_name(parent: Path) -> None:
    """A private socket is reached by its server and by children with its descriptor, and has no name in the temporary directory."""
    with socket.socket(socket.AF_UNIX) as server:

        def listen(path: str) -> None:
            server.bind(path)
            server.listen()

        with private_socket(listen) as own:
            assert [] == list(parent.iterdir())
            server.accept()[0].close()  # the availability check connected to it
            program = f"import socket; socket.socket(socket.AF_UNIX).connect('{own.path}')"
            for inherited, status in ((own.descriptors, 0), ((), 1)):
                process = subprocess.run([sys.executable, "-c", program], pass_fds=inherited, capture_output=True, check=False)
                assert status == process.returncode, process.stderr
        assert not os.path.exists(own.path)


def test_private_socket_with_a_name(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without descriptors of names, the socket is in a private directory until the end."""
    monkeypatch.delattr(os, "O_PATH")
    with socket.socket(socket.AF_UNIX) as server, private_socket(server.bind) as own:
        assert (parent, ()) == (Path(own.path).parents[1], own.descriptors)
        assert Path(own.path).is_socket()
    assert [] == list(parent.iterdir())


def test_socket_directory_is_removed(parent: Path) -> None:
    """A socket directory is private, in the temporary directory, and removed with its contents."""
    with socket_directory() as directory:
        assert (parent, 0o700) == (directory.parent, directory.stat().st_mode & 0o777)
        (directory / "server.sock").touch()
    assert [] == list(parent.iterdir())


def test_a_temporary_directory_with_a_long_path(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the path of the temporary directory is too long for a socket, the directory is elsewhere and a socket fits."""
    long = parent / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with socket_directory() as directory, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "server.sock"))
        assert [] == list(long.iterdir())
    assert not directory.exists()


def test_directory_of_a_killed_process_is_removed(parent: Path) -> None:
    """A new directory removes that of a killed process, but neither one in use nor one without a lock."""
    (parent / "gavel-notes").mkdir()
    (parent / "gavel-of-a-file").touch()
    killed, unused = hold()
    living, used = hold()
    try:
        killed.kill()
        killed.communicate()
        assert unused.is_dir()
        with socket_directory() as directory:
            assert sorted([directory, used, parent / "gavel-notes", parent / "gavel-of-a-file"]) == sorted(parent.iterdir())
        assert (used / LOCK).exists()
    finally:
        living.communicate("\n")
    assert 0 == living.returncode
    assert not used.exists()
