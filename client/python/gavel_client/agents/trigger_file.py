"""Triggers in a YAML or JSON file, so that operators can change them without changing the agent.

    triggers:
      - name: new-orders
        categories: [FACT_EVENT]
        event_names: [OrderCreated]
        subjects: ["order/*"]
        window_ms: 500
        priority: 10

All mistakes are reported at once, each as "file:line:column: code: message (suggestion)".
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from gavel.v1.common_pb2 import EventCategory
from gavel_rules.language.document.diagnostics import Messages
from gavel_rules.language.document.source import Source

from gavel_client.agents.triggers import Trigger, find_problems
from gavel_client.rpc.errors import TriggerFileError

_PREFIX: Final = "EVENT_CATEGORY_"
_CATEGORIES: Final = {name.removeprefix(_PREFIX): number for name, number in EventCategory.items() if number}
_KEYS: Final = ("name", "categories", "event_names", "subjects", "window_ms", "priority")
_LISTS: Final = frozenset({"categories", "event_names", "subjects"})
_NUMBERS: Final = frozenset({"window_ms", "priority"})

_Path = tuple[str | int, ...]


def load_triggers(path: Path | str) -> tuple[Trigger, ...]:
    """Return the triggers of a file. Raises TriggerFileError with all mistakes, and OSError if the file cannot be read."""
    text = Path(path).read_bytes().decode("utf-8", errors="replace")
    messages = Messages()
    source = Source(text, messages)
    triggers = _triggers(source, messages) if not len(messages) else ()
    if len(messages):
        raise TriggerFileError([message.format(str(path)) for message in messages.sorted()])
    return triggers


def _triggers(source: Source, messages: Messages) -> tuple[Trigger, ...]:
    """Return the triggers of a document; add its mistakes to `messages`."""
    document = source.data
    if not isinstance(document, dict) or not isinstance(document.get("triggers"), list) or not document["triggers"]:
        messages.add((1, 1), "no-triggers", "the file has no list of triggers", "write triggers: and a list under it")
        return ()
    for key in document:
        if key != "triggers":
            messages.add(source.locate_key((key,)), "unknown-key", f"{key} is not a key of this file", "the only key is triggers")
    triggers: dict[str, Trigger] = {}
    for index, item in enumerate(document["triggers"]):
        trigger = _trigger(item, ("triggers", index), source, messages)
        if trigger is not None and trigger.name in triggers:
            place = source.locate(("triggers", index, "name"))
            messages.add(place, "duplicate-name", f"another trigger is named {trigger.name}", "use unique names")
        elif trigger is not None:
            triggers[trigger.name] = trigger
    return tuple(triggers.values())


def _trigger(item: Any, path: _Path, source: Source, messages: Messages) -> Trigger | None:
    """Return one trigger; None, with its mistakes in `messages`, if it is invalid."""
    before = len(messages)
    if not isinstance(item, dict) or "name" not in item:
        messages.add(source.locate(path), "no-name", "a trigger must be a mapping with a name", f"its keys are {', '.join(_KEYS)}")
        return None
    for key, value in item.items():
        _check_key(key, value, (*path, key), source, messages)
    if isinstance(item["name"], str):
        numbers = {key: item[key] for key in _NUMBERS if type(item.get(key)) is int}
        for key, problem in find_problems(item["name"], **numbers).items():
            messages.add(source.locate((*path, key)), "out-of-range", problem, "")
    if len(messages) > before:
        return None
    return Trigger(
        item["name"],
        frozenset(_CATEGORIES[name.removeprefix(_PREFIX)] for name in item.get("categories", ())),
        tuple(item.get("event_names", ())),
        tuple(item.get("subjects", ())),
        item.get("window_ms", 0),
        item.get("priority", 0),
    )


def _check_key(key: str, value: Any, path: _Path, source: Source, messages: Messages) -> None:
    """Check one key of a trigger and the type of its value."""
    if key not in _KEYS:
        near = get_close_matches(key, _KEYS, n=1)
        suggestion = f"did you mean {near[0]}?" if near else f"its keys are {', '.join(_KEYS)}"
        messages.add(source.locate_key(path), "unknown-key", f"{key} is not a key of a trigger", suggestion)
    elif key in _LISTS and not (isinstance(value, list) and all(isinstance(item, str) and item for item in value)):
        messages.add(source.locate(path), "wrong-type", f"{key} is not a list of strings", "write it as [a, b]")
    elif key in _NUMBERS and type(value) is not int:
        messages.add(source.locate(path), "wrong-type", f"{key} is not an integer", "")
    elif key == "name" and not isinstance(value, str):
        messages.add(source.locate(path), "wrong-type", "name is not a string", "")
    elif key == "categories":
        for index, name in enumerate(value):
            if name.removeprefix(_PREFIX) not in _CATEGORIES:
                suggestion = f"the categories are {', '.join(_CATEGORIES)}"
                messages.add(source.locate((*path, index)), "unknown-category", f"{name} is not a category", suggestion)
