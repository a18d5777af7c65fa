"""Contexts: named servers with the files of the credentials for them, so that commands need not repeat the options.

    current = "staging"

    [contexts."staging"]
    server = "gavel.staging.example:9090"
    tls_ca = "/home/alice/staging/ca.pem"
    token_file = "/home/alice/staging/token"

They are in `gavel/contexts.toml` of the user's configuration directory (XDG). The file holds paths and no secret. It must
still be private: a user who can change it can send the owner's tokens to another server.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.process.private_files import PRIVATE_MODE, make_directory, open_private

# Names a context, or, if it has a slash, the file of contexts.
CONTEXT_VARIABLE: Final = "GAVEL_CONTEXT"
FIELDS: Final = ("server", "bus", "tls_ca", "tls_cert", "tls_key", "token_file")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")

Context = Mapping[str, str]
"""The options that a context sets, by name: some of FIELDS."""


class Contexts(NamedTuple):
    """The contexts of a file. `current` is the one in use; "": none."""

    path: Path
    current: str
    by_name: dict[str, Context]

    def get(self, name: str) -> Context:
        """Return a context. Raises InvalidInputError."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise InvalidInputError(f"{self.path} has no context {name!r}; it has: {known}; add one with gavel context add")
        return self.by_name[name]


def selected_name(name: str | None) -> str:
    """Return the name of the context that commands use: `name`, else the one of the environment, else the current one; "": none.

    Raises CommandError.
    """
    if name is not None:
        return name
    setting = os.environ.get(CONTEXT_VARIABLE, "")
    return setting if setting and "/" not in setting else load_contexts().current


def selected_context(name: str | None) -> Context:
    """Return the context that commands use, as `selected_name` does; {}: none. Raises CommandError."""
    selected = selected_name(name)
    return load_contexts().get(selected) if selected else {}


def check_name(name: str) -> str:
    """Return the name of a context. Raises InvalidInputError."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name!r} is not a context's name; use 1 to 63 letters, digits and . _ @ -, and begin with a letter or a digit"
        )
    return name


def contexts_file() -> Path:
    """Return the path of the file of contexts. Raises CommandError."""
    setting = os.environ.get(CONTEXT_VARIABLE, "")
    if "/" in setting:
        return Path(setting)
    configuration = os.environ.get("XDG_CONFIG_HOME", "")
    if configuration.startswith("/"):  # a relative one is invalid and ignored, as the XDG specification says
        return Path(configuration) / "gavel/contexts.toml"
    try:
        return Path.home() / ".config/gavel/contexts.toml"
    except RuntimeError as error:
        raise CommandError("this user has no home directory for contexts; set XDG_CONFIG_HOME") from error


def load_contexts() -> Contexts:
    """Return the contexts of the file, none if it does not exist. Raises CommandError if it is invalid or writable by others."""
    path = contexts_file()
    try:
        with open(path, "rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            document = tomllib.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts(path, "", {})
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} is not TOML: {error}; correct or remove it") from error
    return _contexts(path, document)


def save_contexts(contexts: Contexts) -> None:
    """Replace the file as a whole. Raises OSError."""
    lines = [f"current = {json.dumps(contexts.current)}"]
    for name, context in sorted(contexts.by_name.items()):
        lines += ["", f"[contexts.{json.dumps(name)}]"]
        lines += [f"{field} = {json.dumps(context[field], ensure_ascii=False)}" for field in FIELDS if field in context]
    make_directory(contexts.path.parent)
    # Through a link, so that a file kept elsewhere stays there.
    target = contexts.path.resolve()
    new = target.with_name(target.name + ".new")
    with open(new, "w", encoding="utf-8", opener=open_private) as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, target)


def _check_private(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~PRIVATE_MODE & 0o777:
        raise CommandError(f"{path} has the mode {mode:04o}, so other users may read or change it; run: chmod 600 {path}")
    if status.st_uid not in (os.geteuid(), 0):
        raise CommandError(
            f"{path} belongs to another user, who could send your credentials elsewhere; remove it, or set XDG_CONFIG_HOME to "
            "another directory"
        )


def _contexts(path: Path, document: Mapping[str, Any]) -> Contexts:
    current, tables = document.get("current", ""), document.get("contexts", {})
    unknown = sorted(document.keys() - {"current", "contexts"})
    if unknown or not isinstance(current, str) or not isinstance(tables, dict):
        raise InvalidInputError(f"{path} may hold current and [contexts.NAME] tables only; correct or remove it")
    for name, table in tables.items():
        if not isinstance(table, dict) or not all(field in FIELDS and isinstance(value, str) for field, value in table.items()):
            raise InvalidInputError(f"{path}: context {name!r} may hold only texts under {', '.join(FIELDS)}; correct or remove it")
    return Contexts(path, current, tables)
