"""Compiles in a thread the rule set that the next event of a log needs.

A log is applied and recomputed in the event loop's thread. A large rule set takes a second to compile and would block the loop.
Before an activation is applied, and before a deployment is recomputed, this module therefore compiles the rule set in another
thread. A document that does not compile here fails again, with a report, where the event is handled.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.kinds import SYSTEM_FACT_KEY
from gavel_rules.language.rule_set import CompiledRuleSet, DocumentError, compile_rule_set
from gavel_rules.state.state import State
from google.protobuf.message import DecodeError

from gavel_server.compile.compiler import compile_in_thread, ensure_compiled

# Bytes that these events contain. Other events that contain them are parsed in vain.
_ACTIVATION_KEY: Final = SYSTEM_FACT_KEY["RuleSetActivated"].encode()
_DEPLOYMENT_KEY: Final = SYSTEM_FACT_KEY["RuleSetDeployed"].encode()


class Precompiler:
    """Call `before` with each event before it is handled. `documents`: deployments are recomputed, not only applied."""

    def __init__(self, *, documents: bool = False) -> None:
        self._documents = documents
        self._document: tuple[str, CompiledRuleSet] | None = None

    def before(self, state: State, envelope_bytes: bytes) -> Awaitable[None] | None:
        """Return the compilation that the state's next event needs, for the caller to await; None for nearly all events."""
        if _ACTIVATION_KEY in envelope_bytes or (self._documents and _DEPLOYMENT_KEY in envelope_bytes):
            return self._compile(state, envelope_bytes)
        return None

    async def _compile(self, state: State, envelope_bytes: bytes) -> None:
        """Compile the rule set that an event needs, if it is not cached."""
        try:
            fact = Envelope.FromString(envelope_bytes).fact
            match fact.WhichOneof("system"):
                case "rule_set_activated":
                    deployed = state.rule_sets.get((fact.rule_set_activated.policy_id, fact.rule_set_activated.version))
                    if deployed is not None:
                        await ensure_compiled(deployed)
                case "rule_set_deployed" if self._documents:
                    text = fact.rule_set_deployed.document
                    self._document = text, await compile_in_thread(text)
        except (DecodeError, DocumentError):
            return

    def compile_document(self, text: str) -> CompiledRuleSet:
        """Return the rule set of a document, from `before` if that compiled it. Raises DocumentError."""
        document, self._document = self._document, None
        return document[1] if document is not None and document[0] == text else compile_rule_set(text)
