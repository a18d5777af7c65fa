"""What the core raises. A refusal by policy is a value and never stands here."""

from __future__ import annotations


class GavelRulesError(Exception):
    """Base of all errors of gavel_rules."""


class CaseError(GavelRulesError):
    """A case holds a value that its admission should have refused; the engines never see it."""


class NetworkFaultError(GavelRulesError):
    """The Rete engine broke its protocol. Its handle is dead; the next evaluation starts on a new one."""
