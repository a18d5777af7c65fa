"""A web server that publishes a key set, as issuers of JSON Web Tokens do."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class KeyServer:
    """The server's response, and the number of its requests. `url` is that of the key set."""

    def __init__(self) -> None:
        self.content = b""
        self.status = 200
        self.location = ""
        self.raw = b""  # the whole answer, in place of status and content
        self.pause_seconds = 0.0  # before an answer, at most until the end of the test
        self.requests = 0
        self.url = ""


@contextmanager
def running_key_server(certificate: Path | None = None, key: Path | None = None) -> Iterator[KeyServer]:
    """Run a server on a free port of the loopback interface; with a certificate it speaks HTTPS as `localhost`."""
    served = KeyServer()
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            served.requests += 1
            if served.pause_seconds:
                stopped.wait(served.pause_seconds)
            if served.raw:
                self.wfile.write(served.raw)
                return
            self.send_response(served.status)
            if served.location:
                self.send_header("location", served.location)
            self.send_header("content-length", str(len(served.content)))
            self.end_headers()
            self.wfile.write(served.content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme, host = "http", "127.0.0.1"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme, host = "https", "localhost"
    served.url = f"{scheme}://{host}:{server.server_port}/keys"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield served
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()
