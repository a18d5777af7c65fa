"""The log in PostgreSQL: its schema, connections, checks of durability, and the log itself."""
