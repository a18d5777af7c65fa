"""How reads are answered: pages, parts of the log, and messages made from the state."""
