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
from typing import Any, Final

from gavel.v1.common_pb2 import EventCategory

from gavel_client.agents.triggers import Trigger, find_problems
from gavel_client.rpc.errors import TriggerFileError
from gavel_client.yaml_documents import Mistake, place_of, place_of_key, read_yaml

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
    mistakes: list[Mistake] = []
    document = read_yaml(text, mistakes)
    triggers = _triggers(document, mistakes) if not mistakes else ()
    if mistakes:
        raise TriggerFileError([mistake.format(str(path)) for mistake in sorted(set(mistakes))])
    return triggers


def _triggers(document: Any, mistakes: list[Mistake]) -> tuple[Trigger, ...]:
    """Return the triggers of a document; add its mistakes to `mistakes`."""
    if not isinstance(document, dict) or not isinstance(document.get("triggers"), list) or not document["triggers"]:
        mistakes.append(Mistake(1, 1, "no-triggers", "the file has no list of triggers", "write triggers: and a list under it"))
        return ()
    for key in document:
        if key != "triggers":
            place = place_of_key(document, key)
            mistakes.append(Mistake(*place, "unknown-key", f"{key} is not a key of this file", "the only key is triggers"))
    triggers: dict[str, Trigger] = {}
    for index, item in enumerate(document["triggers"]):
        trigger = _trigger(item, place_of(document["triggers"], index), mistakes)
        if trigger is not None and trigger.name in triggers:
            place = place_of(item, "name")
            mistakes.append(Mistake(*place, "duplicate-name", f"another trigger is named {trigger.name}", "use unique names"))
        elif trigger is not None:
            triggers[trigger.name] = trigger
    return tuple(triggers.values())


def _trigger(item: Any, place: tuple[int, int], mistakes: list[Mistake]) -> Trigger | None:
    """Return one trigger; None, with its mistakes in `mistakes`, if it is invalid."""
    before = len(mistakes)
    if not isinstance(item, dict) or "name" not in item:
        mistakes.append(Mistake(*place, "no-name", "a trigger must be a mapping with a name", f"its keys are {', '.join(_KEYS)}"))
        return None
    for key in item:
        _check_key(key, item, mistakes)
    if isinstance(item["name"], str):
        numbers = {key: int(item[key]) for key in _NUMBERS if _is_integer(item.get(key))}
        for key, problem in find_problems(str(item["name"]), **numbers).items():
            mistakes.append(Mistake(*place_of(item, key), "out-of-range", problem))
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


def _check_key(key: Any, item: Any, mistakes: list[Mistake]) -> None:
    """Check one key of a trigger and the type of its value."""
    value = item[key]
    if key not in _KEYS:
        near = get_close_matches(str(key), _KEYS, n=1)
        suggestion = f"did you mean {near[0]}?" if near else f"its keys are {', '.join(_KEYS)}"
        mistakes.append(Mistake(*place_of_key(item, key), "unknown-key", f"{key} is not a key of a trigger", suggestion))
    elif key in _LISTS and not (isinstance(value, list) and all(isinstance(one, str) and one for one in value)):
        mistakes.append(Mistake(*place_of(item, key), "wrong-type", f"{key} is not a list of strings", "write it as [a, b]"))
    elif key in _NUMBERS and not _is_integer(value):
        mistakes.append(Mistake(*place_of(item, key), "wrong-type", f"{key} is not an integer"))
    elif key == "name" and not isinstance(value, str):
        mistakes.append(Mistake(*place_of(item, key), "wrong-type", "name is not a string"))
    elif key == "categories":
        for index, name in enumerate(value):
            if name.removeprefix(_PREFIX) not in _CATEGORIES:
                suggestion = f"the categories are {', '.join(_CATEGORIES)}"
                mistakes.append(Mistake(*place_of(value, index), "unknown-category", f"{name} is not a category", suggestion))


def _is_integer(value: object) -> bool:
    """Return whether a value is an integer; ruamel.yaml has subclasses of int, and a boolean is one too."""
    return isinstance(value, int) and not isinstance(value, bool)
