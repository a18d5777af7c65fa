"""Tools: what agents may call directly, and the providers that carry the calls out (constitution 004)."""
