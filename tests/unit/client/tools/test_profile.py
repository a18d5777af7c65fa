"""Profiles of runtimes: the providers that they name, plug-ins by entry point, and their mistakes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from gavel.v1.tool_pb2 import ToolContract
from gavel_client import GavelClient
from gavel_client.tools import FunctionProvider, ToolContext, ToolInvocation, profile
from gavel_client.tools.plugins import find_plugins, load_plugin
from gavel_client.tools.profile import ToolProfileError, load_profile
from gavel_client.tools.providers.bridge_local import BridgeLocal

PLUGIN = """
from gavel_client.tools import FunctionProvider

def mailer(configuration):
    host = configuration["host"]
    return FunctionProvider("mailer", {"mail.send": lambda call: {"host": host}})

def other(configuration):
    return FunctionProvider("mailer", {})
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a package with three plug-ins, as pip does."""
    site = tmp_path / "site"
    info = site / "acme_tools-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme_tools.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tools\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gavel.tools]\nmailer = acme_tools:mailer\nother = acme_tools:other\nbroken = acme_tools:no\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "acme_tools", raising=False)


async def test_a_plugin_gets_its_configuration(plugin: None) -> None:
    """A plug-in that the profile names is found by its entry point and made with its mapping."""
    assert {"mailer", "other", "broken"} <= find_plugins().keys()
    provider = load_plugin("mailer", {"host": "mx"})
    assert isinstance(provider, FunctionProvider)
    invocation = ToolInvocation("mail.send", ToolContract(name="mail.send"), "mailer", "exec_000000000000", {}, ToolContext("mail/1"))
    assert {"host": "mx"} == (await provider.invoke(invocation)).data


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("smtp", "no installed package offers the provider smtp"),
        ("broken", "AttributeError"),
        ("mailer", "fails: KeyError: 'host'"),
        ("other", "returns no Provider with the provider_id other"),
    ],
)
def test_plugins_that_cannot_be_used(plugin: None, name: str, problem: str) -> None:
    """A plug-in that is not there, cannot be loaded, or has another name is an error that says so."""
    with pytest.raises(ValueError, match=problem):
        load_plugin(name, {})


async def test_a_runtime_has_what_its_profile_names(tmp_path: Path) -> None:
    """Paths are relative to the file; the runtime has the named providers."""
    (tmp_path / "work").mkdir()
    file = tmp_path / "tools.yaml"
    providers = "{workspace: {directory: work}, bridge-local: {directory: work, shell: true}}"
    file.write_text(f"{{runtime: tools-1, evidence: kept, providers: {providers}}}")
    runtime = load_profile(file).open_runtime(GavelClient("127.0.0.1:1"))
    assert {"workspace", "bridge-local"} == set(runtime.providers)
    await runtime.close()
    file.write_text("{runtime: tools-1, providers: {workspace: {directory: none}}}")
    with pytest.raises(ToolProfileError, match=r"providers\.workspace: .*none: No such file"):
        load_profile(file).open_runtime(GavelClient("127.0.0.1:1"))


@pytest.mark.parametrize(("key", "variable", "expected"), [("", "true", True), ("", "false", False), ("aliases: true, ", "false", True)])
async def test_aliases_of_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, variable: str, expected: bool) -> None:
    """The environment decides about aliases of tools and of the shell, unless the profile does."""
    monkeypatch.setenv("GAVEL_TOOL_ALIASES", variable)
    file = tmp_path / "tools.yaml"
    file.write_text(f"{{runtime: t, {key}providers: {{bridge-local: {{directory: ., shell: true}}}}}}")
    aliases: list[bool] = []

    def make(*_: object, **options: Any) -> BridgeLocal:
        aliases.append(options["aliases"])
        return BridgeLocal(tmp_path)

    monkeypatch.setattr(profile, "BridgeLocal", make)
    runtime = load_profile(file).open_runtime(GavelClient("127.0.0.1:1"))
    await runtime.close()
    assert [expected] == aliases


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1]", "is not a mapping"),
        ("{a: 1", "is not YAML"),
        ("{runtime: tools-1}", "providers is required"),
        ("{providers: {workspace: {directory: .}}}", "runtime is required"),
        ("{runtime: t, provider: {}, providers: {workspace: {directory: .}}}", "provider is unknown; did you mean providers?"),
        ("{runtime: t, providers: {workspace: {}}}", "providers.workspace.directory is required"),
        ("{runtime: t, providers: {workspace: [1]}}", "providers.workspace is not a mapping"),
        ("{runtime: t, aliases: 1, providers: {workspace: {directory: .}}}", "aliases is not true or false"),
        ("{runtime: t, providers: {bridge-local: {directory: ., shell: 'on'}}}", "providers.bridge-local.shell is not true or false"),
        ("{runtime: t, providers: {workspace: {directory: ., file_bytes_max: true}}}", "file_bytes_max is not a number, 1 or more"),
    ],
)
def test_mistakes_of_a_profile(tmp_path: Path, text: str, problem: str) -> None:
    """Every mistake is named with the file and the key."""
    file = tmp_path / "tools.yaml"
    file.write_text(text)
    with pytest.raises(ToolProfileError) as failure:
        load_profile(file)
    assert str(file) in str(failure.value)
    assert problem in str(failure.value)
