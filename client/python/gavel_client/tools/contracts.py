"""The contracts of the tools that ship (constitution 004 §2). Register them with `gavel tools register` or ToolService."""

from __future__ import annotations

from typing import Any, Final

from gavel.v1.tool_pb2 import ToolContract, ToolProvider

from gavel_client.values import to_struct

_PATH: Final = {"type": "string", "description": "A path under /workspace, e.g. /workspace/src/main.py."}
_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}


def _object(required_names: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required_names, "properties": properties}


def _contract(
    name: str, aliases: list[str], effects: list[str], provider: str, arguments: dict[str, Any], result: dict[str, Any]
) -> ToolContract:
    return ToolContract(
        name=name,
        version="1",
        aliases=aliases,
        side_effects=effects,
        default_provider=provider,
        argument_schema=to_struct(arguments),
        result_schema=to_struct(result),
    )


def shipped_contracts() -> list[ToolContract]:
    """Return the contracts of fs.read_text, fs.write_text, fs.patch_text and command.run."""
    return [
        _contract(
            "fs.read_text",
            ["read_file", "read"],
            ["workspace.fs.read"],
            "workspace",
            _object(["path"], path=_PATH, offset=_COUNT, limit=_COUNT),
            _object(
                ["path", "text", "offset", "total", "truncated"],
                path=_TEXT,
                text=_TEXT,
                offset=_COUNT,
                total=_COUNT,
                truncated={"type": "boolean"},
            ),
        ),
        _contract(
            "fs.write_text",
            ["write_file", "write"],
            ["workspace.fs.write"],
            "workspace",
            _object(["path", "text"], path=_PATH, text=_TEXT, mode={"enum": ["overwrite", "append", "create"]}),
            _object(["path", "bytes"], path=_TEXT, bytes=_COUNT),
        ),
        _contract(
            "fs.patch_text",
            ["edit_file", "edit"],
            ["workspace.fs.write"],
            "workspace",
            {
                "type": "object",
                "required": ["path"],
                "properties": {"path": _PATH, "find": _TEXT, "replace": _TEXT, "old": _TEXT, "new": _TEXT, "all": {"type": "boolean"}},
                "additionalProperties": False,
                "oneOf": [{"required": ["find", "replace"]}, {"required": ["old", "new"]}],
            },
            _object(["path", "replacements"], path=_TEXT, replacements=_COUNT),
        ),
        _contract(
            "command.run",
            ["bash"],
            ["process"],
            "workspace-command",
            _object(
                ["commandId"],
                commandId={
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 128,
                    "description": "Name of an allowed command, e.g. git.status.",
                },
                argv={"type": "array", "maxItems": 256, "items": _TEXT},
                cwd={"type": "string", "description": "A directory, /workspace or under it."},
                timeoutMs={"type": "integer", "minimum": 1, "maximum": 600_000},
            ),
            _object(
                ["exitCode", "stdout", "stderr", "truncated", "timeoutHit"],
                exitCode={"type": "integer"},
                stdout=_TEXT,
                stderr=_TEXT,
                truncated={"type": "boolean"},
                timeoutHit={"type": "boolean"},
            ),
        ),
    ]


def shipped_providers() -> list[ToolProvider]:
    """Return the providers that ship, as the registry knows them."""
    files, commands = ["fs.read_text", "fs.write_text", "fs.patch_text"], ["command.run"]
    tools = {"workspace": files, "workspace-command": commands, "bridge-local": [*files, *commands]}
    return [ToolProvider(provider_id=provider_id, version="1", tools=names) for provider_id, names in tools.items()]
