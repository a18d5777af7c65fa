"""Commands that prove and verify: `gavel proof`, `gavel verify`, `gavel notary`."""
