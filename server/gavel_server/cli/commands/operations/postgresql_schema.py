"""`gavel postgresql-schema`: what a PostgreSQL needs to hold logs."""

from __future__ import annotations


def postgresql_schema() -> None:
    """Print the schema of logs for a PostgreSQL, with its roles and rights.

    Install it once in each database: gavel postgresql-schema | psql --single-transaction URL. It can be installed again. Servers log in as
    gavel_server, which appends events and can neither change nor remove them; give the roles passwords as your PostgreSQL requires.
    """
    from gavel_server.cli.rendering import output
    from gavel_server.log.postgresql.schema import schema_sql

    output.print_line(schema_sql().rstrip())
