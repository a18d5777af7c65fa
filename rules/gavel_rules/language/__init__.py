"""The rule language: from an author's text to a compiled rule set that both engines can evaluate, or to all its mistakes at once.

`document` reads and checks the form, `checking` the meaning, `conditions` and its neighbours the expressions; `lowering` makes
patterns of them for the Rete `network`, `reference` is the second engine, and `ruleset` is what arbitration sees of it all.
"""
