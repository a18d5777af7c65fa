"""Upstream servers: their connections, the definitions of their tools, and the pins of the definitions."""
