"""The contracts of the tools that ship: their names, and the old names that stay valid (constitution 004 §2 and §12)."""

from __future__ import annotations

from gavel_client.tools.contracts import shipped_contracts, shipped_providers
from gavel_client.values import from_struct

# An old name leaves this list two releases after the changelog has announced it, and no sooner (docs/tools.md#old-names).
ALIASES = {
    "fs.read_text": ["read_file", "read"],
    "fs.write_text": ["write_file", "write"],
    "fs.patch_text": ["edit_file", "edit"],
    "command.run": ["bash"],
}


def test_shipped_aliases() -> None:
    """Each tool that ships has its canonical name and all of its old ones, and every name belongs to one tool."""
    shipped = {contract.name: list(contract.aliases) for contract in shipped_contracts()}
    assert ALIASES == shipped
    names = [name for canonical, aliases in shipped.items() for name in (canonical, *aliases)]
    assert sorted(set(names)) == sorted(names)


def test_a_default_provider_serves_its_tool() -> None:
    """The default provider of each contract ships, and so does the local bridge, which serves all tools."""
    served = {provider.provider_id: set(provider.tools) for provider in shipped_providers()}
    assert all(contract.name in served[contract.default_provider] for contract in shipped_contracts())
    assert set(ALIASES) == served["bridge-local"]


def test_both_dialects_of_a_patch_are_in_the_contract() -> None:
    """The arguments of fs.patch_text name the old dialect, old and new, beside find and replace."""
    patch = next(contract for contract in shipped_contracts() if contract.name == "fs.patch_text")
    assert {"find", "replace", "old", "new"} <= set(from_struct(patch.argument_schema)["properties"])
