"""Pydantic models of a grants document: keys, types, names and limits (docs/security.md#grants).

Editors' schemas are generated from them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from gavel_rules.identity.rights import Right
from gavel_rules.language.document.models import DESCRIPTION_LENGTH_MAX, Name, Part
from gavel_rules.values import INTEGER_MAX

GRANTS_MAX: Final = 2_000
ITEMS_MAX: Final = 256
PATTERN_LENGTH_MAX: Final = 512

ProducerTypeName = Literal["sensor", "api", "database_snapshot", "agent", "executor", "system", "tool_runtime"]

Text = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]+$", min_length=1, max_length=PATTERN_LENGTH_MAX)]
# Names of principals may hold spaces and letters of any script, e.g. the subject of a certificate.
PrincipalName = Annotated[str, StringConstraints(min_length=1, max_length=PATTERN_LENGTH_MAX)]
Patterns = Annotated[list[Text], Field(min_length=1, max_length=ITEMS_MAX)]


class ProducePart(Part):
    """The producers that the caller may name in its events. A missing key allows every producer of the other key."""

    types: Annotated[list[ProducerTypeName], Field(min_length=1, max_length=ITEMS_MAX)] | None = None
    """Types of producers, e.g. agent."""
    ids: Patterns | None = None
    """Patterns of producer ids, e.g. "refund-*"."""


class GrantPart(Part):
    """One grant: what some callers may do. A missing key does not restrict."""

    to: Annotated[list[PrincipalName], Field(min_length=1, max_length=ITEMS_MAX)]
    """Callers: names of principals, "group:NAME" for the members of a group, or "*" for every authenticated caller."""
    may: Annotated[list[Right], Field(min_length=1, max_length=ITEMS_MAX)]
    """Rights, e.g. propose."""
    buses: Patterns | None = None
    """Patterns of buses."""
    produce: ProducePart | None = None
    """The producers that the callers may name."""
    actions: Patterns | None = None
    """Patterns of action types, for proposals, executions, reviews, revocations and rule sets."""
    subjects: Patterns | None = None
    """Patterns of subjects, for events about a subject."""
    facts: Patterns | None = None
    """Patterns of fact keys, for facts and observations."""
    joins: Annotated[list[PrincipalName], Field(min_length=1, max_length=ITEMS_MAX)] | None = None
    """Callers, as in `to`, in whose traces these callers may take part, by naming a cause there. Without it: none but their own."""
    description: Annotated[str, StringConstraints(max_length=DESCRIPTION_LENGTH_MAX)] | None = None
    """For people."""


class GrantsPart(Part):
    """Who may do what on a bus. Nothing is allowed that no grant allows."""

    gavel: Literal["v1"]
    """Version of the format."""
    name: Name
    """Name of the grants."""
    version: Annotated[int, Field(ge=1, le=INTEGER_MAX)]
    """Version of the document. A version never changes."""
    description: Annotated[str, StringConstraints(max_length=DESCRIPTION_LENGTH_MAX)] | None = None
    """For people."""
    grants: Annotated[list[GrantPart], Field(max_length=GRANTS_MAX)]
    """The grants. A call is allowed if one of them alone allows it."""
