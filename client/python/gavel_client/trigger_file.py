"""Triggers from a YAML or JSON file, so that operators can change what wakes an agent without changing the agent.

    triggers:
      - name: new-orders
        categories: [FACT_EVENT]
        event_names: [OrderCreated]
        subjects: ["order/*"]
        window_ms: 500
        priority: 10

Mistakes are all reported at once, each as "file:line:column: code: message (suggestion)".
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from gavel.v1.common_pb2 import EventCategory
from gavel_rules.language.source import Messages, Source

from gavel_client.errors import TriggerFileError
from gavel_client.triggers import Trigger, mistakes_of

_PREFIX: Final = "EVENT_CATEGORY_"
_CATEGORIES: Final = {name.removeprefix(_PREFIX): number for name, number in EventCategory.items() if number}
_KEYS: Final = ("name", "categories", "event_names", "subjects", "window_ms", "priority")
_LISTS: Final = frozenset({"categories", "event_names", "subjects"})
_NUMBERS: Final = frozenset({"window_ms", "priority"})

_Path = tuple[str | int, ...]


def load_triggers(path: Path | str) -> tuple[Trigger, ...]:
    """Return the triggers of a file. Raises TriggerFileError with every mistake, and OSError if the file cannot be read."""
    text = Path(path).read_bytes().decode("utf-8", errors="replace")
    messages = Messages()
    source = Source(text, messages)
    triggers = _triggers(source, messages) if not len(messages) else ()
    if len(messages):
        raise TriggerFileError([message.format(str(path)) for message in messages.sorted()])
    return triggers


def _triggers(source: Source, messages: Messages) -> tuple[Trigger, ...]:
    document = source.data
    if not isinstance(document, dict) or not isinstance(document.get("triggers"), list) or not document["triggers"]:
        messages.add((1, 1), "no-triggers", "the file has no list of triggers", "write triggers: and a list under it")
        return ()
    for key in document:
        if key != "triggers":
            messages.add(source.key_place((key,)), "unknown-key", f"{key} is not known here", "only triggers is")
    found: dict[str, Trigger] = {}
    for index, item in enumerate(document["triggers"]):
        trigger = _trigger(item, ("triggers", index), source, messages)
        if trigger is not None and trigger.name in found:
            messages.add(
                source.place(("triggers", index, "name")), "duplicate-name", f"{trigger.name} is there already", "names must differ"
            )
        elif trigger is not None:
            found[trigger.name] = trigger
    return tuple(found.values())


def _trigger(item: Any, path: _Path, source: Source, messages: Messages) -> Trigger | None:
    before = len(messages)
    if not isinstance(item, dict) or "name" not in item:
        messages.add(source.place(path), "no-name", "a trigger is a mapping with a name", f"it may have {', '.join(_KEYS)}")
        return None
    for key, value in item.items():
        place = source.place((*path, key))
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            messages.add(
                source.key_place((*path, key)),
                "unknown-key",
                f"{key} is not known",
                f"did you mean {near[0]}?" if near else f"there are {', '.join(_KEYS)}",
            )
        elif key in _LISTS and not (isinstance(value, list) and all(isinstance(one, str) and one for one in value)):
            messages.add(place, "wrong-type", f"{key} is not a list of texts", "write it as [a, b]")
        elif key in _NUMBERS and type(value) is not int:
            messages.add(place, "wrong-type", f"{key} is not a whole number", "")
        elif key == "name" and not isinstance(value, str):
            messages.add(place, "wrong-type", "name is not a text", "")
        elif key == "categories":
            for index, one in enumerate(value):
                if one.removeprefix(_PREFIX) not in _CATEGORIES:
                    messages.add(
                        source.place((*path, key, index)),
                        "unknown-category",
                        f"{one} is no category",
                        f"there are {', '.join(_CATEGORIES)}",
                    )
    if isinstance(item["name"], str):
        numbers = {key: item[key] for key in _NUMBERS if type(item.get(key)) is int}
        for key, mistake in mistakes_of(item["name"], **numbers).items():
            messages.add(source.place((*path, key)), "out-of-range", mistake, "")
    if len(messages) > before:
        return None
    return Trigger(
        item["name"],
        frozenset(_CATEGORIES[one.removeprefix(_PREFIX)] for one in item.get("categories", ())),
        tuple(item.get("event_names", ())),
        tuple(item.get("subjects", ())),
        item.get("window_ms", 0),
        item.get("priority", 0),
    )
