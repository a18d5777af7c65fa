"""The profile of a runtime: which providers it has, and with what configuration, in a YAML or JSON file.

    runtime: tools-1
    evidence: ./evidence
    aliases: true
    providers:
      workspace: {directory: ./work}
      workspace-command: {directory: ./work, commands: {git.status: [git, status]}}

A runtime has the providers that its profile names, and no other. `bridge-local` runs shell.exec only with `shell: true`. Any other name is
that of a plug-in (`plugins`), and its mapping is the plug-in's. Paths are relative to the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from gavel_client.evidence.store import EvidenceStore
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelClientError
from gavel_client.tools.hooks import ToolHook
from gavel_client.tools.plugins import load_plugin
from gavel_client.tools.provider import Provider
from gavel_client.tools.providers.bridge_local import BridgeLocal
from gavel_client.tools.providers.processes import OUTPUT_BYTES_MAX
from gavel_client.tools.providers.workspace import FILE_BYTES_MAX, Workspace
from gavel_client.tools.providers.workspace_command import ENVIRONMENT_DEFAULT, WorkspaceCommand
from gavel_client.tools.runtime import ToolRuntime, aliases_are_on

_KEYS: Final[Mapping[str, type]] = {"runtime": str, "evidence": str, "aliases": bool, "providers": dict}
_DIRECTORY_KEYS: Final[Mapping[str, type]] = {"directory": str}
_FILE_KEYS: Final[Mapping[str, type]] = {"file_bytes_max": int}
_COMMAND_KEYS: Final[Mapping[str, type]] = {"commands": dict, "environment": dict, "output_bytes_max": int}


class ToolProfileError(GavelClientError):
    """A profile is not valid; the message says where, and what to do."""


@dataclass(frozen=True)
class ToolProfile:
    """A valid profile. `open_runtime` makes the runtime."""

    runtime: str
    """producer_id of the runtime."""
    evidence: str
    """Path or URL of the evidence store; "": none."""
    aliases: bool | None
    """Whether aliases are known; None: as the environment says."""
    providers: Mapping[str, Mapping[str, Any]]
    """The configuration of each provider, by provider_id."""
    directory: Path
    """The directory of the file."""

    def open_runtime(self, client: GavelClient, hooks: Sequence[ToolHook] = ()) -> ToolRuntime:
        """Make the providers and the runtime. Raises ToolProfileError."""
        aliases = aliases_are_on() if self.aliases is None else self.aliases
        providers = [self._provider(name, configuration, aliases) for name, configuration in self.providers.items()]
        store = EvidenceStore(self._store_url()) if self.evidence else None
        return ToolRuntime(client, self.runtime, providers=providers, evidence=store, hooks=hooks, aliases=aliases)

    def _store_url(self) -> str:
        return self.evidence if "://" in self.evidence else str(self.directory / self.evidence)

    def _provider(self, name: str, configuration: Mapping[str, Any], aliases: bool) -> Provider:
        make = _PROVIDERS.get(name)
        try:
            if make is None:
                return load_plugin(name, configuration)
            return make(self.directory / configuration["directory"], configuration, aliases)
        except (ValueError, TypeError) as error:
            raise ToolProfileError(f"providers.{name}: {error}") from error
        except OSError as error:
            raise ToolProfileError(f"providers.{name}: {self.directory / configuration['directory']}: {error.strerror}") from error


def load_profile(path: Path | str) -> ToolProfile:
    """Return the profile in a file.

    Raises ToolProfileError, OSError if the file cannot be read, and ImportError without the extra `yaml`.
    """
    document = _read(Path(path))
    problems: list[str] = []
    _check_keys(document, _KEYS, "", problems)
    problems += [f"{name} is required" for name in ("runtime", "providers") if not document.get(name)]
    providers = document.get("providers")
    for name, configuration in providers.items() if isinstance(providers, dict) else ():
        if not isinstance(configuration, dict):
            problems.append(f"providers.{name} is not a mapping")
        elif name in _PROVIDERS:
            _check_keys(configuration, _PROVIDER_KEYS[name], f"providers.{name}.", problems)
            if "directory" not in configuration:
                problems.append(f"providers.{name}.directory is required")
    if problems:
        raise ToolProfileError("\n".join(f"{path}: {problem}" for problem in problems))
    return ToolProfile(
        runtime=document["runtime"],
        evidence=document.get("evidence", ""),
        aliases=document.get("aliases"),
        providers=document["providers"],
        directory=Path(path).resolve().parent,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
    except ImportError as error:
        raise ImportError('a profile needs ruamel.yaml; install it: pip install "gavel-client[yaml]"') from error
    try:
        document = YAML(typ="safe", pure=True).load(path.read_bytes().decode("utf-8", errors="replace"))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ToolProfileError(f"{path}{place}: the file is not YAML: {error.problem or error.context}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ToolProfileError(f"{path}: the file is not YAML: {type(error).__name__}") from error
    if not isinstance(document, dict):
        raise ToolProfileError(f"{path}: the file is not a mapping; its keys are {', '.join(_KEYS)}")
    return document


def _check_keys(document: Mapping[Any, Any], keys: Mapping[str, type], prefix: str, problems: list[str]) -> None:
    for key, value in document.items():
        if key not in keys:
            near = get_close_matches(str(key), keys, n=1)
            problems.append(f"{prefix}{key} is unknown; " + (f"did you mean {near[0]}?" if near else f"the keys are {', '.join(keys)}"))
        elif not (_is_count(value) if keys[key] is int else isinstance(value, keys[key])):
            problems.append(f"{prefix}{key} is not {_TYPES[keys[key]]}")
        elif value == "":
            problems.append(f"{prefix}{key} is empty")


def _is_count(value: object) -> bool:
    """Return whether a value is an integer above 0; a boolean is an int, too."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _workspace(directory: Path, configuration: Mapping[str, Any], aliases: bool) -> Provider:
    return Workspace(directory, file_bytes_max=configuration.get("file_bytes_max", FILE_BYTES_MAX))


