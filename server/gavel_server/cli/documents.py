"""Documents that commands take: an Envelope in protobuf JSON or the same as YAML, and rule sets as text. `-` is stdin."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gavel_server.cli.errors import InvalidInputError

if TYPE_CHECKING:
    from gavel.v1.envelope_pb2 import Envelope
    from gavel_rules.language.ruleset import CompiledRuleSet
    from google.protobuf.descriptor import Descriptor, EnumDescriptor

STANDARD_INPUT: Final = "-"
# A rule set or an envelope is at most 1 MiB; what is larger is not read to its end.
DOCUMENT_BYTES_MAX: Final = 4 * 1024 * 1024
_TOO_DEEP: Final = "is nested too deep to be read; values may have 16 levels"


def read_document(name: str) -> str:
    """Return the text of a file, or of stdin for "-". Raises InvalidInputError."""
    if not name:
        raise InvalidInputError("an empty path names no file; name one, or - for standard input")
    try:
        if name == STANDARD_INPUT:
            if sys.stdin is None:
                raise InvalidInputError("cannot read standard input: it is closed; name a file")
            content = sys.stdin.buffer.read(DOCUMENT_BYTES_MAX + 1)
        else:
            with Path(name).open("rb") as file:
                content = file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInputError(f"cannot read {name}: {error.strerror}") from error
    if len(content) > DOCUMENT_BYTES_MAX:
        raise InvalidInputError(f"{shown(name)} is larger than {DOCUMENT_BYTES_MAX} bytes; give a smaller document")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{shown(name)} is not UTF-8 at byte {error.start}; save it as UTF-8") from error


def read_rule_set(name: str) -> str:
    """Return the text of a rule set's file, or of stdin for "-". Raises InvalidInputError, for a file that is a suite by its name too."""
    from gavel_rules.authoring.suite import SUITE_SUFFIXES

    if name.endswith(SUITE_SUFFIXES):
        raise InvalidInputError(f"{name} is a test suite; give the rule set that it tests")
    return read_document(name)


def compiled(document: str, name: str) -> CompiledRuleSet:
    """Return the rule set that the text of a file is. Raises InvalidInputError, with each mistake at its place."""
    from gavel_rules.language.ruleset import DocumentError, compile_rule_set

    try:
        return compile_rule_set(document)
    except DocumentError as error:
        raise invalid_rule_set(name, (message.format(name) for message in error.messages)) from error


def invalid_rule_set(name: str, mistakes: Iterable[str]) -> InvalidInputError:
    """Return the error of a rule set with mistakes, a line each."""
    return InvalidInputError("\n".join([f"{shown(name)} is not a valid rule set; mend what follows and try again", *mistakes]))


def read_envelope(name: str) -> Envelope:
    """Return the Envelope that a file holds, in protobuf JSON or the same as YAML. Raises InvalidInputError."""
    from gavel.v1.envelope_pb2 import Envelope
    from google.protobuf.json_format import ParseDict, ParseError

    document = _parsed(name, read_document(name))
    if not isinstance(document, dict):
        raise InvalidInputError(f"{shown(name)} must hold one Envelope: a mapping with subject, producer and a payload such as proposal")
    _refuse_inexact(document, "", name)
    if mistakes := list(_mistaken_names(document, Envelope.DESCRIPTOR, "")):
        raise InvalidInputError("\n  ".join([f"{shown(name)} is no Envelope of gavel.v1:", *mistakes]))
    try:
        return ParseDict(document, Envelope())
    except (ParseError, ValueError, TypeError, RecursionError) as error:
        raise InvalidInputError(f"{shown(name)} is no Envelope of gavel.v1: {error}") from error


def shown(name: str) -> str:
    """Return a document's name for messages."""
    return "standard input" if name == STANDARD_INPUT else name


def _parsed(name: str, text: str) -> Any:
    """Return JSON or YAML as Python values. JSON is tried first: YAML parsers refuse its tabs."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        if name.endswith(".json"):
            raise InvalidInputError(f"{name}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except ValueError as error:
        raise InvalidInputError(f"{shown(name)}: {error}") from error
    except RecursionError as error:
        raise InvalidInputError(f"{shown(name)} {_TOO_DEEP}") from error
    return _yaml(name, text)


def _yaml(name: str, text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import SafeConstructor
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    class Constructor(SafeConstructor):
        """Times stay text, as protobuf JSON has them."""

    Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
    parser = YAML(typ="safe", pure=True)
    parser.Constructor = Constructor
    try:
        return parser.load(io.StringIO(text))
    except MarkedYAMLError as error:
        place = f":{error.problem_mark.line + 1}:{error.problem_mark.column + 1}" if error.problem_mark else ""
        raise InvalidInputError(f"{shown(name)}{place}: neither JSON nor YAML: {error.problem or error.context}") from error
    except (YAMLError, ValueError) as error:
        raise InvalidInputError(f"{shown(name)}: neither JSON nor YAML: {error}") from error
    except RecursionError as error:
        raise InvalidInputError(f"{shown(name)} {_TOO_DEEP}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} appears twice in one object; keep one of them")
        found[key] = value
    return found


def _refuse_inexact(value: Any, path: str, name: str) -> None:
    """Refuse integers that a Struct would round in silence."""
    from gavel_rules.values import INTEGER_MAX

    match value:
        case bool():
            return
        case int() if abs(value) > INTEGER_MAX:
            raise InvalidInputError(
                f"{shown(name)}: {path} is {value}, beyond ±2^53, where numbers are no longer exact; write it as a string"
            )
        case dict():
            for key, item in value.items():
                _refuse_inexact(item, f"{path}.{key}" if path else str(key), name)
        case list():
            for index, item in enumerate(value):
                _refuse_inexact(item, f"{path}[{index}]", name)


def _mistaken_names(document: Any, message: Descriptor, path: str) -> Iterator[str]:
    """Yield each field and enum value that the contract does not know, with the one that may be meant.

    Everything else is left to protobuf's parser, which stops at the first mistake and knows no suggestions.
    """
    if not isinstance(document, dict):
        return
    fields = {name: field for field in message.fields for name in (field.name, field.json_name)}
    for key, value in document.items():
        place = f"{path}.{key}" if path else str(key)
        field = fields.get(key)
        if field is None:
            yield f"{place}: {message.name} has no such field{_meant(str(key), [known.name for known in message.fields])}"
            continue
        for item in value if isinstance(value, list) else [value]:
            if field.enum_type is not None:
                yield from _mistaken_value(item, field.enum_type, place)
            elif field.message_type is not None and _is_plain(field.message_type, message):
                yield from _mistaken_names(item, field.message_type, place)


def _is_plain(message: Descriptor, holder: Descriptor) -> bool:
    """Whether a message's JSON is an object with its fields; maps, and Structs, times and such of another package, have their own."""
    return message.file.package == holder.file.package and not message.GetOptions().map_entry


def _mistaken_value(value: Any, enumeration: EnumDescriptor, place: str) -> Iterator[str]:
    names = enumeration.values_by_name
    if isinstance(value, str) and value not in names and not value.isdecimal():
        yield f"{place}: {value!r} is no {enumeration.name}{_meant(value, [name for name in names if not name.endswith('_UNSPECIFIED')])}"


def _meant(name: str, known: Collection[str]) -> str:
    """Return what may be meant by a name that is not known: the nearest one, else all there are."""
    near = [one for one in known if one.endswith(f"_{name.upper()}")] or get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
