"""The process itself: clock, logging, metrics, sockets and build information."""
