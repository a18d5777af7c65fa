"""`gavel demo`: its server, its story and its timeline."""
