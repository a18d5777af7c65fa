"""Compiling beside the event loop what the next event of a log needs compiled.

Whoever applies or recomputes a log does so in one thread, and a large rule set takes a second to compile: for so long nothing
else would happen in the process. So before an event that puts a rule set in force is applied, and before one that deploys a
document is recomputed, the rule set is compiled in another thread and kept until it is needed. It is only ever sooner: what
cannot be compiled here is met again, and reported, where the event is handled.
"""

from __future__ import annotations

from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events import SYSTEM_FACT_KEY
from gavel_rules.language.ruleset import CompiledRuleSet, DocumentError, compile_rule_set
from gavel_rules.projection import State
from google.protobuf.message import DecodeError

from gavel_server.compiler import compile_in_thread, ready

# What the bytes of such an event hold; others may hold it too, and are then looked at in vain.
_ACTIVATED: Final = SYSTEM_FACT_KEY["RuleSetActivated"].encode()
_DEPLOYED: Final = SYSTEM_FACT_KEY["RuleSetDeployed"].encode()


class Precompiler:
    """Looks at each event before it is handled. `documents` says that deployments are recomputed and not only applied."""

    def __init__(self, *, documents: bool = False) -> None:
        self._documents = documents
        self._document: tuple[str, CompiledRuleSet] | None = None

    async def before(self, state: State, envelope_bytes: bytes) -> None:
        """Compile what the state's next event needs, if it needs anything that is not at hand."""
        if _ACTIVATED not in envelope_bytes and not (self._documents and _DEPLOYED in envelope_bytes):
            return
        try:
            fact = Envelope.FromString(envelope_bytes).fact
            match fact.WhichOneof("system"):
                case "rule_set_activated":
                    deployed = state.rule_sets.get((fact.rule_set_activated.policy_id, fact.rule_set_activated.version))
                    if deployed is not None:
                        await ready(deployed)
                case "rule_set_deployed" if self._documents:
                    text = fact.rule_set_deployed.document
                    self._document = text, await compile_in_thread(text)
        except (DecodeError, DocumentError):
            return

    def compile_document(self, text: str) -> CompiledRuleSet:
        """Return the rule set of a document, the one that `before` compiled if it is that. Raises DocumentError."""
        document, self._document = self._document, None
        return document[1] if document is not None and document[0] == text else compile_rule_set(text)
