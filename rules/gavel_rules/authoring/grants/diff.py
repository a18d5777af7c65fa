"""The differences between two versions of the grants: grants that only one of them has, and rights that callers lose or gain."""

from __future__ import annotations

from typing import NamedTuple

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
    before = {describe(grant) for grant in old.grants}
    after = {describe(grant) for grant in new.grants}
    rights_before, rights_after = _rights(old), _rights(new)
    return GrantsDiff(
        tuple(sorted(before - after)),
        tuple(sorted(after - before)),
        tuple(sorted(rights_before - rights_after)),
        tuple(sorted(rights_after - rights_before)),
    )


def describe(grant: Grant) -> str:
    """Return a grant as one line, its lists sorted."""
    parts = [f"to {', '.join(sorted(set(grant.to)))}", f"may {', '.join(sorted(grant.rights))}"]
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
            parts.append(f"{name} {', '.join(sorted(set(values)))}")
    return "; ".join(parts)


def _rights(grants: CompiledGrants) -> set[tuple[str, str]]:
    return {(caller, right) for grant in grants.grants for caller in grant.to for right in grant.rights}
