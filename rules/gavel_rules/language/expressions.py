"""Checking the expressions of one document: variables written out, and every mistake at the place where it was written.

An expression is checked for one action, with what is known at its place there. A mistake inside a variable is kept until all
expressions are checked, and then reported once, at the variable: with the actions for which it is one, where it is not for all.
"""

from __future__ import annotations

from gavel_rules.language.conditions import Condition, Environment
from gavel_rules.language.parts import RuleSetPart
from gavel_rules.language.source import Messages, Path, Source
from gavel_rules.language.variables import Expansion, Variables
from gavel_rules.language.vocabulary import spellable

_Mistake = tuple[str, int, str, str]  # variable, offset, code, message


class Expressions:
    """Checks a document's expressions. Call `finish` after the last."""

    def __init__(self, part: RuleSetPart, source: Source, messages: Messages) -> None:
        self._source = source
        self._messages = messages
        self._actions = sorted(getattr(part, "actions", {}))
        self._in_variables: dict[_Mistake, dict[str, str]] = {}  # action -> suggestion
        self._environments: list[Environment] = []
        self._unused: list[str] = []
        self._reported = 0  # mistakes, however often the same
        texts = {name: text for name, text in getattr(part, "variables", {}).items() if spellable(name)}
        written = source.data.get("variables") if isinstance(source.data, dict) else None
        unreadable = written.keys() - texts.keys() if isinstance(written, dict) else ()
        self._variables = Variables(texts, unreadable, self._report_variable)

    def note_environment(self, environment: Environment) -> None:
        """Say in what the conditions of an action are checked."""
        self._environments.append(environment)

    def check(self, environment: Environment, text: str | None, path: Path, result: str, action: str) -> Condition | None:
        """Return a checked expression, None where something is wrong with it, which is or will be reported.

        `text` is what stands at `path`; None: nothing readable, which has been reported with the document's form. `result` is
        the type that it should have, as for `Environment.check`.
        """
        if text is None:
            return None

        def report(offset: int, code: str, message: str, suggestion: str) -> None:
            self._messages.add(self._source.place_within(path, offset), code, message, suggestion)

        expansion = self._variables.expand(text, environment.scope, report)
        if expansion is None:
            return None

        def report_expanded(offset: int, code: str, message: str, suggestion: str) -> None:
            self._reported += 1
            variable, there = expansion.origin(offset)
            if variable:
                self._in_variables.setdefault((variable, there, code, message), {})[action] = suggestion
            else:
                report(there, code, message, suggestion)

        return environment.check(
            expansion.text,
            report_expanded,
            result,
            written=text,
            open_names=expansion.open_names,
            variables=self._variables.names,
            reported=self._reported,
        )

    def unused(self) -> list[str]:
        """Return the variables that no expression uses. Known after `finish`."""
        return self._unused

    def finish(self) -> None:
        """Check the variables that nothing uses, and report what is wrong in all of them."""
        self._unused = self._variables.unused()
        for name in self._unused:
            self._check_unused(name)
        for (variable, offset, code, message), suggestions in self._in_variables.items():
            named = sorted(suggestions)
            suggestion = suggestions[named[0]]
            if len(named) < len(self._actions):
                more = f" and {len(named) - 3} more" if len(named) > 3 else ""
                self._report_variable(variable, offset, code, f"{message}, for {', '.join(named[:3])}{more}", suggestion)
            else:
                self._report_variable(variable, offset, code, message, suggestion)

    def _check_unused(self, name: str) -> None:
        """Check a variable as the conditions of the actions would, guards aside: whoever uses it may guard it.

        It is wrong if it is so for each action; one action's words will do.
        """
        mistakes: dict[_Mistake, str] = {}
        for environment in self._environments:
            mistakes.clear()
            expansion = self._variables.expand(name, environment.scope, _ignore)
            if expansion is None:
                return  # it reads what is known elsewhere only

            def report(offset: int, code: str, message: str, suggestion: str, expansion: Expansion = expansion) -> None:
                if code != "unguarded-optional":
                    mistakes[*expansion.origin(offset), code, message] = suggestion

            environment.check(expansion.text, report, "")
            if not mistakes:
                return
        for mistake, suggestion in mistakes.items():
            self._in_variables[mistake] = dict.fromkeys(self._actions, suggestion)

    def _report_variable(self, variable: str, offset: int, code: str, message: str, suggestion: str) -> None:
        self._messages.add(self._source.place_within(("variables", variable), offset), code, message, suggestion)


def _ignore(offset: int, code: str, message: str, hint: str) -> None:
    """Drop a report."""
