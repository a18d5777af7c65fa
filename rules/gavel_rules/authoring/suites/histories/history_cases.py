"""Histories as cases of suites: a past, a sample proposal, and the report of its execution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import ValidationError

from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.suites.histories.earlier_facts import EarlierFacts
from gavel_rules.authoring.suites.models import CasePart, EarlierCase
from gavel_rules.language.engines.case import Proposer
from gavel_rules.language.rule_set import CompiledAction


class Earlier(NamedTuple):
    """The earlier proposals of a history: alike but for `numbered`, all at one age before the last one, in milliseconds."""

    proposals: int
    age_ms: int
    params: Mapping[str, object]
    subject: str
    producer: str  # id
    status: str  # of the report of each execution; "": not carried out
    result: Mapping[str, Any]  # of each execution
    numbered: str = ""  # "subject", "producer.id" or "params.NAME": the text to which each proposal but the first adds its number

    def values(self, number: int) -> tuple[str, str, Mapping[str, object]]:
        """Return subject, producer and params of a proposal, counted from 0."""
        suffix = str(number + 1) if number else ""
        subject = self.subject + suffix if self.numbered == "subject" else self.subject
        producer = self.producer + suffix if self.numbered == "producer.id" else self.producer
        params = {name: f"{value}{suffix}" if self.numbered == f"params.{name}" else value for name, value in self.params.items()}
        return subject, producer, params


class Past(NamedTuple):
    """What happens before the last proposal of a history."""

    proposals: Earlier | None = None
    facts: tuple[EarlierFacts, ...] = ()


class History(NamedTuple):
    """A history: a past, a sample proposal, and both with the report of its execution as a case."""

    part: CasePart
    past: Past
    sample: SampleCase


class HistoryCases:
    """Writes histories of an action as cases. `values_of_many` has a value of each fact of many subjects, by name."""

    def __init__(self, actions: tuple[CompiledAction, CompiledAction], values_of_many: Mapping[str, list[object]]) -> None:
        self._actions = actions
        self._values_of_many = values_of_many

    def history(self, sample: SampleCase, past: Past, report: Mapping[str, Any] | None) -> History | None:
        """Return a history; None if no suite can have one of its parts."""
        case = sample.case
        earlier = past.proposals
        producer = {"id": case.producer_id, "version": case.producer_version, "type": case.producer_type, "groups": [*case.producer_groups]}
        estimates = {"risk": case.risk, "cost": case.cost, "confidence": case.confidence, "priority": case.priority}
        now = datetime.fromtimestamp(case.now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        others = [earlier.values(number) for number in range(earlier.proposals)] if earlier is not None else []
        cited = self._cited_facts(sample, [(case.subject, sample.params), *((subject, params) for subject, _, params in others)])
        data: dict[str, Any] = {
            "now": now,
            "action": self._actions[0].action_type,
            "subject": case.subject,
            "producer": producer,
            "params": dict(sample.params),
            "proposal": estimates,
            "facts": {**_counted_facts(past.facts), **cited},  # the former are recorded first, if both are recorded now
            "cites": [*cited],
            "expect": {"outcome": "APPROVED"},
        }
        if report is not None:
            data["execution"] = dict(report)
        if earlier is not None:
            one = {"age_ms": earlier.age_ms, "subject": earlier.subject, "producer": {**producer, "id": earlier.producer}}
            one.update(action=self._actions[0].action_type, params=dict(earlier.params), proposal=estimates)
            if earlier.status:
                one["execution"] = {"status": earlier.status, "result": dict(earlier.result)}
            data["earlier"] = [one]
        try:
            part = CasePart.model_validate(data)
        except ValidationError:
            return None
        proposals: list[EarlierCase] = []  # may be more than the cases of suites have
        for subject, producer_id, params in others:
            (first,) = part.earlier
            proposer = first.producer.model_copy(update={"id": producer_id})
            proposals.append(first.model_copy(update={"subject": subject, "producer": proposer, "params": params}))
        return History(part.model_copy(update={"earlier": proposals}), past, sample)

    def _cited_facts(self, sample: SampleCase, proposals: Iterable[tuple[str, Mapping[str, object]]]) -> dict[str, dict[str, Any]]:
        """Return the facts that proposals cite, by a name. Each proposal is given by its subject and its params."""
        facts: dict[str, dict[str, Any]] = {}
        for subject, params in proposals:
            for fact in self._evidence(sample, subject, params):
                facts[f"{fact['key']} of {fact['subject']} from {fact.get('source', 'any')}"] = fact
            if not sample.facts:  # every proposal cites some fact about its subject
                facts[f"a note on {subject}"] = {"key": "history.note", "subject": subject, "value": True}
        return facts

    def _evidence(self, sample: SampleCase, subject: str, params: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        """Yield the facts that a proposal with these params needs under either version, as suites write them, with the sample's values."""
        declared = {fact.name: (fact, action) for action in self._actions for fact in action.facts}
        case = sample.case
        proposer = Proposer(case.producer_type, case.producer_id, case.producer_version, case.producer_groups)
        for name, value in sample.facts.items():
            fact, action = declared[name]
            row = {"key": fact.key, "tier": fact.min_trust, **({"source": min(fact.sources)} if fact.sources else {})}
            if fact.subjects:
                template = action.subject_templates[fact.subjects]
                subjects = template.subjects(action.typed_params(dict(params)), case.facts, subject, fact.subjects_max, proposer) or []
                values = value if isinstance(value, list) and value else self._values_of_many.get(name, [])
                # A sample has any number of values, a proposal needs one for each of its subjects.
                for number, about in enumerate(subjects if values else ()):
                    yield {**row, "value": values[min(number, len(values) - 1)], "subject": about}
                continue
            about = subject
            if fact.subject:
                about = (
                    action.subject_templates[fact.subject].subject(action.typed_params(dict(params)), case.facts, subject, proposer)
                    or subject
                )
            yield {**row, "value": value, "subject": about}


def _counted_facts(groups: Iterable[EarlierFacts]) -> dict[str, dict[str, Any]]:
    """Return earlier facts as suites write them, by a name."""
    facts: dict[str, dict[str, Any]] = {}
    for group in groups:
        row = {"key": group.key, "subject": group.subject, "source": group.source, "tier": group.tier, "age_ms": group.age_ms}
        facts.update((f"counted {len(facts) + number}", {**row, "value": group.value}) for number in range(group.facts))
    return facts
