"""Plug-ins: providers of other packages, by entry points of the group `gavel.tools` (constitution 004 §4.2).

    [project.entry-points."gavel.tools"]
    mailer = "acme_tools:MailProvider"

An entry point names a function or class that takes the provider's configuration, a mapping, and returns a Provider whose provider_id is
the entry point's name. Only plug-ins that a profile names are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from gavel_client.tools.provider import Provider

GROUP: Final = "gavel.tools"


def find_plugins() -> dict[str, EntryPoint]:
    """Return the installed plug-ins by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load_plugin(name: str, configuration: Mapping[str, Any]) -> Provider:
    """Load a plug-in and make its provider. Raises ValueError if there is none, or it cannot be used."""
    plugins = find_plugins()
    if name not in plugins:
        known = ", ".join(sorted(plugins)) or "none"
        raise ValueError(f"no installed package offers the provider {name}; installed plug-ins of {GROUP}: {known}")
    try:
        provider = plugins[name].load()(configuration)
    except Exception as error:
        raise ValueError(f"the plug-in {name} ({plugins[name].value}) fails: {type(error).__name__}: {error}") from error
    if getattr(provider, "provider_id", None) != name:
        raise ValueError(f"the plug-in {name} ({plugins[name].value}) returns no Provider with the provider_id {name}")
    result: Provider = provider
    return result
