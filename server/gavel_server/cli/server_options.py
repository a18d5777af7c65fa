"""The options of every command that has --server: where its server is, and who calls.

`with_server_options` adds them to a command, so that no command has to pass them on. Precedence: option, environment, context, default. The
variables are named GAVEL_CLIENT_…, because GAVEL_TLS_CERT and GAVEL_TOKEN_FILE are settings of `gavel serve`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from gavel_server.cli.contexts import load_contexts, selected_context
from gavel_server.cli.errors import CommandError, InvalidInputError

if TYPE_CHECKING:
    from gavel_client import Certificate, Tls, TokenFile

_UNIX: Final = "unix:"


class ServerOptions(NamedTuple):
    """The options of one command, as they result from the command line, the environment and the context."""

    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None

    @property
    def has_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.tls_ca is not None or self.tls_cert is not None

    @property
    def has_credentials(self) -> bool:
        """Whether the caller shows who calls."""
        return self.tls_cert is not None or self.token_file is not None


class ClientArguments(NamedTuple):
    """The arguments of a client's constructor."""

    tls: Tls | None
    credentials: list[Certificate | TokenFile]


_NONE: Final = ServerOptions()
_options: ContextVar[ServerOptions] = ContextVar("server_options", default=_NONE)


def server_options() -> ServerOptions:
    """Return the options of the command that runs."""
    return _options.get()


def client_arguments(server: str) -> ClientArguments:
    """Return how to call a server. Raises InvalidInputError for options that contradict each other, and for files that cannot be used."""
    from gavel_client import Certificate, Tls

    options = server_options()
    if (options.tls_cert is None) != (options.tls_key is None):
        raise InvalidInputError("--tls-cert and --tls-key belong together; give both, or their environment variables")
    # TLS is spoken on TCP only.
    has_tls = options.has_tls and not server.startswith(_UNIX)
    credentials: list[Certificate | TokenFile] = []
    if has_tls and options.tls_cert is not None and options.tls_key is not None:
        _check_readable("--tls-cert", options.tls_cert)
        _check_readable("--tls-key", options.tls_key)
        credentials.append(Certificate(options.tls_cert, options.tls_key))
    if has_tls and options.tls_ca is not None:
        _check_readable("--tls-ca", options.tls_ca)
    if options.token_file is not None:
        check_token_is_protected(server, has_tls=has_tls)
        credentials.append(_token_file(options.token_file))
    return ClientArguments(Tls(ca=options.tls_ca) if has_tls else None, credentials)


def check_token_is_protected(server: str, *, has_tls: bool) -> None:
    """Raise InvalidInputError if a token would reach the server over a network without TLS."""
    from gavel_client.rpc.credentials import is_local

    if not has_tls and not is_local(server):
        raise InvalidInputError(
            f"the token of --token-file is not sent to {server} without TLS, where others could read it; name the authority of the "
            "server's certificate with --tls-ca FILE (public ones: the file of this system, e.g. /etc/ssl/certs/ca-certificates.crt)"
        )


def with_server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the options, if it has --server and not these; the command finds them with `server_options`."""
    signature = inspect.signature(command, eval_str=True)
    if "server" not in signature.parameters or _ANNOTATIONS.keys() & signature.parameters.keys():
        return command

    @functools.wraps(command)
    def with_options(*, context: str | None, **arguments: Any) -> Any:
        # `context` has done its work: see `_apply_context`.
        options = ServerOptions(*(arguments.pop(name) for name in ServerOptions._fields))
        token = _options.set(options)
        try:
            return command(**arguments)
        finally:
            _options.reset(token)

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters.append(parameter)
        if parameter.name == "server":
            parameters += (
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
                for name, annotation in _ANNOTATIONS.items()
            )
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    # What Typer reads.
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def _apply_context(call: typer.Context, name: str | None) -> str | None:
    """Make a context's values the defaults of the options. Typer calls this before it reads the other options."""
    if not call.resilient_parsing:  # not while a shell completes the line
        # A command whose --server has no default works without a server unless the option names one.
        names = {parameter.name for parameter in call.command.params if parameter.name != "server" or parameter.default is not None}
        call.default_map = {field: value for field, value in selected_context(name).items() if field in names}
    return name


def _complete_context(incomplete: str) -> Iterator[str]:
    try:
        yield from sorted(name for name in load_contexts().by_name if name.startswith(incomplete))
    except CommandError:
        return


def _check_readable(option: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise InvalidInputError(f"the file of {option} cannot be read: {path}: {error.strerror}") from error


def _token_file(path: Path) -> TokenFile:
    from gavel_client import TokenFile

    _check_readable("--token-file", path)
    token = TokenFile(path)
    try:
        token()
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{error} (--token-file)") from error
    return token


def _file_option(option: str, variable: str, help_text: str) -> Any:
    return Annotated[Path | None, typer.Option(option, envvar=variable, metavar="FILE", help=help_text)]


# In the order of `--help`, and of ServerOptions.
_ANNOTATIONS: Final[dict[str, Any]] = {
    "context": Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            is_eager=True,
            callback=_apply_context,
            autocompletion=_complete_context,
            help="The context whose server and credentials are the defaults; empty: none. Default: GAVEL_CONTEXT, else gavel context use.",
        ),
    ],
    "tls_ca": _file_option("--tls-ca", "GAVEL_CLIENT_TLS_CA", "The authorities of the server's certificate in PEM: use TLS."),
    "tls_cert": _file_option("--tls-cert", "GAVEL_CLIENT_TLS_CERT", "A client certificate in PEM to present."),
    "tls_key": _file_option("--tls-key", "GAVEL_CLIENT_TLS_KEY", "The private key of --tls-cert in PEM."),
    "token_file": _file_option("--token-file", "GAVEL_CLIENT_TOKEN_FILE", "The file of a token to present."),
}
