"""The server's identity files and authenticator: loaded at the start, and loaded again when a file changes or on SIGHUP.

A change that makes a file invalid is logged and has no effect: the previous contents stay in force until the file is valid.
Other files are loaded all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from gavel_server.errors import GavelServerError
from gavel_server.identity.errors import IdentityFileError
from gavel_server.identity.settings import IdentitySettings, shared_names
from gavel_server.identity.tokens import TokenAuthenticator, read_token_file
from gavel_server.identity.unix_users import UserAuthenticator

if TYPE_CHECKING:
    from gavel_server.identity.authenticator import Authenticator
    from gavel_server.identity.tls import TlsMaterial

# Between two looks at the files.
WATCH_SECONDS: Final = 1.0
# A file that changes is read once it has not changed for SETTLE_SECONDS, or after SETTLE_LOOKS_MAX looks.
SETTLE_SECONDS: Final = 0.1
SETTLE_LOOKS_MAX: Final = 20
_Stamp = tuple[int, int, int] | None

_LOG: Final = structlog.get_logger("gavel.identity")


class IdentityError(GavelServerError):
    """Callers cannot be authenticated as configured; the message gives the reason."""


class Identity:
    """How a server knows its callers. `authenticator` is None without authentication, `tls` without TLS. Raises IdentityError."""

    def __init__(self, settings: IdentitySettings, take_turn: Callable[[str], Awaitable[None]] | None = None) -> None:
        """`take_turn` is awaited before credentials are verified; see `Authenticator`."""
        self._take_turn: Final = take_turn
        self._settings: Final = settings
        self._stamps = self._look()
        self._reload: Final = asyncio.Event()
        self._reload_keys: Final = asyncio.Event()
        self._problem = ""
        self._key_versions: list[int] = []
        self.on_tls: list[Callable[[TlsMaterial], None]] = []
        """Called with the new material after a change."""
        try:
            self.tls = self._read_tls()
            self.authenticator = self._authenticator() if settings.authentication == "required" else None
        except (IdentityFileError, ValueError) as error:
            raise IdentityError(str(error)) from error
        except OSError as error:
            raise IdentityError(f"cannot read {error.filename}: {error.strerror}") from error
        for problem in shared_names(settings):
            _LOG.warning("identity.shared_names", problem=problem, consequence="a grant for one of these callers is also for the others")

    @property
    def wants_optional_certificates(self) -> bool:
        """Whether a client certificate is optional."""
        return self._settings.tls_client_ca is not None and self._settings.tls_client_certificate == "optional"

    @property
    def problem(self) -> str:
        """Why a changed file is not in force, or ""."""
        return self._problem

    def reload(self) -> None:
        """Load all files and keys again soon, changed or not."""
        self._reload.set()
        self._reload_keys.set()

    async def watch_forever(self) -> None:
        """Load files again when they change; end sessions that have expired."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._reload.wait()
            stamps, reloads_all = await self._look_at_rest(), self._reload.is_set()
            self._reload.clear()
            if stamps != self._stamps or reloads_all:
                self._stamps = stamps
                await self._load()
            if self.authenticator is not None:
                self.authenticator.end_expired()

    async def refresh_keys_forever(self) -> None:
        """Read the keys of issuers again when they are old.

        The files have a watch of their own: an issuer that does not answer must not keep a deleted token in force.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._reload_keys.wait()
            reloads_all = self._reload_keys.is_set()
            self._reload_keys.clear()
            await self._refresh_keys(reloads_all=reloads_all)

    def _authenticator(self) -> Authenticator:
        # Imported here: a server without authentication and TLS does not load the libraries of keys and certificates.
        from gavel_server.identity.authenticator import Authenticator
        from gavel_server.identity.json_web_tokens import JwtAuthenticator
        from gavel_server.identity.mtls import CertificateAuthenticator

        settings = self._settings
        certificates = None
        if settings.tls_client_ca is not None and self.tls is not None:
            certificates = CertificateAuthenticator(settings.mtls_name, self.tls.authorities)
        return Authenticator(
            certificates,
            JwtAuthenticator(settings.issuers) if settings.issuers else None,
            TokenAuthenticator(read_token_file(settings.token_file)) if settings.token_file is not None else None,
            UserAuthenticator(settings.unix_users),
            take_turn=self._take_turn,
        )

    async def _load(self) -> None:
        # Each by itself: an expired certificate must not keep a deleted token in force.
        problem = "; ".join(filter(None, (_problem_of(self._load_tokens), _problem_of(self._load_tls))))
        authenticator = self.authenticator
        ended = 0
        if authenticator is not None:
            if authenticator.json_web_tokens is not None:
                key_sets = authenticator.json_web_tokens.key_sets.values()
                await asyncio.gather(*(key_set.reload() for key_set in key_sets if key_set.file is not None))
            ended = authenticator.end_revoked()
        self._problem = problem
        if problem:
            _LOG.error("identity.not_loaded", problem=problem, consequence="the previous files stay in force until these are valid")
        else:
            _LOG.info("identity.loaded", sessions_ended=ended)

    def _read_tls(self) -> TlsMaterial | None:
        if self._settings.tls_cert is None:
            return None
        from gavel_server.identity.tls import load_tls

        return load_tls(self._settings)

    def _load_tls(self) -> None:
        material = self._read_tls()
        if material is None or material == self.tls:
            return
        self.tls = material
        if self.authenticator is not None and self.authenticator.certificates is not None:
            self.authenticator.certificates.use(material.authorities)
        for take in self.on_tls:
            take(material)

    def _load_tokens(self) -> None:
        path, authenticator = self._settings.token_file, self.authenticator
        if path is not None and authenticator is not None and authenticator.tokens is not None:
            authenticator.tokens.use(read_token_file(path))

    async def _refresh_keys(self, *, reloads_all: bool) -> None:
        authenticator = self.authenticator
        if authenticator is None or authenticator.json_web_tokens is None:
            return
        key_sets = authenticator.json_web_tokens.key_sets.values()
        await asyncio.gather(*(key_set.reload() if reloads_all else key_set.refresh() for key_set in key_sets))
        versions = [key_set.version for key_set in key_sets]
        if versions != self._key_versions:  # a call may also have read them again
            self._key_versions = versions
            authenticator.end_revoked()

    async def _look_at_rest(self) -> list[_Stamp]:
        """Look at the files once nobody writes them: a list of authorities that is half written looks like a shorter list."""
        stamps = self._look()
        for _ in range(SETTLE_LOOKS_MAX):
            if stamps == self._stamps:
                break
            await asyncio.sleep(SETTLE_SECONDS)
            before, stamps = stamps, self._look()
            if stamps == before:
                break
        return stamps

    def _look(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._settings.files]


def _problem_of(load: Callable[[], None]) -> str:
    """Load files. Return why they are not in force, or ""."""
    try:
        load()
    except IdentityFileError as error:
        return str(error)
    except OSError as error:
        return f"cannot read {error.filename}: {error.strerror}"
    return ""


def _stamp(path: Path) -> _Stamp:
    """Return what changes when a file is written or replaced; None: there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
