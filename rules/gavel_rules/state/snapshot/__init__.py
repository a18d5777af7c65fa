"""A state as a `gavel.internal.v1.StateSnapshot`, and back: `encoding` and `decoding` are inverse. Both are pure."""
