"""`gavel rules lint`: checks rule sets and their test suites, without a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from gavel_server.cli.errors import EXIT_INVALID
from gavel_server.cli.options import Debug, JsonReport, RulePaths

if TYPE_CHECKING:
    from gavel_server.cli.rule_files import FileCheck


def lint(paths: RulePaths, as_json: JsonReport = False, debug: Debug = False) -> None:
    """Check rule sets and their test suites.

    Also checks that rule sets that share an action agree on its settings. Prints each mistake as file:line:column: code: message, and exits
    with 2 if there is one. Warnings do not change the exit status.
    """
    from gavel_server.cli import rule_files
    from gavel_server.cli.rendering import lint_report, output

    checks = warn_of_disagreements(rule_files.check_file(file) for file in rule_files.find_files(paths))
    if as_json:
        output.print_report({"files": [lint_report.check_json(check) for check in checks]})
    else:
        for line in lint_report.check_lines(checks):
            output.print_line(line)
    if any(check.invalid for check in checks):
        raise typer.Exit(EXIT_INVALID)


def warn_of_disagreements(checks: Iterable[FileCheck]) -> list[FileCheck]:
    """Return the checks with a warning for each setting of an action on which two rule sets disagree.

    Each rule set is compared with those before it, and of several versions of one rule set with the newest. These are warnings
    because the server deploys such rule sets and only refuses to activate them together; a disagreement may be intended, e.g. while
    a setting changes in all of them.
    """
    from gavel_rules.language.document.diagnostics import Messages
    from gavel_rules.language.document.source import Source
    from gavel_rules.language.rule_set import DocumentMessage
    from gavel_rules.language.shared_action_settings import DISAGREEMENTS_NAMED_MAX, find_disagreements

    results: list[FileCheck] = []
    newest: dict[str, FileCheck] = {}
    for check in checks:
        rule_set = check.rule_set
        if rule_set is None:
            results.append(check)
            continue
        source = Source(rule_set.document, Messages())
        others = [other.rule_set for other in newest.values() if other.rule_set is not None]
        conflicts = find_disagreements(rule_set, others, compares_counters=True)
        warnings = [
            DocumentMessage(
                *source.locate_key(("actions", row.action_type)),
                "rule-sets-disagree",
                f"{row.setting} of {row.action_type} is {row.value}, but {row.other_value} in {newest[row.other_policy_id].file}",
                "rule sets that share an action must agree on this setting to be in force together; give it the same value in all of them",
            )
            for row in conflicts[:DISAGREEMENTS_NAMED_MAX]
        ]
        results.append(check._replace(warnings=tuple(sorted((*check.warnings, *warnings)))))
        known = newest.get(rule_set.policy_id)
        if known is None or known.rule_set is None or known.rule_set.version < rule_set.version:
            newest[rule_set.policy_id] = check
    return results
