"""The keys of a case and of its parts, read from the models: for columns of tables and for suggestions."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Final, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gavel_rules.authoring.suites.models import CasePart
from gavel_rules.language.document.diagnostics import Path


def part_fields(part: object) -> Mapping[str, FieldInfo]:
    """Return the fields of a part of a case; none if the type is not a model."""
    return part.model_fields if isinstance(part, type) and issubclass(part, BaseModel) else {}


def part_below(part: object, key: str) -> object:
    """Return the type of the value under a key of a part; for a list or mapping, the type of its items."""
    fields = part_fields(part)
    if not fields:
        return get_args(part)[-1]
    annotation: object = fields[key].annotation
    alternatives = get_args(annotation)
    return next((one for one in alternatives if one is not NoneType), annotation) if NoneType in alternatives else annotation


def keys_beside(path: Path) -> list[str]:
    """Return the keys that a case allows at the place of an unknown key, sorted."""
    part: object = CasePart
    for step in path[:-1]:
        part = part_below(part, str(step))
    return sorted(part_fields(part))


# The columns that a table may have: the parts of a case, and the keys of the parts that are models.
COLUMNS: Final = frozenset(
    {
        *CasePart.model_fields,
        *(f"{name}.{key}" for name in CasePart.model_fields for key in part_fields(part_below(CasePart, name))),
    }
)
