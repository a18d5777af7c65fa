"""The cost of authentication: unary SubmitProposal with a token, a JSON Web Token or a client certificate, and without credentials.

Callers with credentials use TLS, so their baseline is a server with TLS that takes everybody; one in plain text shows what TLS itself
costs. The servers that authenticate have grants in force. All are measured one after the other, in turns of alternating order, and each
is compared with the baseline of its own turn. Other load on the machine disturbs single turns; the median over turns counts, and the
spread is printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, Protocol

from cryptography import x509
from gavel_rules.identity.rights import RIGHTS
from gavel_server.identity.development_certificates import Authority, host_name
from gavel_server.identity.tokens import add_token
from rich.console import Console
from rich.table import Table

from tests.load.bench.measurements import Cell
from tests.load.targets import PLAIN, Access, Target, running_gavel
from tests.support.identity.issuer import AUDIENCE, ISSUER, Issuer

PLAIN_TEXT: Final = "plain text"
BASELINE: Final = "TLS, no credentials"
TOKEN: Final = "TLS, token"  # noqa: S105  # the name of a target
JWT: Final = "TLS, JWT"
MTLS: Final = "mTLS"
# The decisions/s that callers with credentials must reach, as a multiple of those without.
GATE: Final = 0.95
GATED: Final = (TOKEN, JWT, MTLS)
TARGETS: Final = (PLAIN_TEXT, BASELINE, *GATED)
CALLERS: Final = ("load-token", "load-jwt", "spiffe://load/mtls")
GRANTS: Final = f"""
gavel: v1
name: load
version: 1
grants:
  - {{to: [{", ".join(CALLERS)}], may: [{", ".join(RIGHTS)}]}}
"""


class Measure(Protocol):
    """Measures SubmitProposal on a target and adds the sample to the cell."""

    def __call__(self, target: Target, cell: Cell) -> None:
        """See the class."""


class Verdict(NamedTuple):
    """The ratio of one kind of credentials to the baseline: median, least and greatest of all turns."""

    target: str
    reached: float
    least: float
    greatest: float
    wanted: float

    @property
    def passed(self) -> bool:
        """Whether the gate is reached."""
        return self.reached >= self.wanted


class Credentials:
    """Certificates, tokens and configuration files, in `directory`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._authority = Authority.create()
        self._authority.save(self._file("ca.pem"), self._file("ca-key.pem"))
        hosts = [host_name("localhost"), host_name("127.0.0.1")]
        self._authority.issue(self._file("server.pem"), self._file("server-key.pem"), "localhost", hosts, for_server=True)
        name = (x509.UniformResourceIdentifier(CALLERS[2]),)
        self._authority.issue(self._file("client.pem"), self._file("client-key.pem"), "load", name)
        issuer = Issuer()
        issuer.write(self._file("keys.json"))
        self._write_token("token.json", add_token(self._file("tokens.toml"), CALLERS[0], (), None))
        self._write_token("jwt.json", issuer.token(sub=CALLERS[1], exp=issuer.claims()["iat"] + 24 * 3600))

    def access(self, target: str) -> Access:
        """Return how a target is called."""
        authority = self._file("ca.pem")
        return {
            PLAIN_TEXT: PLAIN,
            BASELINE: Access(authority),
            TOKEN: Access(authority, token=self._file("token.json")),
            JWT: Access(authority, token=self._file("jwt.json")),
            MTLS: Access(authority, certificate=(self._file("client.pem"), self._file("client-key.pem"))),
        }[target]

    def options(self, target: str) -> list[str]:
        """Return the options of the server of a target."""
        if target == PLAIN_TEXT:
            return []
        lines = [f'tls_cert = "{self._file("server.pem")}"', f'tls_key = "{self._file("server-key.pem")}"']
        if target != BASELINE:
            lines += ['authentication = "required"', f"admins = {json.dumps(CALLERS)}"]
        if target == MTLS:
            lines.append(f'tls_client_ca = "{self._file("ca.pem")}"')
        if target in (TOKEN, JWT):
            lines += [f'token_file = "{self._file("tokens.toml")}"', "[[issuers]]", f'issuer = "{ISSUER}"', f'audience = "{AUDIENCE}"']
            lines.append(f'jwks_file = "{self._file("keys.json")}"')
        configuration = self._file(f"{GATED.index(target) if target in GATED else 'baseline'}.toml")
        configuration.write_text("\n".join(lines) + "\n")
        return ["--config", str(configuration)]

    def _file(self, name: str) -> Path:
        return self._directory / name

    def _write_token(self, name: str, token: str) -> None:
        self._file(name).touch(mode=0o600)
        self._file(name).write_text(json.dumps({"authorization": f"Bearer {token}"}))


