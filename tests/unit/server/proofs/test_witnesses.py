"""The client of witnesses, against answers that the protocol allows and those that it does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from gavel_server.proofs.verifier import ED25519, Checkpoint
from gavel_server.proofs.witnesses import OtherHistoryError, Witness, WitnessError, parse_witness, request_cosignature

from tests.unit.server.proofs.test_verifier import KEY, WITNESS_KEY, cosign

CHECKPOINT = KEY.sign(Checkpoint("gavel/default", 7, b"r" * 32))
COSIGNATURE = f"{cosign(CHECKPOINT).signatures[-1]}\n"
SIZE_TYPE = "text/x.tlog.size"
Answer = tuple[int, str, str]


class Answers:
    """An HTTP server that gives prepared answers and keeps the requests."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.requests.append((self.path, body))
                status, content_type, answer = outer.answers.pop(0)
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/w1/"


@pytest.fixture
def answers() -> Iterator[Answers]:
    """A running server."""
    one = Answers()
    thread = threading.Thread(target=one.server.serve_forever)
    thread.start()
    yield one
    one.server.shutdown()
    one.server.server_close()
    thread.join()


def request(answers: Answers, *prepared: Answer, from_size: int = 0) -> str:
    """Return the cosignature that the client takes from the answers."""
    answers.answers = list(prepared)
    witness = parse_witness(answers.url, WITNESS_KEY)
    return f"{request_cosignature(witness, CHECKPOINT, from_size, lambda first, last: [b'%032d' % first, b'%032d' % last])}\n"


def test_first_request(answers: Answers) -> None:
    """The first request has size 0, no proof, and the checkpoint as signed."""
    assert COSIGNATURE == request(answers, (200, "text/plain", COSIGNATURE))
    assert [("/w1/add-checkpoint", f"old 0\n\n{CHECKPOINT}")] == answers.requests


def test_size_of_the_witness(answers: Answers) -> None:
    """A witness that remembers another size gets the proof from there."""
    assert COSIGNATURE == request(answers, (409, SIZE_TYPE, "3\n"), (200, "text/plain", COSIGNATURE))
    lines = answers.requests[1][1].split("\n")
    expected = [
        "old 3",
        "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDM=",
        "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDc=",
        "",
        "gavel/default",
    ]
    assert expected == lines[:5]


def test_signatures_of_strangers(answers: Answers) -> None:
    """Of several signatures, that of the given key is taken."""
    assert COSIGNATURE == request(answers, (200, "text/plain", f"{CHECKPOINT.signatures[0]}\n{COSIGNATURE}"))


@pytest.mark.parametrize(
    ("prepared", "message"),
    [
        ([(409, SIZE_TYPE, "9\n")], "has cosigned 9 events, the log has 7: events are lost"),
        ([(422, "text/plain", "")], "does not begin with the 0 events"),
        ([(409, SIZE_TYPE, "7\n"), (409, SIZE_TYPE, "7\n")], "does not begin with the 7 events"),
    ],
)
def test_forks(answers: Answers, prepared: list[Answer], message: str) -> None:
    """A witness that knows another tree is told from one that fails."""
    with pytest.raises(OtherHistoryError, match=message):
        request(answers, *prepared)


@pytest.mark.parametrize(
    ("prepared", "message"),
    [
        ([(403, "text/plain", "who?")], "HTTP 403: 'who\\?'; it does not know the notary's key"),
        ([(404, "text/plain", "")], "it does not know the log, or the URL is wrong"),
        ([(500, "text/plain", "x" * 1000)], "HTTP 500: 'x{200}'$"),
        ([(200, "text/plain", "")], "signed with another key"),
        ([(200, "text/plain", "garbage")], "is not a cosignature"),
        ([(200, "text/plain", f"{CHECKPOINT.signatures[0]}\n")], "signed with another key"),
        ([(200, "text/plain", f"{cosign(CHECKPOINT._replace(size=8)).signatures[-1]}\n")], "is not a cosignature"),
        ([(409, SIZE_TYPE, "3\n"), (409, SIZE_TYPE, "4\n")], "has cosigned another checkpoint meanwhile"),
    ],
)
def test_refusals(answers: Answers, prepared: list[Answer], message: str) -> None:
    """Any other answer is a refusal, with the witness's name."""
    with pytest.raises(WitnessError, match=message):
        request(answers, *prepared)


def test_unreachable() -> None:
    """A witness that does not answer is named."""
    with pytest.raises(WitnessError, match=r"cannot reach witness http://127\.0\.0\.1:9/add-checkpoint"):
        request_cosignature(Witness("http://127.0.0.1:9", WITNESS_KEY), CHECKPOINT, 0, lambda first, last: [])


@pytest.mark.parametrize("url", ["file:///etc/passwd", "witness.example", ""])
def test_urls(url: str) -> None:
    """Only URLs of HTTP are requested."""
    with pytest.raises(ValueError, match="is not the URL of a witness"):
        parse_witness(url, WITNESS_KEY)


def test_key_of_a_notary() -> None:
    """The key of a notary is none of a witness."""
    with pytest.raises(ValueError, match="is not the key of a witness"):
        parse_witness("https://witness.example", KEY.public._replace(algorithm=ED25519))
