"""Generated histories: what happened before a proposal, and what two versions of a rule set make of it."""
