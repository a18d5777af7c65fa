"""The documents that commands read and write: envelopes in protobuf JSON or YAML, and rule sets as text. `-` is standard input."""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import stat
import sys
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.process.private_files import PRIVATE_MODE

if TYPE_CHECKING:
    from gavel.v1.envelope_pb2 import Envelope
    from gavel.v1.tool_pb2 import ToolBinding, ToolContract, ToolProvider
    from gavel_rules.identity.grants import CompiledGrants
    from gavel_rules.language.rule_set import CompiledRuleSet
    from google.protobuf.descriptor import Descriptor, EnumDescriptor
    from google.protobuf.message import Message

_Message = TypeVar("_Message", bound="Message")

STANDARD_INPUT: Final = "-"
# A rule set or an envelope has at most 1 MiB; a larger document is not read to its end.
DOCUMENT_BYTES_MAX: Final = 4 * 1024 * 1024
_TOO_DEEP: Final = "is nested too deep; values may have at most 16 levels"


def read_document(name: str) -> str:
    """Return the text of a file, or of stdin for "-". Raises InvalidInputError."""
    if not name:
        raise InvalidInputError("an empty path names no file; name a file, or - for standard input")
    try:
        if name == STANDARD_INPUT:
            if sys.stdin is None:
                raise InvalidInputError("standard input is closed; name a file")
            content = sys.stdin.buffer.read(DOCUMENT_BYTES_MAX + 1)
        else:
            with Path(name).open("rb") as file:
                content = file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInputError(f"cannot read {name}: {error.strerror}") from error
    if len(content) > DOCUMENT_BYTES_MAX:
        raise InvalidInputError(f"{display_name(name)} is larger than {DOCUMENT_BYTES_MAX} bytes; give a smaller document")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{display_name(name)} is not UTF-8 at byte {error.start}; save it as UTF-8") from error


# Errors with which a file can be written but not replaced: no other file, of a longer name, can be created beside it or renamed to it.
_NOT_REPLACEABLE: Final = frozenset({errno.EACCES, errno.EBUSY, errno.ENAMETOOLONG, errno.EPERM, errno.EROFS, errno.EXDEV})


def write_document(path: Path, text: str) -> None:
    """Write a file. Raises CommandError.

    One that exists is replaced as a whole and keeps its owner and mode, and a symbolic link to it stays. Where that cannot be, as for a
    device, a file that is mounted, or one with several names, it is written in place.
    """
    try:
        if not _replace(path.resolve(), text):
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error


