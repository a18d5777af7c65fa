"""Triggers in a YAML or JSON file, so that operators can change them without changing the agent.

    triggers:
      - name: new-orders
        categories: [FACT_EVENT]
        event_names: [OrderCreated]
        subjects: ["order/*"]
        window_ms: 500
        priority: 10

All mistakes are reported at once, each as "file:line:column: code: message (suggestion)". The reader is ruamel.yaml, which
`gavel-client[yaml]` brings.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from gavel.v1.common_pb2 import EventCategory

from gavel_client.agents.triggers import Trigger, find_problems
from gavel_client.rpc.errors import TriggerFileError

_PREFIX: Final = "EVENT_CATEGORY_"
_CATEGORIES: Final = {name.removeprefix(_PREFIX): number for name, number in EventCategory.items() if number}
_KEYS: Final = ("name", "categories", "event_names", "subjects", "window_ms", "priority")
_LISTS: Final = frozenset({"categories", "event_names", "subjects"})
_NUMBERS: Final = frozenset({"window_ms", "priority"})


def load_triggers(path: Path | str) -> tuple[Trigger, ...]:
    """Return the triggers of a file.

    Raises TriggerFileError with all mistakes, OSError if the file cannot be read, and ImportError without the extra `yaml`.
    """
    text = Path(path).read_bytes().decode("utf-8", errors="replace")
    mistakes: list[_Mistake] = []
    document = _read(text, mistakes)
    triggers = _triggers(document, mistakes) if not mistakes else ()
    if mistakes:
        raise TriggerFileError([mistake.format(str(path)) for mistake in sorted(set(mistakes))])
    return triggers


class _Mistake(NamedTuple):
    """One mistake. Lines and columns count from 1."""

    line: int
    column: int
    code: str
    message: str
    suggestion: str = ""

    def format(self, filename: str) -> str:
        """Return "file:line:column: code: message (suggestion)" as one line; characters that cannot be printed are escaped."""
        text = f"{filename}:{self.line}:{self.column}: {self.code}: {self.message}"
        text = f"{text} ({self.suggestion})" if self.suggestion else text
        return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _read(text: str, mistakes: list[_Mistake]) -> Any:
    """Return a document as ruamel.yaml's mappings and lists, which hold the places of their items; None with a mistake if it is broken."""
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
    except ImportError as error:
        raise ImportError('a file of triggers needs ruamel.yaml; install it: pip install "gavel-client[yaml]"') from error
    try:
        return YAML().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        mistakes.append(_Mistake(line, column, "syntax", f"the file is not YAML: {error.problem or error.context}"))
    except (YAMLError, ValueError, RecursionError) as error:
        mistakes.append(_Mistake(1, 1, "syntax", f"the file is not YAML: {type(error).__name__}"))
    return None


def _place_of(container: Any, key: Any) -> tuple[int, int]:
    """Return the (line, column) of an item of a mapping or list; of its key if the item is empty."""
    if isinstance(container, list):
        line, column = container.lc.item(key)  # type: ignore[attr-defined]
    elif container[key] is None:
        return _place_of_key(container, key)
    else:
        line, column = container.lc.value(key)
    return line + 1, column + 1


def _place_of_key(container: Any, key: Any) -> tuple[int, int]:
    """Return the (line, column) of a key of a mapping."""
    line, column = container.lc.key(key)
    return line + 1, column + 1


def _triggers(document: Any, mistakes: list[_Mistake]) -> tuple[Trigger, ...]:
    """Return the triggers of a document; add its mistakes to `mistakes`."""
    if not isinstance(document, dict) or not isinstance(document.get("triggers"), list) or not document["triggers"]:
        mistakes.append(_Mistake(1, 1, "no-triggers", "the file has no list of triggers", "write triggers: and a list under it"))
        return ()
    for key in document:
        if key != "triggers":
            place = _place_of_key(document, key)
            mistakes.append(_Mistake(*place, "unknown-key", f"{key} is not a key of this file", "the only key is triggers"))
    triggers: dict[str, Trigger] = {}
    for index, item in enumerate(document["triggers"]):
        trigger = _trigger(item, _place_of(document["triggers"], index), mistakes)
        if trigger is not None and trigger.name in triggers:
            place = _place_of(item, "name")
            mistakes.append(_Mistake(*place, "duplicate-name", f"another trigger is named {trigger.name}", "use unique names"))
        elif trigger is not None:
            triggers[trigger.name] = trigger
    return tuple(triggers.values())


def _trigger(item: Any, place: tuple[int, int], mistakes: list[_Mistake]) -> Trigger | None:
    """Return one trigger; None, with its mistakes in `mistakes`, if it is invalid."""
    before = len(mistakes)
    if not isinstance(item, dict) or "name" not in item:
        mistakes.append(_Mistake(*place, "no-name", "a trigger must be a mapping with a name", f"its keys are {', '.join(_KEYS)}"))
        return None
    for key in item:
        _check_key(key, item, mistakes)
    if isinstance(item["name"], str):
        numbers = {key: int(item[key]) for key in _NUMBERS if _is_integer(item.get(key))}
        for key, problem in find_problems(str(item["name"]), **numbers).items():
            mistakes.append(_Mistake(*_place_of(item, key), "out-of-range", problem))
    if len(mistakes) > before:
        return None
    return Trigger(
        str(item["name"]),
        frozenset(_CATEGORIES[name.removeprefix(_PREFIX)] for name in item.get("categories", ())),
        tuple(map(str, item.get("event_names", ()))),
        tuple(map(str, item.get("subjects", ()))),
        int(item.get("window_ms", 0)),
        int(item.get("priority", 0)),
    )


def _check_key(key: Any, item: Any, mistakes: list[_Mistake]) -> None:
    """Check one key of a trigger and the type of its value."""
    value = item[key]
    if key not in _KEYS:
        near = get_close_matches(str(key), _KEYS, n=1)
        suggestion = f"did you mean {near[0]}?" if near else f"its keys are {', '.join(_KEYS)}"
        mistakes.append(_Mistake(*_place_of_key(item, key), "unknown-key", f"{key} is not a key of a trigger", suggestion))
    elif key in _LISTS and not (isinstance(value, list) and all(isinstance(one, str) and one for one in value)):
        mistakes.append(_Mistake(*_place_of(item, key), "wrong-type", f"{key} is not a list of strings", "write it as [a, b]"))
    elif key in _NUMBERS and not _is_integer(value):
        mistakes.append(_Mistake(*_place_of(item, key), "wrong-type", f"{key} is not an integer"))
    elif key == "name" and not isinstance(value, str):
        mistakes.append(_Mistake(*_place_of(item, key), "wrong-type", "name is not a string"))
    elif key == "categories":
        for index, name in enumerate(value):
            if name.removeprefix(_PREFIX) not in _CATEGORIES:
                suggestion = f"the categories are {', '.join(_CATEGORIES)}"
                mistakes.append(_Mistake(*_place_of(value, index), "unknown-category", f"{name} is not a category", suggestion))


def _is_integer(value: object) -> bool:
    """Return whether a value is an integer; ruamel.yaml has subclasses of int, and a boolean is one too."""
    return isinstance(value, int) and not isinstance(value, bool)
