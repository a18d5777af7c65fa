"""The MCP proxy: it stands between an MCP client and MCP servers, and lets Gavel decide about every call that has effects.

`gavel mcp proxy` runs it, `gavel mcp scaffold` writes its configuration and rules. docs/mcp.md leads from nothing to a governed agent.
`gavel-client[mcp]` brings what it needs.
"""
