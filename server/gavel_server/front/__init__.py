"""A process of its own that speaks gRPC for the server, so that the transport and the deciding use a processor each.

Half of what an unbatched decision costs is gRPC (docs/decisions/0010-hot-path.md). The front accepts the calls: a program in Go
(`server/front/`) where it has been made, else the one in Python (`process`); `programs` says which. To callers they are one.
Those of the hot path go to the server as frames over a socket pair (`link`), many in one write, and are answered by plain
functions (`backend`); every other call is passed on, as it is, to the server's own gRPC port, a unix socket. The front knows
no state and decides nothing: the server starts it, starts it again if it dies (`keeper`), and it ends with the server.
"""
