"""Repeated requests: the same request gets its first answer, another one under the same event_id is refused."""
