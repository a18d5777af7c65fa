"""Code that all RPCs share on both transports: the interceptor, the call's context, errors, limits, framing and streaming."""
