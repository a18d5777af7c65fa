"""The schema of logs in a database, which an operator installs; a server never changes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# The result of gavel.format_version().
FORMAT_VERSION: Final = 3
INSTALLATION: Final = "gavel postgresql-schema | psql --single-transaction URL"


def schema_sql() -> str:
    """Return the statements that install the schema; they can run again."""
    return (Path(__file__).parent / "schema.sql").read_text(encoding="utf-8")
