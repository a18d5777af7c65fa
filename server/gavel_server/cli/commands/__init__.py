"""The commands of `gavel`, a module each, in folders by purpose; `log` and `review` are groups of commands in one module."""
