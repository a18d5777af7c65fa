"""The class of every `gavel` command: its help shows arguments as manuals do."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """A command whose help shows an argument by its name: FILE, where Typer writes {FILE} and FILE <str>."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line after the command's name."""
        arguments = (parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "argument")
        return ["[OPTIONS]", *(str(one.metavar) if one.required else f"[{one.metavar}]" for one in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the tables of arguments and of options."""
        tables: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name = str(parameter.metavar) if parameter.param_type_name == "argument" else record[0]
                tables[parameter.param_type_name].append((name, record[1]))
        for title, rows in (("Arguments", tables["argument"]), ("Options", tables["option"])):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
