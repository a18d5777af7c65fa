"""The file of a notary's key."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from gavel_server.proofs.keys import KeyFileError, generate_key, read_key, write_key
from gavel_server.proofs.verifier import parse_key


def test_written_and_read(tmp_path: Path) -> None:
    """A key is read as it was written; only its owner may read the file; its public key is a vkey."""
    key = generate_key("gavel/default")
    write_key(tmp_path / "key", key)
    assert str(key) == str(read_key(tmp_path / "key"))
    assert 0o600 == stat.S_IMODE((tmp_path / "key").stat().st_mode)
    assert key.public == parse_key(str(key.public))


def test_keys_differ() -> None:
    """Every key is another one."""
    assert 3 == len({str(generate_key("gavel/default")) for _ in range(3)})


def test_never_overwritten(tmp_path: Path) -> None:
    """A file is never overwritten."""
    (tmp_path / "key").write_text("precious", encoding="ascii")
    with pytest.raises(KeyFileError, match="never overwritten"):
        write_key(tmp_path / "key", generate_key("gavel/default"))
    assert "precious" == (tmp_path / "key").read_text(encoding="ascii")


def test_readable_by_others(tmp_path: Path) -> None:
    """A key that others may read is refused."""
    write_key(tmp_path / "key", generate_key("gavel/default"))
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_key(tmp_path / "key")


@pytest.mark.parametrize(
    "change", [lambda text: "", lambda text: text[:-9], lambda text: text.replace("default", "other"), lambda text: "Ω"]
)
def test_damaged(tmp_path: Path, change: object) -> None:
    """A damaged key is refused, and the message does not have it."""
    key = generate_key("gavel/default")
    write_key(tmp_path / "key", key)
    (tmp_path / "key").write_text(change(str(key)), encoding="utf-8")  # type: ignore[operator]
    with pytest.raises(KeyFileError) as caught:
        read_key(tmp_path / "key")
    assert str(key).split("+", 4)[4] not in str(caught.value)  # base64 may have a "+" too
