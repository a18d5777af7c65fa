"""Redactions: what a pointer names is gone, everything else is as it was."""

from __future__ import annotations

from typing import Any

import pytest
from gavel_client.tools.redaction import REDACTED, redact
from hypothesis import given
from hypothesis import strategies as st

VALUE = {"token": "s", "users": [{"key": "a", "name": "x"}, {"key": "b"}], "a/b": {"~": "s"}, "": {"": "s"}}
TEXTS = st.text("ab*/~0", max_size=3)
JSON = st.recursive(st.none() | st.integers(0, 3), lambda items: st.lists(items, max_size=3) | st.dictionaries(TEXTS, items, max_size=3))


@pytest.mark.parametrize(
    ("pointer", "change"),
    [
        ("/result/token", {"token": REDACTED}),
        ("/result/users/0/key", {"users": [{"key": REDACTED, "name": "x"}, {"key": "b"}]}),
        ("/result/users/*/key", {"users": [{"key": REDACTED, "name": "x"}, {"key": REDACTED}]}),
        ("/result/users/*", {"users": [REDACTED, REDACTED]}),
        ("/result/a~1b/~0", {"a/b": {"~": REDACTED}}),
        ("/result//", {"": {"": REDACTED}}),
        ("/result/*/*", {"users": [REDACTED, REDACTED], "a/b": {"~": REDACTED}, "": {"": REDACTED}}),
        ("/result/none/0", {}),
        ("/result/users/7/key", {}),
        ("/arguments/token", {}),
    ],
)
def test_pointers(pointer: str, change: dict[str, Any]) -> None:
    """A pointer names members of objects and items of lists, and * all of them; places that are not there change nothing."""
    assert {**VALUE, **change} == redact(VALUE, "result", [pointer])
    assert "s" == VALUE["token"]


def test_the_whole_result() -> None:
    """The pointer of the root removes everything."""
    assert REDACTED == redact(VALUE, "result", ["/result"])


@given(JSON, st.lists(TEXTS, max_size=4))
def test_what_is_named_is_gone(value: Any, names: list[str]) -> None:
    """After a redaction nothing but REDACTED stands at the place, and a second one changes nothing."""
    pointer = "/result" + "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)
    redacted = redact(value, "result", [pointer])
    assert all(value_there == REDACTED for value_there in _at(redacted, names))
    assert redacted == redact(redacted, "result", [pointer])


def _at(value: Any, names: list[str]) -> list[Any]:
    """Return what stands at a place, or at several with *."""
    values = [value]
    for name in names:
        members: list[Any] = []
        for one in values:
            if isinstance(one, list):
                one = {str(position): item for position, item in enumerate(one)}  # noqa: PLW2901  # the same items
            if isinstance(one, dict):
                members += [item for key, item in one.items() if name in (key, "*")]
        values = members
    return values
