"""YAML and JSON files that people write: the document with the place of each item, and its mistakes.

The reader is ruamel.yaml, which `gavel-client[yaml]` brings. It is imported on the first read.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Mistake(NamedTuple):
    """One mistake. Lines and columns count from 1."""

    line: int
    column: int
    code: str
    message: str
    suggestion: str = ""

    def format(self, filename: str) -> str:
        """Return "file:line:column: code: message (suggestion)" as one line; characters that cannot be printed are escaped."""
        text = f"{filename}:{self.line}:{self.column}: {self.code}: {self.message}"
        text = f"{text} ({self.suggestion})" if self.suggestion else text
        return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def read_yaml(text: str, mistakes: list[Mistake]) -> Any:
    """Return a document as ruamel.yaml's mappings and lists, which hold the places of their items; None with a mistake if it is broken.

    Raises ImportError without the extra `yaml`.
    """
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
    except ImportError as error:
        raise ImportError('a YAML file needs ruamel.yaml; install it: pip install "gavel-client[yaml]"') from error
    try:
        return YAML().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        mistakes.append(Mistake(line, column, "syntax", f"the file is not YAML: {error.problem or error.context}"))
    except (YAMLError, ValueError, RecursionError) as error:
        mistakes.append(Mistake(1, 1, "syntax", f"the file is not YAML: {type(error).__name__}"))
    return None


def place_of(container: Any, key: Any) -> tuple[int, int]:
    """Return the (line, column) of an item of a mapping or list; of its key if the item is empty."""
    if isinstance(container, list):
        line, column = container.lc.item(key)  # type: ignore[attr-defined]
    elif container[key] is None:
        return place_of_key(container, key)
    else:
        line, column = container.lc.value(key)
    return line + 1, column + 1


def place_of_key(container: Any, key: Any) -> tuple[int, int]:
    """Return the (line, column) of a key of a mapping."""
    line, column = container.lc.key(key)
    return line + 1, column + 1
