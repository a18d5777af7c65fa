"""The digest of a state, and the parts of its text."""

from __future__ import annotations

import json

from gavel_rules.events.kinds import FACT
from gavel_rules.state.digest import CHUNK_ITEMS, VALUE_PARTS_MAX, digest_of, digest_parts
from gavel_rules.state.records import Candidate, ToolCallRecord
from gavel_rules.state.state import State

from tests.support.histories.story import play_story


def candidate(value: object) -> Candidate:
    """Return a candidate with a value."""
    return Candidate(b"", 1, FACT, 1, "orders-db", value, 0, 0, 0, 0, "", 0.0, 1, "orders-db", "", 0, "", 0)  # type: ignore[arg-type]


def canonical(text: str) -> str:
    """Return a JSON text in canonical form."""
    return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def test_the_parts_are_canonical_json() -> None:
    """The parts of a state with events of all kinds make up canonical JSON, whose hash is the digest."""
    state = play_story().state
    text = "".join(digest_parts(state.store))
    assert canonical(text) == text
    assert {"head", "evidence", "decisions", "timers"} <= json.loads(text).keys()
    assert state.head == json.loads(text)["head"]
    assert digest_of([text]) == state.digest()
    assert canonical(empty := "".join(digest_parts(State("empty").store))) == empty


def test_large_tables_and_values_have_small_parts() -> None:
    """A table of many keys and a value of many parts, in whatever order, are canonical JSON in parts of some hundred bytes."""
    state = State("bus")
    keys = [f"key.{number}" for number in range(3 * CHUNK_ITEMS)]
    value = {f"n{number}": [number, {"b": 1, "a": "é"}] for number in range(VALUE_PARTS_MAX)}
    texts = []
    for ordered in (keys, keys[::-1]):
        state.store.evidence["order/1"] = {key: (candidate(1.5),) for key in ordered}
        state.store.evidence["order/1"]["key.large"] = (candidate(value),)
        state.tool_calls["trace"] = {key: ToolCallRecord(1, "t") for key in ordered if key in keys[:10]}
        parts = list(digest_parts(state.store))
        texts.append("".join(parts))
        assert max(map(len, parts)) < 1_000
    assert (texts[0], canonical(texts[0])) == (texts[1], texts[1])
    assert 3 * CHUNK_ITEMS + 1 == len(json.loads(texts[0])["evidence"]["order/1"])
