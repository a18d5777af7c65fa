"""The differences between two versions of the grants: grants that only one of them has, and rights that callers lose or gain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from gavel_rules.identity.grants import CompiledGrants, Grant


class GrantsDiff(NamedTuple):
    """The differences. Rights are lost or gained by a name, a group or "*" in any of its grants; `removed` and `added` show the details."""

    removed: tuple[str, ...]
    added: tuple[str, ...]
    lost: tuple[tuple[str, str], ...]  # (caller, right)
    gained: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return any(map(bool, self))


def diff_grants(old: CompiledGrants, new: CompiledGrants) -> GrantsDiff:
    """Return what differs between two versions. The order of grants, of lists, and descriptions make no difference."""
    before, after = set(map(_normalise, old.grants)), set(map(_normalise, new.grants))
    rights_before, rights_after = _rights(old), _rights(new)
    return GrantsDiff(
        tuple(sorted(map(describe, before - after))),
        tuple(sorted(map(describe, after - before))),
        tuple(sorted(rights_before - rights_after)),
        tuple(sorted(rights_after - rights_before)),
    )


def describe(grant: Grant) -> str:
    """Return a grant as one line, its lists sorted, and names in quotes that could be taken for several."""
    parts = [f"to {_join(grant.to)}", f"may {', '.join(sorted(grant.rights))}"]
    for name, values in (
        ("buses", grant.buses),
        ("producer types", grant.producer_types),
        ("producer ids", grant.producer_ids),
        ("actions", grant.actions),
        ("subjects", grant.subjects),
        ("facts", grant.facts),
        ("joins", grant.joins or None),
    ):
        if values is not None:
            parts.append(f"{name} {_join(values)}")
    return "; ".join(parts)


def _join(names: Iterable[str]) -> str:
    return ", ".join(json.dumps(name, ensure_ascii=False) if _AMBIGUOUS.search(name) else name for name in sorted(set(names)))


_AMBIGUOUS: Final = re.compile('[,;"]')


def _normalise(grant: Grant) -> Grant:
    """Return a grant without its place, and with its lists sorted: equal grants permit the same."""
    return grant._replace(
        number=0,
        to=_sorted(grant.to) or (),
        buses=_sorted(grant.buses),
        producer_ids=_sorted(grant.producer_ids),
        actions=_sorted(grant.actions),
        subjects=_sorted(grant.subjects),
        facts=_sorted(grant.facts),
        joins=_sorted(grant.joins) or (),
    )


def _sorted(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(sorted(set(names)))


def _rights(grants: CompiledGrants) -> set[tuple[str, str]]:
    return {(caller, right) for grant in grants.grants for caller in grant.to for right in grant.rights}
