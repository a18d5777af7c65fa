"""The condition language: CEL's syntax tree, the checker, the names in scope, and worst-case cost."""
