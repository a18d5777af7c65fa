"""The commands of `gavel`, a module each; a group's commands that share a noun (`log`, `review`) stand together."""
