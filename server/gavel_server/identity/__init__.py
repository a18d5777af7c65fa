"""Authentication: credentials of callers become principals, in the same way on both transports."""
