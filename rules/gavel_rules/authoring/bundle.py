"""Bundling: adds the documents that a rule set imports to its text, so that the log holds all of it.

The author's text stays as it is; the imported ones follow it under `documents`, by their digests. Where texts cannot be joined, as with an
end mark `...` or YAML in flow style, the bundle is JSON. A document is added only if it has the digest that the rule set names: the author
decides when a change of it counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gavel_rules.errors import GavelRulesError
from gavel_rules.language.document.composition import library_digest
from gavel_rules.language.document.diagnostics import Messages
from gavel_rules.language.document.source import Source


class BundleError(GavelRulesError):
    """An imported document cannot be bundled; the message says why."""


def bundle(text: str, read: Callable[[str], str]) -> str:
    """Return a document with the documents that it imports.

    A document stays as it is if it imports none, has its bundle already, or cannot be read without a mistake: the compiler reports them.
    `read` gives the text of a file that `imports` names. Raises BundleError, and the errors of `read`.
    """
    messages = Messages()
    document = Source(text, messages).data
    if len(messages) or not isinstance(document, dict) or not isinstance(document.get("imports"), list) or "documents" in document:
        return text
    libraries = dict(_read_libraries(document["imports"], read))
    whole = {**document, "documents": {digest: Source(library, Messages()).data for digest, library in libraries.items()}}
    joined = _join(text, libraries)
    return joined if Source(joined, Messages()).data == whole else json.dumps(whole, ensure_ascii=False, indent=2) + "\n"


def _join(text: str, libraries: Mapping[str, str]) -> str:
    """Return a document in block style, followed by the texts of its imports."""
    parts = [text if text.endswith("\n") else f"{text}\n", "documents:\n"]
    for digest, library in libraries.items():
        parts.append(f'  "{digest}":\n')
        parts.extend(f"    {line}" if line.strip() else line for line in library.splitlines(keepends=True) if line.rstrip() != "---")
        if not library.endswith("\n"):
            parts.append("\n")
    return "".join(parts)


def _read_libraries(imports: list[Any], read: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Yield the digest and the text of each imported document. Entries of a wrong form are left to the compiler."""
    for one in imports:
        file = one.get("file") if isinstance(one, dict) else None
        if not isinstance(file, str) or not file:
            continue
        text = read(file)
        messages = Messages()
        library = Source(text, messages).data
        if len(messages) or not isinstance(library, dict):
            mistakes = "; ".join(message.format(file) for message in messages.sorted())
            raise BundleError(mistakes or f"{file} is not a mapping; start with `gavel: v2` and `library: NAME`")
        digest = library_digest(library)
        if one.get("digest") != digest:
            raise BundleError(
                f"{file} has the digest {digest}, but imports name {one.get('digest')}; if the change is meant, write the new one"
            )
        yield digest, text
