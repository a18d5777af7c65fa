"""How command output is rendered: text for people, JSON for programs."""
