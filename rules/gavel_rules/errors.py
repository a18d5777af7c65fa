"""The exceptions of the core. A refusal by policy is a value, not an exception."""

from __future__ import annotations


class GavelRulesError(Exception):
    """Base of all errors of gavel_rules."""


class CaseError(GavelRulesError):
    """A case holds a value that admission should have rejected. The engines do not see it."""


class NetworkFaultError(GavelRulesError):
    """The Rete engine broke its protocol. Its handle is discarded; the next evaluation uses a new one."""


class EngineBuildError(GavelRulesError):
    """The Rete engine is missing, or was compiled without the flags that it needs; the message has the command that installs it."""
