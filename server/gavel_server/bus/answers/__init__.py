"""The answers to callers: when each gets its answer, and what it waits for."""
