"""Random parts of documents of the language's second version: constants, clocks, shared parts and imports.

A document is first drawn plainly, with its action in full and its names in place. `rearrange` then moves parts of it into shared parts and
into a library that it imports. The meaning stays the same, so the cases and the expected verdicts of the plain document hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from gavel_rules.authoring.bundle import bundle
from gavel_rules.language.document.composition import IMPORTED_SECTIONS, library_digest
from hypothesis import strategies as st

from tests.fuzz.meanings import ERROR, shift
from tests.fuzz.vocabulary import Draw

# The zone changes its offset near the times that cases have, and ends before the last of them.
ZONE: Final = "ny"
OFFSETS: Final = {
    "1970-01-01T00:00:00Z": -300,
    "2000-01-01T00:00:00Z": 330,
    "2024-03-31T01:00:00Z": 0,
    "2026-12-31T23:30:00Z": -840,
}
UNTIL: Final = "2099-12-31T00:00:00Z"
CALENDAR: Final = "holidays"
DATES: Final = ("1969-12-31", "2000-01-01", "2023-11-14", "2024-02-29", "2024-03-31", "2026-12-31", "2027-01-01")
LIBRARY: Final = "library.yaml"


def clocks() -> dict[str, Any]:
    """Return the zone and the calendar, as keys of a document."""
    offsets = [f"{start} {'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}" for start, minutes in OFFSETS.items()]
    return {"zones": {ZONE: {"name": "Fuzz/Zone", "offsets": offsets, "until": UNTIL}}, "calendars": {CALENDAR: list(DATES)}}


def zone_time(time: datetime) -> Any:
    """Return the time on the clock of the zone; ERROR where the zone has no offset."""
    passed = [minutes for start, minutes in OFFSETS.items() if datetime.fromisoformat(start) <= time]
    return shift(time, passed[-1]) if passed and time < datetime.fromisoformat(UNTIL) else ERROR


def date_text(time: datetime) -> str:
    """Return the date of a time."""
    return time.date().isoformat()


def holds(value: object) -> bool:
    """Report whether a document can hold a value as a constant."""
    if isinstance(value, list):
        return all(map(holds, value))
    return isinstance(value, bool | str) or (isinstance(value, int | float) and abs(value) < 2**53)


def constant(value: Any) -> Any:
    """Return what a constant stands for: numbers are doubles, and canonical JSON has no negative zero."""
    if isinstance(value, list):
        return [constant(item) for item in value]
    return value if isinstance(value, bool | str) else float(value) + 0.0


@st.composite
def rearrangements(draw: Draw, document: Mapping[str, Any]) -> str:
    """Draw the text of a document that means the same as a plain one of a single action."""
    data = {**document, "actions": dict(document["actions"])}
    ((name, action),) = data["actions"].items()
    if draw(st.booleans()):
        data["shared"], data["actions"][name] = _share(draw, action)
    if draw(st.booleans()):
        data["rules"] = [_generalize(draw, rule) for rule in data["rules"]]
    if not draw(st.booleans()):
        return json.dumps(data, ensure_ascii=False)
    library = json.dumps(_extract_library(draw, data), ensure_ascii=False, indent=draw(st.sampled_from([None, 1])))
    data["imports"] = [{"file": LIBRARY, "digest": library_digest(json.loads(library))}]
    return bundle(_layout(draw, data), {LIBRARY: library}.__getitem__)


def _share(draw: Draw, action: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return shared parts, and the action that uses them. A part may declare what the action declares otherwise."""
    names = ["base", "more"]
    shared: dict[str, dict[str, Any]] = {name: {} for name in names}
    own: dict[str, Any] = {"use": names}
    places = [shared["base"], shared["more"], own]
    for key in sorted(action.keys() - {"params", "facts"}):
        for part in _pick(draw, places):
            part[key] = action[key]
    schema = action["params"]
    for property_name, schema_of_property in schema["properties"].items():
        for part in _pick(draw, places):
            part.setdefault("params", {}).setdefault("properties", {})[property_name] = schema_of_property
    for property_name in schema["required"]:
        for part in _pick(draw, places):
            part.setdefault("params", {}).setdefault("required", []).append(property_name)
    for fact, declaration in action["facts"].items():
        for part in _pick(draw, places):
            part.setdefault("facts", {})[fact] = declaration
            if part is own and draw(st.booleans()):
                shared["more"].setdefault("facts", {})[fact] = {"key": "thing.other", "type": "boolean", "max_age_ms": 1}
    _pick(draw, places)[0].setdefault("params", {})["type"] = "object"
    return shared, own


def _pick(draw: Draw, places: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts that declare something: one, or several that say the same."""
    return [places[index] for index in draw(st.lists(st.integers(0, len(places) - 1), min_size=1, max_size=2, unique=True))]


def _generalize(draw: Draw, rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule that names its action by a list or a pattern."""
    pattern = draw(st.sampled_from(["*", f"{rule['action'].partition('.')[0]}.*", [rule["action"]], [rule["action"], "*"]]))
    rest = {key: value for key, value in rule.items() if key != "action"}
    return {**rest, "actions": pattern}


def _extract_library(draw: Draw, data: dict[str, Any]) -> dict[str, Any]:
    """Move some names of a document into a library; return it."""
    library: dict[str, Any] = {"gavel": "v2", "library": "company"}
    for section in IMPORTED_SECTIONS:
        own = data.get(section, {})
        moved = {name: value for name, value in own.items() if draw(st.booleans())}
        if moved:
            library[section] = moved
            data[section] = {name: value for name, value in own.items() if name not in moved}
    return library


def _layout(draw: Draw, data: Mapping[str, Any]) -> str:
    """Return a document as JSON, or as YAML with a key on each line."""
    if draw(st.booleans()):
        return json.dumps(data, ensure_ascii=False)
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in data.items())
    return "".join(lines).replace("\x7f", "\\x7f")  # YAML refuses the character itself
