"""Compilation of untrusted rule set documents in a child process."""
