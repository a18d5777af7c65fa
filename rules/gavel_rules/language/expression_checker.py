"""Checks the expressions of a document: expands their variables, and records each mistake where its author wrote it.

An expression is checked for one action, with the names in scope there. Mistakes inside a variable are held back until all
expressions are checked, then recorded once, at the variable. The message names the actions concerned, unless all are.
"""

from __future__ import annotations

from dataclasses import replace

from gavel_rules.language.cel.checker import CheckedExpression, Environment
from gavel_rules.language.cel.tokens import closing_offset
from gavel_rules.language.cel.variables import Expansion, Variables, constant_literal, is_literal
from gavel_rules.language.cel.vocabulary import is_spellable
from gavel_rules.language.cel.zones import encode_zone
from gavel_rules.language.document.diagnostics import Messages, Path
from gavel_rules.language.document.models import RuleSetPart, version_of, zones_of
from gavel_rules.language.document.source import Source

_Mistake = tuple[str, int, str, str]  # variable, offset, code, message


class ExpressionChecker:
    """Checks a document's expressions. Call `finish` after the last one."""

    def __init__(self, part: RuleSetPart, source: Source, messages: Messages) -> None:
        self._source = source
        self._messages = messages
        self._actions = sorted(getattr(part, "actions", {}))
        self._variable_mistakes: dict[_Mistake, dict[str, str]] = {}  # the suggestion by action
        self._environments: list[Environment] = []
        self._unused: list[str] = []
        self._reported = 0  # mistakes, repeated ones included
        texts = {name: text for name, text in getattr(part, "variables", {}).items() if is_spellable(name)}
        declared = source.composed.get("variables") if isinstance(source.composed, dict) else None
        unreadable = declared.keys() - texts.keys() if isinstance(declared, dict) else ()
        self._variables = Variables(texts, unreadable, self._report_variable, version_of(part), _literals(part))

    def add_environment(self, environment: Environment) -> None:
        """Add the environment of an action's conditions; unused variables are checked in each."""
        self._environments.append(environment)

    def check(
        self, environment: Environment, text: str | None, path: Path, result: str, action: str, *, is_shared: bool = False
    ) -> CheckedExpression | None:
        """Return the checked expression at `path`; None where it has a mistake, which is recorded now or by `finish`.

        `text` is None where the document's form was broken, and recorded, at this place. `result` is the type that the expression
        should have, as for `Environment.check`. `is_shared`: other expressions of the action share the values of its variables.
        """
        if text is None:
            return None

        def report(offset: int, code: str, message: str, suggestion: str) -> None:
            self._messages.add(self._source.locate_within(path, offset), code, message, suggestion)

        expansion = self._variables.expand(text, environment.scope, report)
        if expansion is None:
            return None

        def report_expanded(offset: int, code: str, message: str, suggestion: str) -> None:
            self._reported += 1
            variable, origin = expansion.origin(offset)
            if variable:
                self._variable_mistakes.setdefault((variable, origin, code, message), {})[action] = suggestion
            else:
                report(origin, code, message, suggestion)

        beginnings = expansion.beginnings()
        checked = environment.check(
            expansion.text,
            report_expanded,
            result,
            written=text,
            open_names=expansion.open_names,
            variables=self._variables.available(environment.scope),
            reported=self._reported,
            shared=[(start, name) for start, name in beginnings if not is_literal(name)] if is_shared else (),
        )
        if checked is None or not beginnings:
            return checked
        variables = tuple((start, closing_offset(expansion.text, start) + 1, name) for start, name in beginnings)
        return replace(checked, variables=variables)

    def finish(self) -> None:
        """Check the variables that no expression uses, and record the mistakes in all variables."""
        self._unused = self._variables.unused()
        for name in self._unused:
            self._check_unused(name)
        for (variable, offset, code, message), suggestions in self._variable_mistakes.items():
            actions = sorted(suggestions)
            suggestion = suggestions[actions[0]]
            if len(actions) < len(self._actions):
                more = f" and {len(actions) - 3} more" if len(actions) > 3 else ""
                self._report_variable(variable, offset, code, f"{message}, for {', '.join(actions[:3])}{more}", suggestion)
            else:
                self._report_variable(variable, offset, code, message, suggestion)

    def unused_variables(self) -> list[str]:
        """Return the variables that no expression uses. Call `finish` first."""
        return self._unused

    def _check_unused(self, name: str) -> None:
        """Check a variable in the conditions of each action. Missing guards are not mistakes: an expression that used it could add them.

        A mistake is recorded only if the variable has one in every action; the message is that of one action.
        """
        mistakes: dict[_Mistake, str] = {}
        for environment in self._environments:
            mistakes.clear()
            expansion = self._variables.expand(name, environment.scope, _ignore)
            if expansion is None:
                return  # it reads names that conditions do not have

            def report(offset: int, code: str, message: str, suggestion: str, expansion: Expansion = expansion) -> None:
                if code != "unguarded-optional":
                    mistakes[*expansion.origin(offset), code, message] = suggestion

            # In an environment of its own: counters that only this variable reads are not read by the action.
            environment.copy().check(expansion.text, report, "")
            if not mistakes:
                return
        for mistake, suggestion in mistakes.items():
            self._variable_mistakes[mistake] = dict.fromkeys(self._actions, suggestion)

    def _report_variable(self, variable: str, offset: int, code: str, message: str, suggestion: str) -> None:
        path: Path = tuple(variable.split(".")) if is_literal(variable) else ("variables", variable)
        self._messages.add(self._source.locate_within(path, offset), code, message, suggestion)


def _literals(part: RuleSetPart) -> dict[str, str]:
    """Return what constants, zones and calendars stand for, by path. Those with a mistake are left out."""
    literals = {f"constants.{name}": constant_literal(value) for name, value in getattr(part, "constants", {}).items()}
    encoded = {name: encode_zone(zone.offsets, zone.until) for name, zone in zones_of(part).items()}
    literals.update((f"zones.{name}", constant_literal(text)) for name, text in encoded.items() if text)
    literals.update((f"calendars.{name}", constant_literal(dates)) for name, dates in getattr(part, "calendars", {}).items())
    return {name: literal for name, literal in literals.items() if literal}


def _ignore(offset: int, code: str, message: str, hint: str) -> None:
    """Drop a report."""
