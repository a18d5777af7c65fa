"""Rule sets as files: the text that a deployment records."""

from __future__ import annotations

from pathlib import Path

from gavel_client.rpc.errors import RuleSetFileError


def load_rule_set(path: Path | str) -> str:
    """Return the text of a rule set's file with the documents that it imports, for `deploy_rule_set` and the like.

    Imported files are named relative to the file's folder. Raises RuleSetFileError if one is not the document that the rule set names,
    OSError if a file cannot be read, and ImportError if the file has imports and the core, `gavel-rules`, is not installed.
    """
    path = Path(path)
    text = _read(path)
    if "imports" not in text:
        return text
    try:
        from gavel_rules.authoring.bundle import BundleError, bundle
    except ImportError as error:
        raise ImportError("a rule set with imports needs the core; install it: pip install gavel-rules") from error
    try:
        return bundle(text, lambda file: _read(path.parent / file))
    except BundleError as error:
        raise RuleSetFileError(f"{path}: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RuleSetFileError(f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8") from error
