"""`gavel grants explain`: says whether grants allow an access, and why not, without a server."""

from __future__ import annotations

from typing import Annotated, Final, get_args

import typer

from gavel_server.cli.errors import EXIT_FAILURE
from gavel_server.cli.options import Debug

# By key of the tests of grants.
_OPTIONS: Final = {"produce": "--producer", "action": "--action", "subject": "--subject"}


def explain_access(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Grants in YAML or JSON; - is standard input.")],
    caller: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Name of the caller.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="The right, e.g. propose.")],
    group: Annotated[list[str] | None, typer.Option("--group", metavar="NAME", help="A group of the caller; may be repeated.")] = None,
    on_bus: Annotated[str, typer.Option("--bus", metavar="NAME", help="The bus.")] = "default",
    producer: Annotated[str, typer.Option("--producer", metavar="TYPE:ID", help="The producer of the event, e.g. agent:refund-1.")] = "",
    action: Annotated[str, typer.Option("--action", metavar="TYPE", help="The action type.")] = "",
    subject: Annotated[str, typer.Option("--subject", metavar="TYPE/ID", help="The subject.")] = "",
    fact: Annotated[list[str] | None, typer.Option("--fact", metavar="KEY", help="A fact key; may be repeated.")] = None,
    debug: Debug = False,
) -> None:
    """Say whether grants allow an access, with the grant that allows it or what the nearest grants lack.

    Exit status: 0 allowed, 1 denied, 2 the call leaves out what its grant restricts.
    """
    from gavel_rules.authoring.grants.diff import describe
    from gavel_rules.authoring.grants.suite import PRODUCER_TYPES, explain_permission
    from gavel_rules.identity.access import Access, explain_refusal
    from gavel_rules.identity.models import ProducerTypeName
    from gavel_rules.identity.principal import Principal
    from gavel_rules.identity.rights import RIGHTS
    from gavel_rules.text import printable, suggestion

    from gavel_server.cli.documents import read_grants
    from gavel_server.cli.errors import InvalidInputError
    from gavel_server.cli.rendering import output

    known = next((one for one in RIGHTS if one == right), None)
    if known is None:
        near = suggestion(right, RIGHTS) or f"the rights are {', '.join(RIGHTS)}"
        raise InvalidInputError(f"there is no right {right!r}; {near}")
    grants = read_grants(file)[1]
    type_name, separator, producer_id = producer.partition(":")
    if producer and not separator:
        raise InvalidInputError(f"--producer {producer!r} is not TYPE:ID, e.g. agent:refund-1")
    types = get_args(ProducerTypeName)
    if producer and type_name not in types:
        raise InvalidInputError(f"--producer {producer!r} has no type of producers; the types are {', '.join(types)}")
    access = Access(
        known,
        on_bus,
        PRODUCER_TYPES[type_name] if producer else 0,
        producer_id,
        (action,) if action else (),
        subject,
        tuple(fact or ()),
    )
    principal = Principal(caller, "token", groups=tuple(group or ()))
    permitting = explain_permission(grants, principal, access)
    if permitting is None:
        output.print_line(printable(f"denied: {explain_refusal(grants, principal, access)}"))
        raise typer.Exit(EXIT_FAILURE)
    grant, omitted = permitting
    if omitted:
        options = " and ".join(_OPTIONS[key] for key in omitted)
        raise InvalidInputError(f"grant {grant.number} restricts {' and '.join(omitted)}, which every such call has; add {options}")
    output.print_line(printable(f"allowed by grant {grant.number}: {describe(grant)}"))
