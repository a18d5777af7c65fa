"""Groups of options: a command takes each group as one named tuple, and Typer sees the options in it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def with_option_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command in which each named tuple among the parameters is replaced by its fields: options, all with defaults."""
    signature = inspect.signature(command, eval_str=True)
    groups = {name: parameter.annotation for name, parameter in signature.parameters.items() if hasattr(parameter.annotation, "_fields")}

    @functools.wraps(command)
    def with_groups(**arguments: Any) -> Any:
        for name, group in groups.items():
            arguments[name] = group(*(arguments.pop(field) for field in group._fields))
        return command(**arguments)

    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            parameters += _options_of(groups[name])
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    # What Typer reads.
    with_groups.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_groups


def _options_of(group: Any) -> list[inspect.Parameter]:
    annotations = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=group._field_defaults[field], annotation=annotations[field])
        for field in group._fields
    ]
