"""The provider `workspace`: reads, writes and patches text files of one directory, which tools see as /workspace."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from gavel_client.tools.errors import ARGS, CONFLICT, PATH, PERMISSION, QUOTA, TOOL, ToolError
from gavel_client.tools.invocation import ToolData, ToolInvocation
from gavel_client.tools.providers.git import is_git_directory, is_git_path
from gavel_client.tools.providers.jail import Jail

FILE_BYTES_MAX: Final = 8 * 1024 * 1024
_EFFECTS: Final = {
    "fs.read_text": "workspace.fs.read",
    "fs.write_text": "workspace.fs.write",
    "fs.patch_text": "workspace.fs.write",
}
_MODES: Final = ("overwrite", "append", "create")

Arguments = Mapping[str, Any]


class Workspace:
    """Serves fs.read_text, fs.write_text and fs.patch_text on a directory."""

    provider_id: Final = "workspace"
    version: Final = "1"

    def __init__(self, directory: str | os.PathLike[str], *, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        """Serve `directory`, which must exist. Larger files than `file_bytes_max` are neither read nor written."""
        self._jail: Final = Jail(directory)
        self._bytes_max: Final = file_bytes_max
        # Two patches of one file must not both start from the same content.
        self._writing: Final = threading.Lock()
        self.tools: Final[Mapping[str, Callable[[Arguments], dict[str, object]]]] = {
            "fs.read_text": self.read_text,
            "fs.write_text": self.write_text,
            "fs.patch_text": self.patch_text,
        }

    async def invoke(self, invocation: ToolInvocation) -> ToolData:
        """Carry out a call in a thread. Raises ToolError."""
        invocation.require_effect(_EFFECTS[invocation.canonical_tool])
        return ToolData(await asyncio.to_thread(self.tools[invocation.canonical_tool], invocation.arguments))

    async def close(self) -> None:
        """Release the directory."""
        self._jail.close()

    def read_text(self, arguments: Arguments) -> dict[str, object]:
        """Return text of a file from the character `offset` on, at most `limit` characters. Raises ToolError."""
        path = _text(arguments, "path")
        offset, limit = _number(arguments, "offset", 0), _number(arguments, "limit", self._bytes_max)
        text = self._read(path)
        part = text[offset : offset + limit]
        return {"path": path, "text": part, "offset": offset, "total": len(text), "truncated": offset + len(part) < len(text)}

    def write_text(self, arguments: Arguments) -> dict[str, object]:
        """Write a file: `overwrite` it (default), `append` to it, or `create` one that does not exist. Raises ToolError."""
        path, text = _text(arguments, "path"), _text(arguments, "text")
        mode = arguments.get("mode", "overwrite")
        if mode not in _MODES:
            raise ToolError(ARGS, f"mode is not one of {', '.join(_MODES)}")
        with self._writing:
            if mode == "append" and self._jail.exists(path):
                text = self._read(path) + text
            self._write(path, text, replaces=mode != "create")
        return {"path": path, "bytes": len(text.encode())}

    def patch_text(self, arguments: Arguments) -> dict[str, object]:
        """Replace text of a file: `find` by `replace`, once or with `all` everywhere; or `old` by `new`. Raises ToolError.

        The file changes as a whole or not at all. E_CONFLICT: the text is not there, or is there more than once and `all` is not set.
        """
        path = _text(arguments, "path")
        old_names = ("old", "new") if "old" in arguments else ("find", "replace")
        find, replacement = (_text(arguments, name) for name in old_names)
        everywhere = arguments.get("all", False)
        if not find or not isinstance(everywhere, bool):
            raise ToolError(ARGS, f"{old_names[0]} is empty, or all is not a boolean")
        with self._writing:
            text = self._read(path)
            count = text.count(find)
            if count == 0:
                raise ToolError(CONFLICT, f"{path} does not hold the text to replace")
            if count > 1 and not everywhere:
                raise ToolError(CONFLICT, f"{path} holds the text to replace {count} times; set all, or name more of its surroundings")
            # Before the text exists: a long replacement of a short text could take all memory.
            if len(text) + count * (len(replacement) - len(find)) > self._bytes_max:
                raise ToolError(QUOTA, f"{path} would have more than {self._bytes_max} bytes")
            self._write(path, text.replace(find, replacement), replaces=True)
        return {"path": path, "replacements": count}

    def _read(self, path: str) -> str:
        try:
            return self._jail.read(path, self._bytes_max).decode()
        except UnicodeDecodeError:
            raise ToolError(TOOL, f"{path} is not text in UTF-8") from None

    def _write(self, path: str, text: str, *, replaces: bool) -> None:
        def check(directory: int) -> None:
            if is_git_directory(directory):
                raise ToolError(PERMISSION, f"{path} lies in a repository of Git, whose configuration names programs that git runs")

        if is_git_path(path):
            raise ToolError(PERMISSION, f"{path} has a name of Git, whose configuration names programs that git runs")
        try:
            content = text.encode()
        except UnicodeEncodeError:
            raise ToolError(ARGS, "the text holds lone surrogates") from None
        if len(content) > self._bytes_max:
            raise ToolError(QUOTA, f"{path} would have {len(content)} bytes; the limit is {self._bytes_max}")
        self._jail.write(path, content, replaces=replaces, check=check)


def _text(arguments: Arguments, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ToolError(PATH if name == "path" and value is None else ARGS, f"{name} is required: a text")
    return value


def _number(arguments: Arguments, name: str, default: int) -> int:
    value = arguments.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ToolError(ARGS, f"{name} is not a number, 0 or more")
    return value
