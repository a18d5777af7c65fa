"""Documents that commands read and write: envelopes in JSON and YAML, the errors of invalid ones, and files that are replaced."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.cli.documents import DOCUMENT_BYTES_MAX, read_document, read_envelope, write_document
from gavel_server.cli.errors import EXIT_INVALID, CommandError, InvalidInputError
from google.protobuf.json_format import MessageToJson, ParseDict
from hypothesis import given
from hypothesis import strategies as st

EXPECTED = ParseDict(
    {
        "subject": "order/1",
        "occurred_at": "2026-01-02T03:04:05Z",
        "producer": {"type": "PRODUCER_TYPE_AGENT", "id": "agent-1"},
        "proposal": {
            "action_type": "refund.create",
            "params": {"amount": 25, "note": "no: really", "codes": [1, 2.5, None, True]},
            "max_fact_age_ms": "60000",
            "based_on_events": [{"event_id": "a", "sequence_number": 7}],
        },
    },
    Envelope(),
)
YAML = """
subject: order/1
occurred_at: 2026-01-02T03:04:05Z
producer: {type: PRODUCER_TYPE_AGENT, id: agent-1}
proposal:
  action_type: refund.create
  params: {amount: 25, note: 'no: really', codes: [1, 2.5, null, true]}
  max_fact_age_ms: 60000
  based_on_events: [{event_id: a, sequence_number: 7}]
"""


def write(directory: Path, text: str, name: str = "envelope.yaml") -> str:
    """Write a file with `text`; return its name."""
    (directory / name).write_text(text)
    return str(directory / name)


def test_yaml(tmp_path: Path) -> None:
    """YAML is read as the same message as JSON; times keep their text."""
    assert EXPECTED == read_envelope(write(tmp_path, YAML))


@pytest.mark.parametrize("name", ["envelope.json", "envelope.yaml", "envelope"])
@pytest.mark.parametrize("preserving", [True, False])
def test_json(tmp_path: Path, name: str, preserving: bool) -> None:
    """Protobuf JSON is read under any file name, with the contract's field names and with JSON's."""
    text = MessageToJson(EXPECTED, preserving_proto_field_name=preserving).replace("  ", "\t")
    assert EXPECTED == read_envelope(write(tmp_path, text, name))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash is standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(YAML.encode())))
    assert EXPECTED == read_envelope("-")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be one Envelope"),
        ("- subject: order/1", "must be one Envelope"),
        ("subject: order/1\nxyz: 1", "xyz: Envelope has no such field; use one of schema_version, "),
        ("subjet: order/1", "subjet: Envelope has no such field; did you mean subject?"),
        ("proposal: {acton_type: a.b}", "proposal.acton_type: Proposal has no such field; did you mean action_type?"),
        (
            "proposal: {basedOnEvents: [{id: a}]}",
            "proposal.basedOnEvents.id: EventReference has no such field; use one of event_id, sequence_number",
        ),
        (
            "proposal: {actionType: refund.small, action_type: refund.large}",
            "proposal.action_type: actionType is the same field; keep one of them",
        ),
        ("producer: {type: AGENT}", "producer.type: 'AGENT' is not a value of ProducerType; did you mean PRODUCER_TYPE_AGENT?"),
        (
            "producer: {type: ROBOT}",
            "producer.type: 'ROBOT' is not a value of ProducerType; use one of PRODUCER_TYPE_SENSOR, PRODUCER_TYPE_API, ",
        ),
        ("subjet: order/1\nproducer: {typ: AGENT}", "producer.typ: Producer has no such field; did you mean type?"),
        (f"proposal: {'[' * 1_000}", "is nested too deep"),
        (f'{{"proposal": {"[" * 1_000}{"]" * 1_000}}}', "is nested too deep"),
        ("subject: 5", "is not an Envelope of gavel.v1"),
        ("subject: order/1\nsubject: order/2", "envelope.yaml:2:1"),
        ("subject: [", "neither JSON nor YAML"),
        ('{"subject": "a", "subject": "b"}', "the key 'subject' appears twice"),
        ("proposal: {params: {amount: 9007199254740993}}", "proposal.params.amount is 9007199254740993, outside"),
        ("proposal: {params: {list: [1, {deep: -90071992547409930}]}}", "proposal.params.list[1].deep is -90071992547409930"),
        ("fact: {}\nproposal: {}", "is not an Envelope"),
        ("subject: !!python/object:os.system x", "neither JSON nor YAML"),
    ],
)
def test_invalid_documents(tmp_path: Path, text: str, reason: str) -> None:
    """An invalid envelope is refused with the file's name, the place of the mistake, and exit status 2."""
    name = write(tmp_path, text)
    with pytest.raises(InvalidInputError) as refusal:
        read_envelope(name)
    assert str(refusal.value).startswith(name)
    assert reason in str(refusal.value)
    assert EXIT_INVALID == refusal.value.exit_status


