"""`gavel rules upgrade`: rewrites rule sets in the latest version of the language."""

from __future__ import annotations

from pathlib import Path

import typer

from gavel_server.cli.errors import EXIT_INVALID
from gavel_server.cli.options import Debug, RulePaths


def upgrade(paths: RulePaths, debug: Debug = False) -> None:
    """Rewrite rule sets in the second version of the language.

    Comments and layout stay. A rule set gets the next version number, because a deployed version never changes. Both versions are compared
    on generated cases: one that would decide otherwise is not written. Standard input is rewritten to standard output.
    """
    from gavel_rules.authoring.upgrade import UpgradeError
    from gavel_rules.authoring.upgrade import upgrade as upgrade_document
    from gavel_rules.language.rule_set import DocumentError

    from gavel_server.cli import rule_files
    from gavel_server.cli.documents import STANDARD_INPUT, read_document, write_document
    from gavel_server.cli.rendering import output
    from gavel_server.cli.rule_files import InvalidFile

    mistakes: list[str] = []
    for file in rule_files.find_files(paths):
        if rule_files.is_suite(file):
            continue
        text = read_document(file)
        try:
            upgraded = upgrade_document(text)
        except DocumentError as error:
            mistakes += rule_files.mistake_lines([InvalidFile(file, error.messages)])
            continue
        except UpgradeError as error:
            mistakes.append(f"{file}: {error}")
            continue
        if file == STANDARD_INPUT:
            output.print_line(upgraded.rstrip("\n"))
        elif upgraded == text:
            output.print_note(f"{file} has the latest version of the language")
        else:
            write_document(Path(file), upgraded)
            output.print_note(f"{file} was upgraded and decides as before; review it and deploy it as a new version")
    for line in mistakes:
        output.print_note(line)
    if mistakes:
        raise typer.Exit(EXIT_INVALID)
