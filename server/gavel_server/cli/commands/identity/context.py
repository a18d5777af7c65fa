"""`gavel context add|use|list|remove`: named servers with the files of the credentials for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gavel_server.cli.contexts import CONTEXT_VARIABLE, FIELDS, Contexts, check_name, load_contexts, save_contexts, selected_name
from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import Debug, JsonReport, check_address, check_bus
from gavel_server.cli.server_options import check_token_is_protected

context = typer.Typer(help="Name servers and the credentials for them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.")]


def _check_bus(value: str | None) -> str | None:
    return None if value is None else check_bus(value)


# Without environment variables: those of a shell must not get into a context unnoticed.
@context.command("add")
def add(
    name: Name,
    server: Annotated[
        str, typer.Option("--server", callback=check_address, metavar="HOST:PORT", help="The server's address, or unix:PATH.")
    ],
    bus: Annotated[str | None, typer.Option(callback=_check_bus, metavar="NAME", help="The bus. Default: default.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authorities of the server's certificate in PEM: use TLS.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="A client certificate in PEM to present.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The private key of --tls-cert in PEM.")] = None,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The file of a token to present.")] = None,
    debug: Debug = False,
) -> None:
    """Add a context, or replace the one of this name.

    The context holds the paths of the files, not their content. gavel context use selects it for all commands, --context for one.
    """
    from gavel_server.cli.rendering import output

    if (tls_cert is None) != (tls_key is None):
        raise InvalidInputError("--tls-cert and --tls-key belong together; give both")
    values = {"server": server, "bus": bus, "tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key, "token_file": token_file}
    for option, value in values.items():
        if isinstance(value, Path) and not value.is_file():
            raise InvalidInputError(f"there is no file {value} (--{option.replace('_', '-')})")
    if token_file is not None:
        check_token_is_protected(server, has_tls=tls_ca is not None or tls_cert is not None)
    # Absolute, so that the context means the same in every directory.
    added = {field: str(value.absolute() if isinstance(value, Path) else value) for field, value in values.items() if value is not None}
    contexts = load_contexts()
    contexts.by_name[check_name(name)] = added
    save_contexts(contexts)
    in_use = "" if contexts.current == name else f"; gavel context use {name} makes it the default"
    output.print_line(f"context {name} is in {contexts.path}{in_use}")


@context.command("use")
def use(name: Name, debug: Debug = False) -> None:
    """Use a context in all commands that do not name another one."""
    from gavel_server.cli.rendering import output

    contexts = load_contexts()
    contexts.get(name)
    save_contexts(contexts._replace(current=name))
    output.print_line(f"context {name} is in use")
    selected = selected_name(None)
    if selected != name:
        output.print_note(f"gavel: {CONTEXT_VARIABLE} names context {selected}, which this shell's commands use instead")


@context.command("list")
def list_contexts(as_json: JsonReport = False, debug: Debug = False) -> None:
    """List the contexts; * marks the one in use."""
    import json

    from gavel_server.cli.rendering import output

    contexts = load_contexts()
    current = selected_name(None)
    if as_json:
        output.print_line(json.dumps({"current": current, "contexts": contexts.by_name}, indent=2, sort_keys=True))
        return
    output.print_table(
        ("", "context", *(field.replace("_", " ") for field in FIELDS)),
        (_row(contexts, name, current) for name in sorted(contexts.by_name)),
        empty="There is no context; add one with gavel context add NAME --server HOST:PORT",
    )


@context.command("remove")
def remove(name: Name, debug: Debug = False) -> None:
    """Remove a context. The files that it names stay."""
    from gavel_server.cli.rendering import output

    contexts = load_contexts()
    contexts.get(name)
    del contexts.by_name[name]
    was_current = contexts.current == name
    save_contexts(contexts._replace(current="" if was_current else contexts.current))
    output.print_line(f"context {name} is removed" + ("; no context is in use" if was_current else ""))


def _row(contexts: Contexts, name: str, current: str) -> tuple[str, ...]:
    values = contexts.by_name[name]
    return "*" if name == current else "", name, *(values.get(field, "") for field in FIELDS)
