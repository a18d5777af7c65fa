"""Composition of a document: writes out its imports and the shared parts of its actions.

Documents of the language's second version may declare parts of actions once, under `shared`, and bundle other documents, of which they use
names and shared parts (docs/rule-language.md#sharing). Everything behind this module reads the composed data, in which
each action stands in full. The digest of a rule set is that of the document as written.

A part that comes from elsewhere keeps its place in the text: mistakes are reported where their author wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from gavel_rules.language.document.canonical_form import compute_digest, is_same, to_canonical_json
from gavel_rules.language.document.diagnostics import Path
from gavel_rules.text import suggestion

# Sections of an imported document, whose names become names of the document that imports it.
IMPORTED_SECTIONS: Final = ("constants", "variables", "shared", "zones", "calendars")
# Place, code, message, suggestion.
Note = Callable[[Path, str, str, str], None]
# The parts of a params schema whose entries are joined by name.
_JOINED: Final = ("properties", "$defs")


class Composition(NamedTuple):
    """Composed data. `origins` has the place in the document of each part that stands elsewhere in the data."""

    data: dict[str, Any]
    origins: Mapping[Path, Path]


def compose(document: Mapping[str, Any], note: Note) -> Composition:
    """Return the composed data of a document, and note its mistakes in imports and shared parts. Parts of a wrong form stay."""
    data = dict(document)
    origins: dict[Path, Path] = {}
    _import(data, origins, note)
    shared = _mapping(data.get("shared"))
    actions = data.get("actions")
    if isinstance(actions, dict):
        data["actions"] = {
            name: _Action(name, action, shared, origins, note).compose() if isinstance(action, dict) and "use" in action else action
            for name, action in actions.items()
        }
    return Composition(data, origins)


def library_digest(library: object) -> str:
    """Return the digest by which a document is imported: of its canonical JSON, whatever its layout."""
    return compute_digest(to_canonical_json(library))


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _import(data: dict[str, Any], origins: dict[Path, Path], note: Note) -> None:
    """Add the names of the imported documents to those of the document."""
    imports = data.get("imports")
    libraries = _mapping(data.get("documents"))
    wanted: set[str] = set()
    for index, one in enumerate(imports if isinstance(imports, list) else ()):
        digest = one.get("digest") if isinstance(one, dict) else None
        if not isinstance(digest, str):
            continue
        wanted.add(digest)
        if digest not in libraries:
            message = f"the document {one.get('file', digest)} is imported, but not bundled"
            note(("imports", index), "not-bundled", message, "bundle it: gavel rules bundle FILE")
            continue
        for section in IMPORTED_SECTIONS:
            if not isinstance(data.get(section, {}), dict):
                continue  # a mistake, which is reported later
            own = dict(_mapping(data.get(section)))
            for name, value in _mapping(libraries[digest].get(section) if isinstance(libraries[digest], dict) else None).items():
                if name in own:
                    message = f"{section} already has the name {name}"
                    note(("documents", digest, section, name), "duplicate-name", message, "rename one of the two")
                    continue
                own[name] = value
                origins[section, name] = ("documents", digest, section, name)
            if own:
                data[section] = own
    for digest, library in libraries.items():
        if digest not in wanted:
            note(("documents", digest), "not-imported", "no entry of imports has this digest", "remove the document")
        elif isinstance(library, dict) and library_digest(library) != digest:
            message = f"the bundled document has the digest {library_digest(library)}"
            note(("documents", digest), "wrong-digest", message, "bundle the document again: gavel rules bundle FILE")


class _Action:
    """One action that uses shared parts."""

    def __init__(self, name: str, part: Mapping[str, Any], shared: Mapping[str, Any], origins: dict[Path, Path], note: Note) -> None:
        self._path: Path = ("actions", name)
        self._part = part
        self._shared = shared
        self._origins = origins
        self._note = note
        self._from: dict[Path, str] = {}  # the shared part that a value comes from, by its place below the action

    def compose(self) -> dict[str, Any]:
        """Return the action with its shared parts; its own declarations take precedence."""
        result: dict[str, Any] = {}
        for name, part in self._used_parts():
            for key, value in part.items():
                if key == "use":
                    self._note(("shared", name, key), "unknown-key", "a shared part uses no others", "use them in the action")
                else:
                    self._add(result, (key,), value, name)
        for key, value in self._part.items():
            self._override(result, (key,), value)
        return result

    def _used_parts(self) -> Iterator[tuple[str, dict[str, Any]]]:
        names = self._part["use"]
        for index, name in enumerate(names if isinstance(names, list) else ()):
            if not isinstance(name, str):
                continue
            part = self._shared.get(name)
            if part is None:
                hint = suggestion(name, sorted(self._shared), 0)
                self._note((*self._path, "use", index), "unknown-name", f"`shared` has no part {name}", hint)
            elif isinstance(part, dict):
                yield name, part

    def _add(self, target: dict[str, Any], path: Path, value: Any, shared: str) -> None:
        """Add a value of a shared part. Facts, properties of params and required properties of several parts are joined."""
        key = str(path[-1])
        own = target.get(key)
        if _is_joined(path) and isinstance(value, dict) and (own is None or isinstance(own, dict)):
            inner = target[key] = dict(own or {})
            self._from.setdefault(path, shared)
            for name, item in value.items():
                self._add(inner, (*path, name), item, shared)
        elif path == ("params", "required") and isinstance(value, list) and isinstance(own, list):
            target[key] = _join_names(own, value)
        elif key in target and not is_same(own, value):
            if not self._overrides(path):
                written = ".".join(map(str, path))
                message = f"the shared parts {self._from[path]} and {shared} give {written} different values"
                self._note(self._path, "shared-parts-disagree", message, f"declare {written} in the action, or use one of the two")
        else:
            target[key] = value
            self._from[path] = shared
            self._origins[(*self._path, *path)] = ("shared", shared, *path)

    def _overrides(self, path: Path) -> bool:
        part: object = self._part
        for step in path:
            if not isinstance(part, dict) or step not in part:
                return False
            part = part[step]
        return True

    def _override(self, target: dict[str, Any], path: Path, value: Any) -> None:
        """Set a value that the action declares itself."""
        key = str(path[-1])
        own = target.get(key)
        if _is_joined(path) and isinstance(value, dict) and isinstance(own, dict):
            for name, item in value.items():
                self._override(own, (*path, name), item)
        elif path == ("params", "required") and isinstance(value, list) and isinstance(own, list):
            target[key] = _join_names(own, value)
        else:
            target[key] = value
            self._origins.pop((*self._path, *path), None)


def _join_names(own: list[Any], more: list[Any]) -> list[Any]:
    """Return the items of both lists, names once. Items of a wrong form stay: they are reported with the schema."""
    names = dict.fromkeys(one for one in (*own, *more) if isinstance(one, str))
    return [*names, *(one for one in (*own, *more) if not isinstance(one, str))]


def _is_joined(path: Path) -> bool:
    return path in (("params",), ("facts",)) or (len(path) == 2 and path[0] == "params" and path[1] in _JOINED)
