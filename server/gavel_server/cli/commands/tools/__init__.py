"""Commands of the registry of tools."""
