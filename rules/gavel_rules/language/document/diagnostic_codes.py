"""The codes of the compiler's diagnostics, with their meanings.

Codes are for programs and never change; the words of a message may. docs/rule-language.md lists every code with an example that a
test compiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MISTAKES: Final[Mapping[str, str]] = {
    "bad-character": "A text holds a character that no event can carry: NUL, a control character or a lone surrogate.",
    "bad-literal": "A regular expression, time or duration is a literal and not valid.",
    "bad-name": "A name, key or version does not have the required form, or is not an identifier.",
    "bad-number": "A number is not a plain decimal, or a double does not hold it exactly.",
    "cel-error": "CEL refuses the expression for a reason without a code of its own.",
    "cel-syntax": "The expression is not valid CEL.",
    "costly-decision": "One decision of an action may take more than `DECISION_STEPS_MAX`. A server refuses the document; "
    "`gavel rules lint` warns.",
    "document-too-long": "The text is longer than `DOCUMENT_BYTES_MAX`, or has more than `DOCUMENT_PARTS_MAX` keys and values.",
    "duplicate-derivation": "Two derivations give the same key and subject for one action and status.",
    "duplicate-id": "Two rules, or two derivations, have the same id.",
    "duplicate-key": "A mapping has the same key twice.",
    "duplicate-name": "An imported document declares a name that the document, or another imported one, has too.",
    "duplicate-priority": "Two rules of an action have the same priority.",
    "engine-disagreement": "The two engines disagree on a generated case, or one of them fails: a bug in Gavel, "
    "found before the document can decide anything.",
    "hidden-input": "The expression would read something that is not in the log.",
    "missing-key": "A required key is missing.",
    "missing-reason-code": "A rule that rejects or asks for a review has no reason_code.",
    "more-mistakes": "The number of further mistakes after the first `MESSAGES_MAX`.",
    "needless-has": "`has()` tests a value that is always present.",
    "non-string-key": "A key of a mapping is not a string.",
    "not-bundled": "A document is imported, but the text does not hold it.",
    "not-imported": "The text holds a document that nothing imports.",
    "not-a-subject": "The subject of a fact is a literal and not a valid subject.",
    "not-a-value": "The name is a group of values, such as `facts`, not a value.",
    "not-bool": "A condition does not give a boolean.",
    "not-double": "A score does not give a double.",
    "not-scalar": "A derivation does not give a string, number or boolean.",
    "not-string": "A conflict key or a subject does not give a string.",
    "not-supported": "Gavel does not support this part of CEL.",
    "out-of-range": "A number is too small or too large, or a text or list too short or too long.",
    "reserved-name": "The name, id or key is reserved for Gavel.",
    "reserved-reason-code": "The reason code is reserved for Gavel.",
    "schema-invalid": "The params schema violates JSON Schema, or has a regular expression that is not linear-time.",
    "schema-keyword": "The params schema has a keyword that JSON Schema 2020-12 does not know, or that Gavel does not support.",
    "schema-not-object": "The params schema is not of type object.",
    "schema-reference": "A reference of the params schema leaves the schema, recurses, or names no part of it.",
    "schema-too-large": "The params schema, with references followed, has more than `SCHEMA_PARTS_MAX` parts.",
    "shadowed-name": "A variable of the document or of a macro has a name that already has a meaning.",
    "shared-parts-disagree": "Two shared parts that an action uses give a key different values.",
    "subject-cycle": "The subject of a fact depends on that fact, directly or through others.",
    "too-complex": "An expression or an action's rules exceed a limit: `COMPREHENSIONS_MAX`, `EXPANDED_LENGTH_MAX`, `CHAINS_MAX`, "
    "`SLOTS_MAX`, or the depth of nesting.",
    "too-costly": "Evaluating one expression, or all of an action, may take more than `EXPRESSION_STEPS_MAX` or `ACTION_STEPS_MAX`.",
    "too-deep": "The document is nested deeper than `DOCUMENT_DEPTH_MAX` levels.",
    "too-large": "The document and its canonical form together exceed the size of an event.",
    "too-many-rules": "An action has more than `RULES_PER_ACTION_MAX` rules.",
    "type-error": "An operator, function or param is given values of types that it does not accept.",
    "undeclared-action": "A rule or derivation names an action that is not declared under `actions`.",
    "unguarded-optional": "A value that may be absent is read without a guard.",
    "unknown-function": "There is no such function.",
    "unknown-key": "There is no such key at this place.",
    "unknown-name": "An expression uses a name that does not exist or is not in scope.",
    "unknown-value": "The key does not accept this value.",
    "untyped-param": "An expression reads a param to which the schema gives no single type.",
    "unwanted-reason-code": "A rule that approves has a reason_code.",
    "unwanted-review": "A rule that approves or rejects says who resolves its review.",
    "variable-cycle": "A variable depends on itself, directly or through others.",
    "wrong-digest": "A bundled document is not the one that its digest names.",
    "wrong-type": "The key does not accept values of this type.",
    "yaml-anchor": "Anchors and aliases of YAML are not supported.",
    "yaml-syntax": "The text is not valid YAML.",
    "yaml-tag": "Tags of YAML are not supported.",
}

# Warnings never refuse a deployment.
WARNINGS: Final[Mapping[str, str]] = {
    "constant-never-used": "No expression uses a constant.",
    "contest-outlasts-fact": "A fact is stale before a contest of the action can close.",
    "counter-differs": "A retry_after asks for room in another counter, or in another group, than its rule reads.",
    "counter-never-read": "No rule, no score and no derivation reads a counter.",
    "fact-never-read": "No rule, no subject and no derivation reads a declared fact.",
    "key-differs": "A counter is read only with keys that its groups never have, for example a counter by trace read for a producer.",
    "limit-differs": "A retry_after has another amount or limit than its rule, or its rule refuses while the counter is too small.",
    "needless-escalation": "An escalation of reviews lets nobody vote who could not before.",
    "never-approves": "No rule approves an action or requests a review, and the action is no compensation.",
    "never-equals": "An expression of a counter compares a name with a value that no counted event has.",
    "never-escalates": "Reviews name groups to escalate to, but no time after which they are escalated.",
    "not-analysed": "An action or a rule was not analysed in full; the message says why.",
    "overlapping-rules": "A rule approves a case that a lower rule would reject or send to review.",
    "threshold-too-exact": "A counter is compared with a number that it never equals.",
    "shared-never-used": "No action uses a shared part.",
    "unguarded-result": "A counter reads a field of a report's result that the report may lack.",
    "unreachable-rule": "The rules above a rule decide all its cases, or no case fulfils its condition.",
    "variable-never-used": "No expression uses a variable.",
    "window-in-seconds": "The window of a counter is odd in milliseconds and round in seconds.",
}