def _replace(path: Path, text: str) -> bool:
    """Write a file beside `path` and rename it; return False if that cannot be. Raises OSError if the text cannot be written."""
    present = path.stat() if path.exists() else None
    if present is not None and (not stat.S_ISREG(present.st_mode) or present.st_nlink > 1):
        return False
    if present is not None:
        path.open("r+b").close()  # raises if it may not be written
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        # Private until it has the owner and mode of the present file.
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if present is None else PRIVATE_MODE)
    except OSError as error:
        if error.errno in _NOT_REPLACEABLE:
            return False
        raise
    with open(descriptor, "w", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            try:
                if present is not None:
                    os.fchown(file.fileno(), present.st_uid, present.st_gid)
                    os.fchmod(file.fileno(), stat.S_IMODE(present.st_mode))
                os.replace(new, path)
            except OSError as error:
                if error.errno not in _NOT_REPLACEABLE:
                    raise
                new.unlink()
                return False
        except BaseException:
            new.unlink(missing_ok=True)
            raise
    return True


def read_rule_set(name: str) -> str:
    """Return the text of a rule set's file, or of stdin for "-", with the documents that it imports.

    Raises InvalidInputError, also for a file with a suite's name.
    """
    from gavel_rules.authoring.suites.suite import SUITE_SUFFIXES

    if name.endswith(SUITE_SUFFIXES):
        raise InvalidInputError(f"{name} is a test suite; give the rule set that the suite tests")
    text = read_document(name)
    return _bundle(text, name) if "imports" in text else text


def _bundle(text: str, name: str) -> str:
    """Return a rule set with the documents that it imports. Raises InvalidInputError."""
    from gavel_rules.authoring.bundle import BundleError, bundle

    folder = Path() if name == STANDARD_INPUT else Path(name).parent
    try:
        return bundle(text, lambda file: read_document(str(folder / file)))
    except BundleError as error:
        raise InvalidInputError(f"{display_name(name)}: {error}") from error


def compile_document(document: str, name: str) -> CompiledRuleSet:
    """Return the compiled rule set of a file's text. Raises InvalidInputError with the place of each mistake."""
    from gavel_rules.language.rule_set import DocumentError, compile_rule_set

    try:
        return compile_rule_set(document)
    except DocumentError as error:
        raise invalid_rule_set(name, (message.format(name) for message in error.messages)) from error


def read_compiled(name: str) -> CompiledRuleSet:
    """Return the compiled rule set of a file, or of stdin for "-". Raises InvalidInputError."""
    return compile_document(read_rule_set(name), name)


def read_grants(name: str) -> tuple[str, CompiledGrants]:
    """Return the text and the compiled grants of a file, or of stdin for "-". Raises InvalidInputError with the place of each mistake."""
    from gavel_rules.identity.grants import compile_grants
    from gavel_rules.language.document.diagnostics import DocumentError

    document = read_document(name)
    try:
        return document, compile_grants(document)
    except DocumentError as error:
        lines = [f"{display_name(name)} is not a valid grants document; fix these mistakes and try again"]
        raise InvalidInputError("\n".join([*lines, *(message.format(name) for message in error.messages)])) from error


def invalid_rule_set(name: str, mistakes: Iterable[str]) -> InvalidInputError:
    """Return the error of a rule set that has mistakes, each a line."""
    return InvalidInputError("\n".join([f"{display_name(name)} is not a valid rule set; fix these mistakes and try again", *mistakes]))


def read_envelope(name: str) -> Envelope:
    """Return the Envelope of a file in protobuf JSON or YAML. Raises InvalidInputError."""
    from gavel.v1.envelope_pb2 import Envelope

    document = _parse(name, read_document(name))
    if not isinstance(document, dict):
        raise InvalidInputError(
            f"{display_name(name)} must be one Envelope: a mapping with subject, producer and a payload such as proposal"
        )
    return _to_message(document, Envelope(), display_name(name), name, "an Envelope")


def read_tools(name: str) -> tuple[list[ToolContract], list[ToolProvider], list[ToolBinding]]:
    """Return the contracts, providers and bindings of a file in protobuf JSON or YAML. Raises InvalidInputError."""
    from gavel.v1.tool_pb2 import ToolBinding, ToolContract, ToolProvider

    document = _parse(name, read_document(name))
    names = ("contracts", "providers", "bindings")
    if not isinstance(document, dict) or not document.keys() <= set(names) or not all(isinstance(one, list) for one in document.values()):
        raise InvalidInputError(f"{display_name(name)} must be a mapping with the lists contracts, providers and bindings, or some of them")
    contracts, providers, bindings = (
        [
            _to_message(item, message(), f"{display_name(name)}: {key}[{index}]", name, f"a {message.__name__}")
            for index, item in enumerate(document.get(key, []))
        ]
        for key, message in zip(names, (ToolContract, ToolProvider, ToolBinding), strict=True)
    )
    return contracts, providers, bindings


def _to_message(document: Any, message: _Message, place: str, name: str, type_phrase: str) -> _Message:
    """Fill a message with JSON data. `type_phrase` is its type for messages, e.g. "an Envelope". Raises InvalidInputError."""
    from google.protobuf.json_format import ParseDict, ParseError

    if not isinstance(document, dict):
        raise InvalidInputError(f"{place} is not a mapping; give the fields of {type_phrase} as a mapping")
    _check_exact(document, "", name)
    if mistakes := list(_name_mistakes(document, message.DESCRIPTOR, "")):  # type: ignore[arg-type]  # the stubs of protobuf have two classes for its one Descriptor
        raise InvalidInputError("\n  ".join([f"{place} is not {type_phrase} of gavel.v1:", *mistakes]))
    try:
        return ParseDict(document, message)
    except (ParseError, ValueError, TypeError, RecursionError) as error:
        raise InvalidInputError(f"{place} is not {type_phrase} of gavel.v1: {error}") from error


def display_name(name: str) -> str:
    """Return a document's name for messages."""
    return "standard input" if name == STANDARD_INPUT else name


def _parse(name: str, text: str) -> Any:
    """Return JSON or YAML as Python values. Try JSON first, because YAML forbids tabs that JSON allows."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        if name.endswith(".json"):
            raise InvalidInputError(f"{name}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except ValueError as error:
        raise InvalidInputError(f"{display_name(name)}: {error}") from error
    except RecursionError as error:
        raise InvalidInputError(f"{display_name(name)} {_TOO_DEEP}") from error
    return _parse_yaml(name, text)


def _parse_yaml(name: str, text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import SafeConstructor
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    class Constructor(SafeConstructor):
        """Keeps times as text, which protobuf JSON expects."""

    Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
    parser = YAML(typ="safe", pure=True)
    parser.Constructor = Constructor
    try:
        return parser.load(io.StringIO(text))
    except MarkedYAMLError as error:
        place = f":{error.problem_mark.line + 1}:{error.problem_mark.column + 1}" if error.problem_mark else ""
        raise InvalidInputError(f"{display_name(name)}{place}: neither JSON nor YAML: {error.problem or error.context}") from error
    except (YAMLError, ValueError) as error:
        raise InvalidInputError(f"{display_name(name)}: neither JSON nor YAML: {error}") from error
    except RecursionError as error:
        raise InvalidInputError(f"{display_name(name)} {_TOO_DEEP}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} appears twice in one object; keep one of them")
        result[key] = value
    return result


def _check_exact(value: Any, path: str, name: str) -> None:
    """Raise InvalidInputError for an integer that a Struct would round silently."""
    from gavel_rules.values import INTEGER_MAX

    match value:
        case bool():
            return
        case int() if abs(value) > INTEGER_MAX:
            raise InvalidInputError(
                f"{display_name(name)}: {path} is {value}, outside ±2^53, where numbers are not exact; write it as a string"
            )
        case dict():
            for key, item in value.items():
                _check_exact(item, f"{path}.{key}" if path else str(key), name)
        case list():
            for index, item in enumerate(value):
                _check_exact(item, f"{path}[{index}]", name)


def _name_mistakes(document: Any, message: Descriptor, path: str) -> Iterator[str]:
    """Yield each field and enum value that the contract does not have, with a suggestion, and each field under its second name.

    protobuf's parser, which finds every other mistake, stops at the first one and makes no suggestions. Of a field that is given under its
    name in the contract and under that in JSON, it takes the last.
    """
    if not isinstance(document, dict):
        return
    fields = {name: field for field in message.fields for name in (field.name, field.json_name)}
    given: dict[str, str] = {}  # the name under which a field is given first
    for key, value in document.items():
        place = f"{path}.{key}" if path else str(key)
        field = fields.get(key)
        if field is None:
            yield f"{place}: {message.name} has no such field{_suggestion(str(key), [known.name for known in message.fields])}"
            continue
        if given.setdefault(field.name, key) != key:
            yield f"{place}: {given[field.name]} is the same field; keep one of them"
        for item in value if isinstance(value, list) else [value]:
            if field.enum_type is not None:
                yield from _unknown_values(item, field.enum_type, place)
            elif field.message_type is not None and _is_plain(field.message_type, message):
                yield from _name_mistakes(item, field.message_type, place)


def _is_plain(message: Descriptor, holder: Descriptor) -> bool:
    """Return whether JSON shows a message as an object of its fields. It does not for maps and for types like Struct and Timestamp."""
    return message.file.package == holder.file.package and not message.GetOptions().map_entry


def _unknown_values(value: Any, enumeration: EnumDescriptor, place: str) -> Iterator[str]:
    names = enumeration.values_by_name
    if isinstance(value, str) and value not in names and not value.isdecimal():
        known = [name for name in names if not name.endswith("_UNSPECIFIED")]
        yield f"{place}: {value!r} is not a value of {enumeration.name}{_suggestion(value, known)}"


def _suggestion(name: str, known: Collection[str]) -> str:
    """Return the known name nearest to an unknown one, else all of them, as the end of a sentence."""
    near = [one for one in known if one.endswith(f"_{name.upper()}")] or get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; use one of {', '.join(known)}"
