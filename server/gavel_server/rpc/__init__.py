"""What every RPC shares on every transport: the interceptor, the call's context, errors, framing and streaming."""
