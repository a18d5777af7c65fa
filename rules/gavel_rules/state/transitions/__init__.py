"""The changes of the tables by each kind of event: `apply` finds the transition of an event."""
