"""Commands that read and change the rule sets of a server."""
