"""Every code that the compiler of rule sets has for a mistake or a warning, with what it means.

Codes are for machines and do not change; the words of a message may. docs/rule-language.md lists them all, each with an example
that a test compiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MISTAKES: Final[Mapping[str, str]] = {
    "bad-character": "A text holds a character that Gavel takes nowhere: NUL, a control character or a lone surrogate.",
    "bad-literal": "A regular expression, time or length of time that is written out is none.",
    "bad-name": "A name, key or version is not of the form that it must have, or expressions could not spell it.",
    "bad-number": "A number is not a plain decimal, or a double would not hold it exactly.",
    "cel-error": "CEL refuses the expression for a reason that has no code of its own.",
    "cel-syntax": "The expression is not CEL.",
    "document-too-long": "The text is over `DOCUMENT_BYTES_MAX`, or has more than `DOCUMENT_PARTS_MAX` keys and values.",
    "duplicate-derivation": "Two derivations give one key for the same action and status.",
    "duplicate-id": "Two rules, or two derivations, have one id.",
    "duplicate-key": "A mapping has the same key twice.",
    "duplicate-priority": "Two rules of an action have one priority.",
    "engine-disagreement": "The two engines disagree on a generated case, or one of them fails: a fault of Gavel's, found before it can "
    "decide anything.",
    "hidden-input": "The expression would read something outside of the log.",
    "missing-key": "A key that is required is not there.",
    "missing-reason-code": "A rule that rejects or asks for a review has no reason_code.",
    "more-mistakes": "The last row, where a document has more than `MESSAGES_MAX` mistakes: how many there are besides.",
    "needless-has": "`has()` asks for something that is always there.",
    "non-string-key": "A key of a mapping is not a string.",
    "not-a-subject": "The subject of a fact is written out and is none.",
    "not-a-value": "A name stands for a group of values, not for one.",
    "not-bool": "A condition does not give a boolean.",
    "not-double": "A score does not give a double.",
    "not-scalar": "A derivation does not give a string, number or boolean.",
    "not-string": "A conflict key or a subject does not give a string.",
    "not-supported": "A part of CEL that Gavel does not take.",
    "out-of-range": "A number is too small or too large, or a text or list too short or too long.",
    "reserved-name": "The name, id or key is Gavel's own.",
    "reserved-reason-code": "The reason code is Gavel's own.",
    "schema-invalid": "The params schema breaks JSON Schema's own rules, or a regular expression in it is not linear-time.",
    "schema-keyword": "The params schema has a keyword that JSON Schema 2020-12 does not know, or that Gavel does not support.",
    "schema-not-object": "The params schema is not of type object.",
    "schema-reference": "A reference of the params schema leaves it, recurses, or names nothing.",
    "schema-too-large": "The params schema, references followed, has more than `SCHEMA_PARTS_MAX` parts.",
    "shadowed-name": "A variable, or the variable of a macro, is named like something that has a meaning already.",
    "subject-cycle": "The subject of a fact takes that very fact, at once or by way of others.",
    "too-complex": "An expression or an action's rules are over a limit: "
    "`COMPREHENSIONS_MAX`, `EXPANDED_LENGTH_MAX`, `CHAINS_MAX`, `SLOTS_MAX`, or nested too deep.",
    "too-costly": "Evaluating an expression, or all of an action's, may take more than `EXPRESSION_STEPS_MAX` or `ACTION_STEPS_MAX`.",
    "too-deep": "The document is nested deeper than `DOCUMENT_DEPTH_MAX` levels.",
    "too-large": "The document and its canonical form do not fit into one event.",
    "too-many-rules": "An action has more than `RULES_PER_ACTION_MAX` rules.",
    "type-error": "An operator, function or param is given values of types that it does not take.",
    "undeclared-action": "A rule or derivation names an action that is not declared under `actions`.",
    "unguarded-optional": "Something that may be absent is read where nothing makes sure that it is there.",
    "unknown-function": "There is no such function.",
    "unknown-key": "There is no such key at this place.",
    "unknown-name": "An expression names something that is not there, or not known at its place.",
    "unknown-value": "The value is none of those that the key takes.",
    "untyped-param": "A param is read to which the schema gives no single type.",
    "unwanted-reason-code": "A rule that approves has a reason_code.",
    "variable-cycle": "A variable uses itself, at once or by way of others.",
    "wrong-type": "A value is of another type than the key takes.",
    "yaml-anchor": "Anchors and aliases of YAML are not supported.",
    "yaml-syntax": "The text is not YAML.",
    "yaml-tag": "Tags of YAML are not supported.",
}

# They never refuse a deployment.
WARNINGS: Final[Mapping[str, str]] = {
    "contest-outlasts-fact": "Evidence is too old by the time that a contest closes.",
    "fact-never-read": "No rule and no subject reads a declared fact.",
    "never-approves": "No rule approves an action.",
    "not-analysed": "An action could not be looked at in full, and why.",
    "overlapping-rules": "A rule approves a case that a lower one would refuse or send to a person.",
    "unreachable-rule": "No case is left to a rule by those above it, or none fulfils its condition.",
    "no-versions": "A version policy has no versions to compare with.",
    "variable-never-used": "No expression uses a variable.",
}
