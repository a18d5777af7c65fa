"""The commands of `gavel bus`, and who the caller is."""