@contextmanager
def running_targets(credentials: Credentials, document: str, directory: Path, environment: Mapping[str, str]) -> Iterator[list[Target]]:
    """Run a server for each kind of caller, with the rule set, and with grants where callers are authenticated."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                running_gavel(
                    name,
                    document,
                    directory / f"server-{place}",
                    dict(environment),
                    credentials.options(name),
                    credentials.access(name),
                    GRANTS if name in GATED else "",
                )
            )
            for place, name in enumerate(TARGETS)
        ]


def run(measure: Measure, document: str, directory: Path, environment: Mapping[str, str], turns: int) -> dict[str, Cell]:
    """Measure all targets in turns; return their samples, one for each turn.

    Each turn has fresh servers: two equal ones may differ by a tenth for as long as they run (docs/performance.md#measuring).
    """
    cells = {name: Cell() for name in TARGETS}
    credentials = Credentials(directory / "credentials")
    for turn in range(turns):
        with running_targets(credentials, document, directory / f"turn-{turn}", environment) as targets:
            for target in targets if turn % 2 == 0 else reversed(targets):
                measure(target, cells[target.name])
    return cells


def ratios(cells: Mapping[str, Cell], target: str) -> list[float]:
    """Return the decisions/s of a target in multiples of the baseline's, for each turn."""
    pairs = zip(cells[target].samples, cells[BASELINE].samples, strict=True)
    return [own.decisions_per_second / baseline.decisions_per_second for own, baseline in pairs]


def verdicts(cells: Mapping[str, Cell]) -> list[Verdict]:
    """Return the gates of the three kinds of credentials."""
    ratios_by_name = {name: ratios(cells, name) for name in GATED}
    return [
        Verdict(name, round(median(turns), 3), round(min(turns), 3), round(max(turns), 3), GATE) for name, turns in ratios_by_name.items()
    ]


def show(cells: Mapping[str, Cell], console: Console) -> None:
    """Print the table and the gates."""
    table = Table(title="Unary SubmitProposal by credentials: medians of all turns")
    for column in ("callers", "decisions/s", "p50 ms", "p99 ms", "server µs", "x baseline", "least", "greatest"):
        table.add_column(column, justify="left" if column == "callers" else "right", no_wrap=True)
    for name, cell in cells.items():
        medians = (f"{cell.median('decisions_per_second'):,.0f}", f"{cell.median('p50_ms'):.2f}", f"{cell.median('p99_ms'):.2f}")
        turns = ratios(cells, name)
        table.add_row(
            name, *medians, f"{cell.median('server_cpu_us_per_decision'):.0f}", *(f"{of(turns):.2f}" for of in (median, min, max))
        )
    console.print(table)
    for verdict in verdicts(cells):
        word = "ok" if verdict.passed else "MISSED"
        console.print(
            f"gate: SubmitProposal with {verdict.target}: {verdict.reached} times that over TLS without credentials"
            f" ({verdict.least} to {verdict.greatest}), wanted {verdict.wanted}: {word}",
            highlight=False,
        )


def document_of(cells: Mapping[str, Cell]) -> dict[str, Any]:
    """Return samples and gates for a JSON file."""
    return {
        "cells": {
            name: {"samples": [vars(sample) for sample in cell.samples], "outcomes": dict(cell.outcomes)} for name, cell in cells.items()
        },
        "gates": [{**verdict._asdict(), "passed": verdict.passed} for verdict in verdicts(cells)],
    }
