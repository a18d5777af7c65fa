"""Properties of derivations over history: the numbers are those of a recount of the log, and every log replays."""

from __future__ import annotations

import json
from typing import Any

from gavel_rules.events.timestamps import milliseconds
from gavel_rules.values import python_to_value, value_to_python
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.driver import ABORTED, ACTION, FAILED, PARTIAL, SOURCE, SUCCESS, TIMEOUT, Core, document

WINDOW_MS = 10_000
STATUSES = {"SUCCESS": SUCCESS, "FAILED": FAILED, "PARTIAL": PARTIAL, "TIMEOUT": TIMEOUT, "ABORTED": ABORTED}
FACTS: dict[str, Any] = {
    "status": {"key": "order.status", "type": "string", "max_age_ms": 1_000_000, "sources": [SOURCE]},
    "team": {"key": "order.team", "type": "string", "max_age_ms": 1_000_000},
}
PLAYS = st.lists(
    st.tuples(st.sampled_from(sorted(STATUSES)), st.sampled_from(["red", "blue"]), st.sampled_from([0, 1, 4_000, 9_999, 10_000])),
    min_size=1,
    max_size=6,
)


def rule_set() -> str:
    """Return a rule set in which every report derives, about its team, the number of reports within the window."""
    rules = [{"id": "all", "when": 'facts.status == "delivered"', "effect": "approve"}]
    data = json.loads(document(FACTS, rules, gavel="v2", retry={"max_attempts": 1}))
    data["counters"] = {"reports": {"of": "executions", "action": ACTION, "window_ms": WINDOW_MS}}
    data["derivations"] = [
        {
            "id": f"reports-{status.lower()}",
            "version": 1,
            "on": {"action": ACTION, "status": status},
            "key": "team.reports",
            "subject": '"team/" + facts.team',
            "value": "history.reports()",
        }
        for status in STATUSES
    ]
    return json.dumps(data)


RULES = rule_set()


@settings(max_examples=25, deadline=None)
@given(plays=PLAYS)
def test_numbers_are_those_of_a_recount(plays: list[tuple[str, str, int]]) -> None:
    """Each derived fact has the number of reports that a recount of the log finds in the window, its own included, about its team."""
    core = Core(RULES)
    reported_at_ms: list[int] = []
    for number, (status, team, pause_ms) in enumerate(plays):
        subject, trace_id = f"order/{number}", f"trace-{number}"
        cited = [core.fact("order.status", "delivered", subject=subject), core.fact("order.team", team, subject=subject)]
        params = python_to_value({"amount": 1}).struct_value
        decision = core.propose(cited, subject=subject, trace_id=trace_id, params=params, max_fact_age_ms=1_000_000)
        report = core.report(core.start(decision), STATUSES[status])
        reported_at_ms.append(milliseconds(report.recorded_at))
        fact = next(one for one in core.derive(report) if one.fact.key == "team.reports")
        counted = sum(1 for at_ms in reported_at_ms if at_ms + WINDOW_MS > core.now_ms)
        assert (f"team/{team}", counted) == (fact.subject, value_to_python(fact.fact.value))
        core.pass_time(pause_ms)
    core.prove()
