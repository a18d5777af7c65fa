"""A local HTTP server that answers the SDKs of model providers with the transcripts of tests/data/llm."""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

from gavel_client.llm import ModelProvider, anthropic_messages, chat_completions, openai_responses

from tests.support.paths import ROOT

TRANSCRIPTS: Final = ROOT / "tests/data/llm"
APIS: Final = {"/v1/responses": "responses", "/v1/chat/completions": "chat_completions", "/v1/messages": "messages"}


@dataclass(frozen=True)
class Reply:
    """One answer of the server: a transcript, whole or its first `cut` bytes, or an error with `status` and `body`.

    A stream that is cut ends as if it were whole, or with `aborts` in the middle of a chunk. `hangs`: the server never answers.
    """

    transcript: str = ""
    cut: int | None = None
    aborts: bool = False
    hangs: bool = False
    status: int = 200
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """A request that the server received."""

    api: str
    body: dict[str, Any]
    headers: Mapping[str, str]


class TranscriptServer:
    """Answers each request with the next of `replies`, or else with the transcript that the requested model names."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.replies: deque[Reply] = deque()
        self._released = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                api = APIS[self.path]
                server.requests.append(Request(api, body, dict(self.headers)))
                reply = server.replies.popleft() if server.replies else Reply(body["model"])
                server._answer(self, api, body, reply)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                if not isinstance(sys.exception(), ConnectionError):  # a client that left
                    super().handle_error(request, client_address)

        self._http = Server(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Base URL without a path."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def provider(self, api: str, model: str, name: str = "", **options: Any) -> ModelProvider:
        """Return a provider of an API of this server."""
        make: Callable[..., ModelProvider] = {"responses": openai_responses, "chat_completions": chat_completions}.get(
            api, anthropic_messages
        )
        path = "" if api == "messages" else "/v1"
        return make(model, api_key="test-key", base_url=self.url + path, **({"name": name} if name else {}), **options)

    def _answer(self, handler: BaseHTTPRequestHandler, api: str, body: Mapping[str, Any], reply: Reply) -> None:
        if reply.hangs:
            self._released.wait(60)
            handler.close_connection = True
        elif reply.status != 200:
            _send(handler, json.dumps(reply.body).encode(), reply.status, {"content-type": "application/json", **reply.headers})
        elif not body.get("stream"):
            _send(handler, transcript(api, reply.transcript, ".json").read_bytes(), 200, {"content-type": "application/json"})
        else:
            stream = transcript(api, reply.transcript, ".sse").read_bytes()
            _stream(handler, stream if reply.cut is None else stream[: reply.cut], reply)


def transcript(api: str, name: str, suffix: str) -> Path:
    """Return the file of a transcript: ".sse" is a stream, ".json" the same answer in one piece."""
    return TRANSCRIPTS / api / (name + suffix)


def _send(handler: BaseHTTPRequestHandler, content: bytes, status: int, headers: Mapping[str, str]) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("content-length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def _stream(handler: BaseHTTPRequestHandler, content: bytes, reply: Reply) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream; charset=utf-8")
    handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    for chunk in (content[start : start + 1024] for start in range(0, len(content), 1024)):
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
    if reply.aborts:
        handler.wfile.write(b"ff\r\ndata: ")
        handler.close_connection = True
    else:
        handler.wfile.write(b"0\r\n\r\n")


def transcripts() -> list[tuple[str, str]]:
    """Return the API and the name of every answer that ends well."""
    return [
        (api, path.stem)
        for api in APIS.values()
        for path in sorted((TRANSCRIPTS / api).glob("*.json"))
        if not path.stem.startswith(("unknown", "failed"))
    ]


def stream_frames(api: str, name: str) -> list[bytes]:
    """Return the events of a stream as they are on the wire, comments included."""
    return [frame + b"\n\n" for frame in transcript(api, name, ".sse").read_bytes().split(b"\n\n") if frame]


def stream_events(api: str, name: str) -> list[dict[str, Any]]:
    """Return the JSON of the events of a stream."""
    lines = b"".join(stream_frames(api, name)).decode().split("\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(text) for text in data if text != "[DONE]"]