def _workspace_command(directory: Path, configuration: Mapping[str, Any], aliases: bool) -> Provider:
    return WorkspaceCommand(directory, configuration.get("commands", {}), **_process_options(configuration))


def _bridge_local(directory: Path, configuration: Mapping[str, Any], aliases: bool) -> Provider:
    return BridgeLocal(
        directory,
        configuration.get("commands", {}),
        allow_shell=configuration.get("shell", False),
        aliases=aliases,
        file_bytes_max=configuration.get("file_bytes_max", FILE_BYTES_MAX),
        **_process_options(configuration),
    )


def _process_options(configuration: Mapping[str, Any]) -> dict[str, Any]:
    environment = configuration.get("environment", {})
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in environment.items()):
        raise ValueError("environment is not a mapping of texts")
    return {
        "environment": {**ENVIRONMENT_DEFAULT, **environment},
        "output_bytes_max": configuration.get("output_bytes_max", OUTPUT_BYTES_MAX),
    }


_PROVIDERS: Final[Mapping[str, Callable[[Path, Mapping[str, Any], bool], Provider]]] = {
    "workspace": _workspace,
    "workspace-command": _workspace_command,
    "bridge-local": _bridge_local,
}
_PROVIDER_KEYS: Final[Mapping[str, Mapping[str, type]]] = {
    "workspace": {**_DIRECTORY_KEYS, **_FILE_KEYS},
    "workspace-command": {**_DIRECTORY_KEYS, **_COMMAND_KEYS},
    "bridge-local": {**_DIRECTORY_KEYS, **_FILE_KEYS, **_COMMAND_KEYS, "shell": bool},
}
_TYPES: Final[Mapping[type, str]] = {str: "a text", bool: "true or false", dict: "a mapping", int: "a number, 1 or more"}
