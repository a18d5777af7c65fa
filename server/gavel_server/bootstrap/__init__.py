"""The composition root: creates the parts of a server, and starts and stops them in order. Nothing is opened at import."""
