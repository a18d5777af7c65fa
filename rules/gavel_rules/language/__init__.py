"""The rule language: compiles an author's text to a rule set that both engines can evaluate, or reports all its mistakes.

- `document` reads the text and checks its form.
- `cel` parses and checks expressions, and bounds their cost.
- `engines` evaluates conditions: the Rete network on lowered formulas, and CEL's own evaluator as the reference.
- `action_checker` checks the meaning of a document; `rule_set` is the compiled result that arbitration uses.
"""
