"""Commands that run a server, an executor, a fact derivation reactor or the demo."""
