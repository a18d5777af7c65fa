"""Tools for authors of grants: lint, diff and tests."""
