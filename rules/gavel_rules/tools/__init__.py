"""The registry of tools (constitution 004): what a tool is, who carries it out, and whether an agent may call it."""
