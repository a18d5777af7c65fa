"""Who calls: credentials of callers become principals, the same way on both transports."""