def test_place_of_json_mistake(tmp_path: Path) -> None:
    """A syntax error in a .json file is reported with line and column."""
    name = write(tmp_path, '{"subject": "order/1",\n  oops}', "envelope.json")
    with pytest.raises(InvalidInputError, match=r"envelope\.json:2:3: not JSON"):
        read_envelope(name)


def test_unreadable_files(tmp_path: Path) -> None:
    """A missing file, one that is too large and one that is not UTF-8 are refused with their name."""
    with pytest.raises(InvalidInputError, match=r"cannot read .*nowhere: No such file"):
        read_document(str(tmp_path / "nowhere"))
    (tmp_path / "large").write_bytes(b" " * (DOCUMENT_BYTES_MAX + 1))
    with pytest.raises(InvalidInputError, match="is larger than"):
        read_document(str(tmp_path / "large"))
    (tmp_path / "latin").write_bytes(b"note: \xe9")
    with pytest.raises(InvalidInputError, match="is not UTF-8 at byte 6"):
        read_document(str(tmp_path / "latin"))


@given(text=st.text(max_size=200))
def test_any_text_is_an_envelope_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Any text is read as an envelope or refused with InvalidInputError."""
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(text.encode())
    with contextlib.suppress(InvalidInputError):
        read_envelope(str(path))


def test_replaced_file(tmp_path: Path) -> None:
    """A file is replaced as a whole, through a link, with its mode; nothing else stays in its folder."""
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there/a.yaml", tmp_path / "a.yaml"
    link.symlink_to(file)
    write_document(link, "old\n")
    file.chmod(0o640)
    with file.open() as old:
        write_document(link, "new\n")
        assert "old\n" == old.read()
    assert ("new\n", 0o640, True) == (file.read_text(), file.stat().st_mode & 0o777, link.is_symlink())
    assert [file] == [*file.parent.iterdir()]


def test_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary file of a private file is private from its start, that of a new file obeys the umask, and both have the file's name."""
    file = tmp_path / "a.yaml"
    modes: list[tuple[bool, int]] = []

    def note_modes(_: int) -> None:
        modes.extend((path.name.startswith(".a.yaml."), path.stat().st_mode & 0o777) for path in tmp_path.iterdir() if path != file)

    monkeypatch.setattr(os, "fsync", note_modes)
    before = os.umask(0o022)
    try:
        write_document(file, "new\n")
        file.chmod(0o600)
        write_document(file, "newer\n")
    finally:
        os.umask(before)
    assert [(True, 0o644), (True, 0o600)] == modes


def test_long_name(tmp_path: Path) -> None:
    """A file whose name leaves no room for a longer one is written."""
    file = tmp_path / ("a" * 255)
    for text in ("old\n", "new\n"):
        write_document(file, text)
        assert text == file.read_text()


def test_file_that_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure leaves the file and its folder as they were."""
    file = tmp_path / "a.yaml"
    file.write_text("old\n")
    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, fail)
            with pytest.raises(CommandError, match=r"^cannot write .*/a\.yaml: full$"):
                write_document(file, "new\n")
        assert (["a.yaml"], "old\n") == (os.listdir(tmp_path), file.read_text())


def fail(*_: object) -> None:
    """Raise OSError."""
    raise OSError(errno.ENOSPC, "full")


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EPERM])
def test_file_that_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A file in whose place no other can be put is written as it is."""
    file = tmp_path / "a.yaml"
    file.write_text("old, and longer\n")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        write_document(file, "new\n")
    assert (["a.yaml"], "new\n") == (os.listdir(tmp_path), file.read_text())


def test_file_with_several_names(tmp_path: Path) -> None:
    """A hard link keeps both names."""
    file, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    file.write_text("old\n")
    os.link(file, other)
    write_document(file, "new\n")
    assert "new\n" == other.read_text()


def test_device() -> None:
    """A device is written to, not replaced."""
    write_document(Path(os.devnull), "new\n")
    assert not Path(os.devnull).is_file()
