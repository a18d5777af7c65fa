"""The tree of commands: `gavel` and everything that can follow it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Annotated, Final

import typer
from typer.models import CommandInfo, TyperInfo

from gavel_server.cli.command import Command
from gavel_server.cli.commands.buses.create import create_bus
from gavel_server.cli.commands.buses.list import list_buses
from gavel_server.cli.commands.buses.upgrade import upgrade
from gavel_server.cli.commands.buses.whoami import whoami
from gavel_server.cli.commands.completion import completion
from gavel_server.cli.commands.evidence.get import get_evidence
from gavel_server.cli.commands.evidence.prune import prune_evidence
from gavel_server.cli.commands.evidence.verify import verify_evidence
from gavel_server.cli.commands.grants.deploy import deploy_grants
from gavel_server.cli.commands.grants.diff import diff_grants_files
from gavel_server.cli.commands.grants.explain import explain_access
from gavel_server.cli.commands.grants.get import get_grants
from gavel_server.cli.commands.grants.lint import lint_grants_files
from gavel_server.cli.commands.grants.list import list_grants
from gavel_server.cli.commands.grants.test import run_grant_suites
from gavel_server.cli.commands.identity.certs import dev
from gavel_server.cli.commands.identity.context import context
from gavel_server.cli.commands.identity.token import create as create_token
from gavel_server.cli.commands.mcp.accept import accept
from gavel_server.cli.commands.mcp.proxy import proxy
from gavel_server.cli.commands.mcp.scaffold import scaffold
from gavel_server.cli.commands.operations.archive import archive, backup, restore
from gavel_server.cli.commands.operations.export import export
from gavel_server.cli.commands.operations.postgresql_schema import postgresql_schema
from gavel_server.cli.commands.operations.redis_acl import redis_acl
from gavel_server.cli.commands.operations.work import work
from gavel_server.cli.commands.people.accept_clock import accept_clock
from gavel_server.cli.commands.people.accept_loss import accept_loss
from gavel_server.cli.commands.people.review import review, reviews
from gavel_server.cli.commands.people.revoke import revoke
from gavel_server.cli.commands.processes.demo import demo
from gavel_server.cli.commands.processes.executor import executor
from gavel_server.cli.commands.processes.fdr import fdr
from gavel_server.cli.commands.processes.serve import serve
from gavel_server.cli.commands.proofs.notary import notary
from gavel_server.cli.commands.proofs.proof import proof
from gavel_server.cli.commands.proofs.verify import verify
from gavel_server.cli.commands.reads.audit import audit
from gavel_server.cli.commands.reads.log import log
from gavel_server.cli.commands.reads.pending import pending
from gavel_server.cli.commands.reads.projection import projection
from gavel_server.cli.commands.reads.replay import replay
from gavel_server.cli.commands.reads.status import status
from gavel_server.cli.commands.reads.trace import trace
from gavel_server.cli.commands.rules.authoring.bench import bench
from gavel_server.cli.commands.rules.authoring.bundle import bundle
from gavel_server.cli.commands.rules.authoring.diff import diff
from gavel_server.cli.commands.rules.authoring.explain import explain
from gavel_server.cli.commands.rules.authoring.fmt import fmt
from gavel_server.cli.commands.rules.authoring.graph import graph
from gavel_server.cli.commands.rules.authoring.lint import lint
from gavel_server.cli.commands.rules.authoring.schema import schema
from gavel_server.cli.commands.rules.authoring.test import run_suites
from gavel_server.cli.commands.rules.authoring.upgrade import upgrade as upgrade_rules
from gavel_server.cli.commands.rules.authoring.zones import zones
from gavel_server.cli.commands.rules.deployment.activate import activate
from gavel_server.cli.commands.rules.deployment.deactivate import deactivate
from gavel_server.cli.commands.rules.deployment.deploy import deploy
from gavel_server.cli.commands.rules.deployment.get import get_rule_set
from gavel_server.cli.commands.rules.deployment.list import list_rule_sets
from gavel_server.cli.commands.rules.deployment.rollback import rollback
from gavel_server.cli.commands.rules.deployment.shadow import shadow
from gavel_server.cli.commands.rules.deployment.simulate import simulate
from gavel_server.cli.commands.submissions.preflight import preflight
from gavel_server.cli.commands.submissions.propose import propose
from gavel_server.cli.commands.submissions.publish import publish
from gavel_server.cli.commands.submissions.signal import signal
from gavel_server.cli.commands.tools.bind import bind_tool, unbind_tool
from gavel_server.cli.commands.tools.call import call_tool
from gavel_server.cli.commands.tools.list import list_providers, list_tools
from gavel_server.cli.commands.tools.register import register_tools
from gavel_server.cli.commands.tools.resolve import resolve_tool
from gavel_server.cli.server_options import with_server_options

PROGRAM: Final = "gavel"

app = typer.Typer(
    name=PROGRAM,
    no_args_is_help=True,
    # `gavel completion` prints the script; Typer's own options would write to the user's files.
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: Rich's frames cut long option names.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
certs = typer.Typer(help="Make certificates to try out TLS.", no_args_is_help=True)
token = typer.Typer(help="Make tokens for callers of a server.", no_args_is_help=True)
rules = typer.Typer(help="Write, check, test, deploy, activate and read rule sets.", no_args_is_help=True)
grants = typer.Typer(help="Check, test, deploy and read who may do what.", no_args_is_help=True)
buses = typer.Typer(help="Open buses, and list them.", no_args_is_help=True)
tools = typer.Typer(help="Register tools, bind them to providers, resolve their names, and call them.", no_args_is_help=True)
evidence = typer.Typer(help="Read, verify and prune what tools returned.", no_args_is_help=True)
mcp = typer.Typer(help="Govern the calls of MCP clients to MCP servers.", no_args_is_help=True)


def _print_version(value: bool) -> None:
    if value:
        from gavel_server.cli.rendering import output
        from gavel_server.process.build import VERSION, build

        output.print_line(f"{PROGRAM} {VERSION} ({build()})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and whether the build is compiled.")
    ] = False,
) -> None:
    """Deterministic arbitration for systems of LLM agents."""


# In the order of `gavel --help`, which lists groups last.
app.command("serve")(serve)
app.command("demo")(demo)
app.command("propose")(propose)
app.command("preflight")(preflight)
app.command("publish")(publish)
app.command("signal")(signal)
app.command("reviews")(reviews)
app.command("revoke")(revoke)
app.command("accept-clock")(accept_clock)
app.command("accept-loss")(accept_loss)
app.command("upgrade")(upgrade)
app.command("status")(status)
app.command("whoami")(whoami)
app.command("projection")(projection)
app.command("pending")(pending)
app.command("trace")(trace)
app.command("replay")(replay)
app.command("proof")(proof)
app.command("verify")(verify)
app.command("export")(export)
app.command("archive")(archive)
app.command("backup")(backup)
app.command("restore")(restore)
app.command("executor")(executor)
app.command("fdr")(fdr)
app.command("redis-acl")(redis_acl)
app.command("postgresql-schema")(postgresql_schema)
app.command("completion")(completion)
app.add_typer(review, name="review")
app.add_typer(notary, name="notary")
app.add_typer(work, name="work")
app.add_typer(log, name="log")
app.add_typer(audit, name="audit")
app.add_typer(rules, name="rules")
app.add_typer(grants, name="grants")
app.add_typer(buses, name="bus")
app.add_typer(tools, name="tools")
app.add_typer(evidence, name="evidence")
app.add_typer(mcp, name="mcp")
app.add_typer(context, name="context")
app.add_typer(certs, name="certs")
app.add_typer(token, name="token")

# In the order of `gavel rules --help`: offline on files, then on a server.
rules.command("lint")(lint)
rules.command("fmt")(fmt)
rules.command("test")(run_suites)
rules.command("explain")(explain)
rules.command("diff")(diff)
rules.command("graph")(graph)
rules.command("bundle")(bundle)
rules.command("upgrade")(upgrade_rules)
rules.command("zones")(zones)
rules.command("bench")(bench)
rules.command("schema")(schema)
rules.command("deploy")(deploy)
rules.command("activate")(activate)
rules.command("deactivate")(deactivate)
rules.command("list")(list_rule_sets)
rules.command("get")(get_rule_set)
rules.command("simulate")(simulate)
rules.command("shadow")(shadow)
rules.command("rollback")(rollback)

# In the order of `gavel tools --help`.
tools.command("register")(register_tools)
tools.command("list")(list_tools)
tools.command("providers")(list_providers)
tools.command("bind")(bind_tool)
tools.command("unbind")(unbind_tool)
tools.command("resolve")(resolve_tool)
tools.command("call")(call_tool)

evidence.command("get")(get_evidence)
evidence.command("verify")(verify_evidence)
evidence.command("prune")(prune_evidence)

# In the order of `gavel mcp --help`.
mcp.command("scaffold")(scaffold)
mcp.command("proxy")(proxy)
mcp.command("accept")(accept)

# In the order of `gavel grants --help`: offline on files, then on a server.
grants.command("lint")(lint_grants_files)
grants.command("test")(run_grant_suites)
grants.command("explain")(explain_access)
grants.command("diff")(diff_grants_files)
grants.command("deploy")(deploy_grants)
grants.command("list")(list_grants)
grants.command("get")(get_grants)

buses.command("create")(create_bus)
buses.command("list")(list_buses)

certs.command("dev")(dev)

token.command("create")(create_token)


def select_commands(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return `app` with only the command that the arguments begin with; with all commands if they begin with none.

    Typer evaluates the annotations of all commands that it is given, which takes longer than most commands run.
    """
    return _select(app, arguments)


