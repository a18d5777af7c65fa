"""What each kind of event changes in the tables: `apply` finds the transition of an event."""
