"""`gavel tools`: a file of tools is registered, a tool is bound and resolved."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.cli.programs import gavel
from tests.e2e.world import Server

TOOLS = """
contracts:
  - name: mail.send
    version: "1"
    aliases: [send_mail]
    argument_schema: {type: object, required: [to], properties: {to: {type: string}}}
    side_effects: [external.write]
    default_provider: mailer
providers:
  - {provider_id: mailer, version: "1", tools: [mail.send]}
  - {provider_id: outbox, version: "1", tools: [mail.send]}
bindings:
  - {tool_name: mail.send, provider_id: outbox, session_id: s}
"""


def test_tools(shop: Server, bus: str, tmp_path: Path) -> None:
    """Registering is repeatable; resolve says what is behind a name and that agents must propose; mistakes are named."""
    file = tmp_path / "tools.yaml"
    file.write_text(TOOLS)
    at = ("--server", shop.address, "--bus", bus)
    first = gavel("tools", "register", str(file), *at)
    assert (0, first.stdout) == (first.returncode, gavel("tools", "register", str(file), *at).stdout)
    resolved = gavel("tools", "resolve", "send_mail", "--session", "s", *at).stdout
    assert "mail.send 1, by alias" in resolved
    assert "outbox 1, bound for the session" in resolved
    assert "propose the action" in resolved
    gavel("tools", "bind", "mail.send", "outbox", *at)
    assert "outbox" in gavel("tools", "list", *at).stdout
    gavel("tools", "unbind", "mail.send", *at)
    assert "mailer 1, the contract's default" in gavel("tools", "resolve", "mail.send", *at).stdout
    assert "mailer" in gavel("tools", "providers", *at).stdout
    unknown = gavel("tools", "resolve", "mail.sned", *at)
    assert unknown.returncode
    assert "did you mean mail.send?" in unknown.stderr
    file.write_text(TOOLS.replace("aliases", "alias"))
    wrong = gavel("tools", "register", str(file), *at)
    assert wrong.returncode
    assert "contracts[0]" in wrong.stderr
