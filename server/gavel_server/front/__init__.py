"""The native front: a process of its own that speaks gRPC for the server, so that transport and decisions use a processor each.

About half of what an unbatched decision costs is gRPC (docs/decisions/0010-hot-path.md). The front is a program in Go (`server/front/`).
Calls of the hot path reach the server as frames over a socket pair (`frames`, `link`), many in one write, and are answered by plain
functions (`backend`). The front forwards all other calls to the server's own gRPC on a private unix socket. It holds no state and decides
nothing. The server starts it, restarts it if it dies or hangs (`supervisor`), and ends it.
"""