def groups_with_command(name: str) -> list[str]:
    """Return the groups of `app` that have a command of this name, e.g. "rules" and "grants" for "explain"."""
    return [
        str(group.name)
        for group in app.registered_groups
        if group.typer_instance is not None and any(command.name == name for command in group.typer_instance.registered_commands)
    ]


def _select(group: typer.Typer, arguments: Sequence[str]) -> typer.Typer:
    first = next(iter(arguments), None)
    commands = [command for command in group.registered_commands if command.name == first]
    groups = [subgroup for subgroup in group.registered_groups if subgroup.name == first]
    following = arguments[1:]
    if not commands and not groups:
        commands, groups, following = group.registered_commands, group.registered_groups, ()
    selection = copy(group)
    selection.registered_commands = [_complete(command) for command in commands]
    selection.registered_groups = [_select_group(subgroup, following) for subgroup in groups]
    if group.registered_callback is not None and group.registered_callback.callback is not None:
        selection.registered_callback = copy(group.registered_callback)
        selection.registered_callback.callback = with_server_options(group.registered_callback.callback)
    return selection


def _select_group(group: TyperInfo, arguments: Sequence[str]) -> TyperInfo:
    selection = copy(group)
    if group.typer_instance is not None:
        selection.typer_instance = _select(group.typer_instance, arguments)
    return selection


def _complete(command: CommandInfo) -> CommandInfo:
    """Return a command with our help and, if it calls a server, the options for that."""
    completed = copy(command)
    completed.cls = Command
    if command.callback is not None:
        completed.callback = with_server_options(command.callback)
    return completed
