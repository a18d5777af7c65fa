"""Names of principals and groups: their limits, and the reserved names, which no credential may give."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from gavel_rules.limits import PRINCIPAL_GROUP_LENGTH_MAX, PRINCIPAL_GROUPS_MAX

from gavel_server.identity.errors import unauthenticated

NAME_CHARACTERS_MAX: Final = PRINCIPAL_GROUP_LENGTH_MAX
# `uid:` names users of this machine, `group:` stands for groups in grants, `gavel:` for the server itself.
RESERVED_PREFIXES: Final = ("uid:", "group:", "gavel:")
RESERVED_NAMES: Final = frozenset({"anonymous"})
# Characters without a glyph that Python counts as printable (Unicode's Default_Ignorable_Code_Point): two names would look alike.
_INVISIBLE: Final = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


def name_problem(name: object) -> str:
    """Return why a value cannot be a principal's name, or ""."""
    if not isinstance(name, str) or not name:
        return "is missing or not a text"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"is longer than {NAME_CHARACTERS_MAX} characters"
    if not name.isprintable() or name != name.strip() or _INVISIBLE.search(name):
        return "has characters that cannot be printed or seen, or spaces around it"
    if not unicodedata.is_normalized("NFC", name):
        return "is not in Unicode's normal form NFC"
    if name.startswith(RESERVED_PREFIXES) or name in RESERVED_NAMES:
        return f"is reserved; names must not begin with {', '.join(RESERVED_PREFIXES)} or be anonymous"
    return ""


def checked_name(name: object, noun: str) -> str:
    """Return a principal's name; `noun` describes it. Raises ServiceError UNAUTHENTICATED."""
    problem = name_problem(name)
    if problem or not isinstance(name, str):
        raise unauthenticated(f"{noun} {problem}")
    return name


def checked_groups(groups: object, noun: str) -> tuple[str, ...]:
    """Return groups, sorted and each once. Raises ServiceError UNAUTHENTICATED."""
    if groups is None:
        return ()
    if isinstance(groups, str):
        groups = [groups]
    if not isinstance(groups, list | tuple):
        raise unauthenticated(f"{noun} is not a list of texts")
    if len(groups) > PRINCIPAL_GROUPS_MAX:
        raise unauthenticated(f"{noun} has more than {PRINCIPAL_GROUPS_MAX} groups")
    for group in groups:
        if not isinstance(group, str) or not 0 < len(group) <= NAME_CHARACTERS_MAX or not group.isprintable():
            raise unauthenticated(f"{noun} has a group that is not a text of 1 to {NAME_CHARACTERS_MAX} printable characters")
    return tuple(sorted({*groups}))
