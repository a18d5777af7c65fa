"""Commands that ask for a decision or record an event."""
