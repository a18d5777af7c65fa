"""Warnings about grants documents. They never refuse a deployment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gavel_rules.identity.grants import ANYONE, GROUP_PREFIX, CompiledGrants, Grant, is_any, read_source
from gavel_rules.identity.patterns import ANY, covers
from gavel_rules.identity.rights import PRODUCING_RIGHTS, RPCS_OF_RIGHT, Right
from gavel_rules.language.document.diagnostics import DocumentMessage, Messages, Path

if TYPE_CHECKING:
    from gavel.v1.decision_pb2 import ReviewPolicy

    from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet

# Pairs of grants that are compared: each pair takes microseconds.
PAIRS_MAX: Final = 200_000

# Rights of which each call has actions, and a subject.
CALLS_WITH_ACTIONS: Final = frozenset({"propose", "preflight", "execute", "review", "revoke", "deploy", "activate"})
CALLS_WITH_SUBJECTS: Final = frozenset({"propose", "preflight", "publish", "execute", "review", "revoke"})
# Rights whose events have actions, subjects and fact keys.
_WITH_ACTIONS: Final = CALLS_WITH_ACTIONS | {"operate"}
_WITH_SUBJECTS: Final = CALLS_WITH_SUBJECTS | {"operate"}
# Rights to read the events of all subjects.
_READ_RIGHTS: Final = frozenset({"read", "subscribe", "simulate", "replay"})
_WITH_FACTS: Final = frozenset({"publish"})

# Names that authentication refuses (gavel_server/identity/names.py). Names such as uid:1000 are those of users of Unix sockets.
_GAVEL_PREFIX: Final = "gavel:"
_ANONYMOUS: Final = "anonymous"
# Patterns that some bus, and some subject, can match.
_BUS_PATTERN: Final = re.compile(r"[a-z0-9*-]{1,512}")
_SUBJECT_PATTERN: Final = re.compile(r".*[/*].*")


def lint_grants(text: str, grants: CompiledGrants, rule_sets: Sequence[CompiledRuleSet] = (), bus: str = "") -> tuple[DocumentMessage, ...]:
    """Return the warnings about a document, by place. `grants` are its compiled grants.

    `rule_sets` are those that the grants stand beside: somebody must be allowed to propose, execute and review their actions. `bus` is the
    bus of the rule sets; "": any bus that the grants name.
    """
    messages = Messages()
    source = read_source(text, Messages())
    warnings: list[tuple[Path, str, str, str]] = []
    for grant in grants.grants:
        path: Path = ("grants", grant.number - 1)
        warnings += [(path, *warning) for warning in _own_warnings(grant)]
    warnings += [(("grants", grant.number - 1), *_unreachable(other)) for grant, other in _covered_grants(grants.grants)]
    if not any("grant" in grant.rights for grant in grants.grants):
        warnings.append(
            (
                ("grants",),
                "nobody-may-grant",
                "no grant gives the right grant, so nobody can replace these grants once they are in force",
                "give somebody the right grant",
            )
        )
    for rule_set in rule_sets:
        warnings += [(("grants",), *warning) for warning in compare_with_rule_set(grants, rule_set, bus)]
    for place, code, message, hint in warnings:
        messages.add(source.locate_key(place), code, message, hint)
    return messages.sorted()


def compare_with_rule_set(grants: CompiledGrants, rule_set: CompiledRuleSet, bus: str = "") -> list[tuple[str, str, str]]:
    """Return code, message and suggestion of a warning for each right that nobody has and that an action of a rule set needs.

    `bus` is the bus of the rule set; "": any bus that the grants name.
    """
    on_bus = [grant for grant in grants.grants if not bus or is_any(grant.buses, bus)]
    return [warning for check in (_missing_callers, _missing_reviewers) for warning in check(on_bus, rule_set)]


def _own_warnings(grant: Grant) -> list[tuple[str, str, str]]:
    warnings: list[tuple[str, str, str]] = []
    number, rights = grant.number, grant.rights
    if not any(RPCS_OF_RIGHT[right] for right in rights):
        message = f"grant {number} permits nothing: no call of this release needs {' or '.join(sorted(rights))}"
        warnings.append(("permits-nothing", message, "remove it, or add rights"))
    producing = rights & PRODUCING_RIGHTS - {"preflight"}
    if producing and grant.producer_types is None and grant.producer_ids is None:
        message = f"grant {number} lets its callers {' and '.join(sorted(producing))} in the name of every producer"
        warnings.append(("any-producer", message, "add produce: {types: [...], ids: [...]}"))
    for key, restricts, needed in (
        ("produce", grant.producer_types is not None or grant.producer_ids is not None, PRODUCING_RIGHTS),
        ("actions", grant.actions is not None, _WITH_ACTIONS),
        ("subjects", grant.subjects is not None, _WITH_SUBJECTS),
        ("facts", grant.facts is not None, _WITH_FACTS),
    ):
        if restricts and not rights & needed:
            message = f"grant {number}: {key} restricts none of its rights ({', '.join(sorted(rights))})"
            warnings.append(("restricts-nothing", message, f"remove {key}, or grant one of {', '.join(sorted(needed))}"))
    warnings += _never_matching(grant)
    reading = sorted(rights & _READ_RIGHTS)
    if reading and grant.subjects is not None and rights & _WITH_SUBJECTS:
        message = f"grant {number}: subjects do not restrict {' and '.join(reading)}; its callers see the events of all subjects"
        warnings.append(
            ("reads-all-subjects", message, f"remove {' and '.join(reading)}, or give it in a grant of its own without subjects")
        )
    return warnings


def _never_matching(grant: Grant) -> list[tuple[str, str, str]]:
    """Return warnings of names that no caller has, and of patterns that no bus and no subject matches."""
    warnings: list[tuple[str, str, str]] = []
    for key, callers in (("to", grant.to), ("joins", grant.joins)):
        for name in callers:
            hint = ""
            if name == GROUP_PREFIX:
                hint = "name the group after group:"
            elif name.startswith(_GAVEL_PREFIX) or name == _ANONYMOUS:
                hint = "authentication gives no caller this name"
            elif ANY in name and name != ANYONE:
                hint = "names of callers and groups are not patterns; list them, or name a group"
            if hint:
                warnings.append(("no-such-caller", f"grant {grant.number}: {key} names {name!r}, which is no caller", hint))
    for key, patterns, form, meaning in (
        ("buses", grant.buses, _BUS_PATTERN, "names of buses have a-z, 0-9 and hyphens"),
        ("subjects", grant.subjects, _SUBJECT_PATTERN, "subjects are TYPE/ID, e.g. order/*"),
    ):
        warnings += [
            ("matches-nothing", f"grant {grant.number}: {key} has {pattern!r}, which matches nothing", meaning)
            for pattern in patterns or ()
            if not form.fullmatch(pattern)
        ]
    return warnings


def _missing_callers(grants: Sequence[Grant], rule_set: CompiledRuleSet) -> Iterator[tuple[str, str, str]]:
    """Yield a warning for each action of a rule set that no grant lets anybody propose, execute or review.

    Reviews that name groups are left to `_missing_reviewers`.
    """
    for action_type, action in rule_set.actions.items():
        rights = {right for grant in grants if is_any(grant.actions, action_type) for right in grant.rights}
        effects = {rule.effect for rule in action.rules}
        needed: list[Right] = ["propose"]
        if effects & {"approve", "review"}:
            needed.append("execute")
        if "review" in effects and not any(policy.groups for policy in _review_policies(action)):
            needed.append("review")
        missing = [right for right in needed if right not in rights]
        if missing:
            message = (
                f"no grant lets anybody {' or '.join(missing)} {action_type}, an action of rule set {rule_set.policy_id} version "
                f"{rule_set.version}"
            )
            yield "action-without-grant", message, f"grant somebody {' and '.join(missing)}, or correct the patterns in actions"


def _missing_reviewers(grants: Sequence[Grant], rule_set: CompiledRuleSet) -> Iterator[tuple[str, str, str]]:
    """Yield a warning for each group that reviews of a rule set name and that no grant lets review the action."""
    for action_type, action in rule_set.actions.items():
        policies = _review_policies(action)
        reviewing = {caller for grant in grants if "review" in grant.rights and is_any(grant.actions, action_type) for caller in grant.to}
        for group in sorted({group for policy in policies for group in (*policy.groups, *policy.escalate_to)}):
            if ANYONE in reviewing or f"{GROUP_PREFIX}{group}" in reviewing:
                continue
            uses = [
                verb
                for verb, is_used in (
                    ("asks it for reviews", any(group in policy.groups for policy in policies)),
                    ("escalates reviews to it", any(group in policy.escalate_to for policy in policies)),
                )
                if is_used
            ]
            message = (
                f"no grant lets {GROUP_PREFIX}{group} review {action_type}, but rule set {rule_set.policy_id} version {rule_set.version} "
                f"{' and '.join(uses)}"
            )
            hint = f"grant {GROUP_PREFIX}{group} the right review, unless other grants name its members one by one"
            yield "group-may-not-review", message, hint


def _review_policies(action: CompiledAction) -> list[ReviewPolicy]:
    return [*filter(None, (action.review_policy,)), *action.review_policies.values()]


def _unreachable(other: Grant) -> tuple[str, str, str]:
    return "unreachable-grant", f"grant {other.number} allows all that this grant allows", "remove one of them"


def _covered_grants(grants: Sequence[Grant]) -> list[tuple[Grant, Grant]]:
    """Return the grants that another one covers, each with the first such one. Of equal grants the later one is covered."""
    covered_grants: list[tuple[Grant, Grant]] = []
    pairs = 0
    for grant in grants:
        for other in grants:
            pairs += 1
            if pairs > PAIRS_MAX:
                return covered_grants
            if other is not grant and _covers(other, grant) and not (_covers(grant, other) and other.number > grant.number):
                covered_grants.append((grant, other))
                break
    return covered_grants


def _covers(wide: Grant, narrow: Grant) -> bool:
    return (
        (ANYONE in wide.to or {*narrow.to} <= {*wide.to})
        and narrow.rights <= wide.rights
        and (ANYONE in wide.joins or {*narrow.joins} <= {*wide.joins})
        and (wide.producer_types is None or (narrow.producer_types is not None and narrow.producer_types <= wide.producer_types))
        and all(
            _cover_all(of_wide, of_narrow)
            for of_wide, of_narrow in (
                (wide.buses, narrow.buses),
                (wide.producer_ids, narrow.producer_ids),
                (wide.actions, narrow.actions),
                (wide.subjects, narrow.subjects),
                (wide.facts, narrow.facts),
            )
        )
    )


def _cover_all(wide: Sequence[str] | None, narrow: Sequence[str] | None) -> bool:
    if wide is None:
        return True
    return narrow is not None and all(any(covers(one, pattern) for one in wide) for pattern in narrow)
