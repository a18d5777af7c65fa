"""Groups of options: what Typer sees, and what the command gets."""

from __future__ import annotations

import inspect
from typing import Annotated, NamedTuple

import pytest
import typer
from gavel_server.cli.app import app
from gavel_server.cli.option_groups import with_option_groups
from gavel_server.config import FILE_ONLY, Settings
from typer.testing import CliRunner


class Colours(NamedTuple):
    """A group."""

    front: Annotated[str, typer.Option("--front", help="The front.")] = "red"
    back: Annotated[int, typer.Option("--back", help="The back.")] = 3


@pytest.mark.parametrize(
    ("line", "expected"),
    [([], "1 red 3 x"), (["--back", "4", "--front", "blue", "--name", "y"], "1 blue 4 y"), (["--count", "2"], "2 red 3 x")],
)
def test_group_holds_the_options(line: list[str], expected: str) -> None:
    """A command gets its groups with the values or defaults of their options, beside its other options."""
    program = typer.Typer()

    @program.command()
    @with_option_groups
    def paint(*, count: int = 1, colours: Colours, name: str = "x") -> None:
        print(count, colours.front, colours.back, name)

    result = CliRunner().invoke(program, line)
    assert (0, expected) == (result.exit_code, result.stdout.strip())


def test_options_are_in_the_order_of_the_groups() -> None:
    """The options of a group stand where the group stands."""

    @with_option_groups
    def paint(*, count: int = 1, colours: Colours, name: str = "x") -> None:
        raise NotImplementedError

    assert ["count", "front", "back", "name"] == list(inspect.signature(paint).parameters)


def test_every_setting_is_an_option_of_serve() -> None:
    """`gavel serve` has an option for each setting that is not of the file alone."""
    (serve,) = (command.callback for command in app.registered_commands if command.name == "serve")
    assert serve is not None
    assert Settings.model_fields.keys() - FILE_ONLY == inspect.signature(serve).parameters.keys() - {"config", "no_front", "debug"}
