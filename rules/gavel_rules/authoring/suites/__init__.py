"""Test suites of rule sets: reading, running, comparing and coverage (docs/rule-tests.md)."""
