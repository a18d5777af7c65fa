"""The table of the actions that tools propose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from gavel_client.gate import Action, Call, ToolActions


def test_a_call_has_the_action_of_its_tool() -> None:
    """The function that is registered for a tool makes the action from the arguments."""
    actions = ToolActions(reads=["find"])

    @actions.tool("send")
    def send(arguments: Mapping[str, Any]) -> Action:
        return Action("parcel.send", f"parcel/{arguments['parcel']}", {"weight": arguments["weight"]})

    action = actions.action(Call("send", {"parcel": "7", "weight": 2}, "thread-1"))
    assert Action("parcel.send", "parcel/7", {"weight": 2}) == action
    assert ("send" in actions, "find" in actions, actions.reads("find"), actions.reads("send")) == (True, False, True, False)


@pytest.mark.parametrize("name", ["send", "find"])
def test_a_tool_is_registered_once(name: str) -> None:
    """A second function for a tool, or a function for a read, is an error that names the tool."""
    actions = ToolActions(reads=["find"])
    actions.tool("send")(lambda arguments: Action("parcel.send", "parcel/1", arguments))
    with pytest.raises(ValueError, match=f"the tool {name} is registered already"):
        actions.tool(name)(lambda arguments: Action("parcel.send", "parcel/1", arguments))


def test_a_call_belongs_to_a_task() -> None:
    """A call without a task is an error: its proposal would have the same id as that of other work."""
    with pytest.raises(ValueError, match="the call of send has an empty task"):
        Call("send", {}, "")
