"""The settings of `gavel serve`: command line > environment `GAVEL_*` > TOML file (`--config`).

Settings describe how one server runs. They never change a decision, with two exceptions: `cross_check` and
`idempotency_window_days` apply only to a bus that the server opens, and its first event records them. An unknown name in the file is
an error. An unknown name in the environment is ignored, because it may belong to another program.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from gavel.v1 import fact_pb2
from gavel.v1.fact_pb2 import CrossCheck
from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from gavel_server.errors import GavelServerError
from gavel_server.fairness.quotas import (
    BYTES_PER_SECOND_DEFAULT,
    CALLS_PER_SECOND_DEFAULT,
    STREAMS_DEFAULT,
    SUBSCRIPTIONS_DEFAULT,
    QuotaLimits,
)
from gavel_server.front.programs import FrontSetting
from gavel_server.identity.settings import Authentication, ClientCertificate, IdentitySettings, JwtIssuer, MtlsName
from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.redis.topology.urls import check_url as check_redis_url
from gavel_server.log.stores import check_url
from gavel_server.process.memory import memory_bytes

ENVIRONMENT_PREFIX: Final = "GAVEL_"
LISTEN_DEFAULT: Final = "127.0.0.1:9090"
LISTEN_IN_CONTAINER: Final = "0.0.0.0:9090"
DATA_DEFAULT: Final = Path(".gavel")
IDEMPOTENCY_WINDOW_DAYS_DEFAULT: Final = 7
IDEMPOTENCY_WINDOW_DAYS_MAX: Final = 365
SNAPSHOT_EVERY_DEFAULT: Final = 100_000
INDEX_FROM_DEFAULT: Final = 10_000
ARCHIVE_AFTER_DAYS_DEFAULT: Final = 30
# An empty Redis takes about 1 MiB.
REDIS_MEMORY_MIB_MIN: Final = 16
DAY_MS: Final = 24 * 60 * 60 * 1000

_UNIX: Final = "unix:"
# Settings without an option of the command line.
FILE_ONLY: Final = frozenset({"tls_client_certificate", "mtls_name", "issuers", "unix_users", "admins"})
_LISTEN_FORMS: Final = "use HOST:PORT, [IPV6]:PORT or unix:PATH, e.g. 127.0.0.1:9090"
_CROSS_CHECK: Final = re.compile(r"always|off|sample ([1-9][0-9]{0,8})")


class SettingsError(GavelServerError):
    """Invalid settings; the message has one line for each, which says what to do."""


def _checked_listen(listen: str) -> str:
    if listen.startswith(_UNIX):
        if len(listen) == len(_UNIX):
            raise ValueError(f"{listen!r} has no path; {_LISTEN_FORMS}")
        return listen
    host, _, port = listen.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError(f"{listen!r} is not an address; {_LISTEN_FORMS}")
    return listen


def _checked_metrics(listen: str | None) -> str | None:
    if listen is not None and listen.startswith(_UNIX):
        raise ValueError(f"{listen!r} is not HOST:PORT, e.g. 127.0.0.1:9091")
    return None if listen is None else _checked_listen(listen)


def _checked_cross_check(mode: str) -> str:
    if not _CROSS_CHECK.fullmatch(mode):
        raise ValueError(f"{mode!r} is not a cross-check mode; use always, off, or sample N (every N-th decision), e.g. sample 100")
    return mode


def _checked_ack(ack: str) -> str:
    Acknowledgement.parse(ack)
    return ack


def _checked_redis(url: str | None) -> str | None:
    return None if url is None else check_redis_url(url)


def _checked_log(url: str | None) -> str | None:
    return None if url is None else check_url(url)


class Settings(BaseSettings):
    """How a server runs. Create it with `load`, which raises SettingsError; the constructor raises pydantic's ValidationError.

    Each field is also an environment variable, `GAVEL_` and its name in capitals, and a key of the TOML file.
    """

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    listen: Annotated[str, AfterValidator(_checked_listen)] = LISTEN_DEFAULT
    """HOST:PORT, [IPV6]:PORT or unix:PATH. Port 0: a free one."""
    data: Path = DATA_DEFAULT
    """Directory of the embedded Redis and of this server's own files."""
    redis: Annotated[str | None, AfterValidator(_checked_redis)] = None
    """URL of a Redis or Valkey, of Sentinels or of a cluster to use instead of the embedded Redis."""
    log: Annotated[str | None, AfterValidator(_checked_log)] = None
    """URL of the store of logs to use instead of the embedded Redis: a PostgreSQL (postgresql://), or a Redis as in `redis`."""
    redis_memory_mib: int | None = Field(None, ge=REDIS_MEMORY_MIB_MIN)
    """Memory of the embedded Redis for its data, in MiB. None: half of the machine's. When it is used up, writes are refused."""
    accept_volatile: bool = False
    """Serve even if the store may lose acknowledged events."""
    ack: Annotated[str, AfterValidator(_checked_ack)] = "replicas:0"
    """The copies that a write needs before it is answered: replicas:N, or aof:N for the disks of the master and of N replicas."""
    checkpoint: Path | None = None
    """File of the last acknowledged events, outside the store. None: in the data directory."""
    snapshot_every: int = Field(SNAPSHOT_EVERY_DEFAULT, ge=0)
    """After how many events of a bus its state is written to the data directory. 0: never."""
    index_from: int = Field(INDEX_FROM_DEFAULT, ge=1)
    """How many events a bus must have to get an index in the data directory. Reads scan the log of a smaller one."""
    archive: str = ""
    """Directory or URL (s3://BUCKET/PATH) of the archive of logs. Empty: logs are not archived."""
    archive_after_days: int = Field(ARCHIVE_AFTER_DAYS_DEFAULT, ge=1)
    """Age in days from which events are in the archive only."""
    front: FrontSetting = "auto"
    """The front: native (a process of its own) or none (this process speaks gRPC). auto: native if installed, on several processors."""
    fdr: bool = True
    """Whether this server also derives facts from executions. False: `gavel fdr` does so elsewhere."""
    metrics: Annotated[str | None, AfterValidator(_checked_metrics)] = None
    """HOST:PORT to serve Prometheus metrics on, at /metrics. None: nowhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level of log lines to write."""
    log_json: bool = False
    """Whether log lines are JSON."""
    cross_check: Annotated[str, AfterValidator(_checked_cross_check)] = "always"
    """Which decisions of a new bus both engines evaluate: always, off or sample N."""
    idempotency_window_days: int = Field(IDEMPOTENCY_WINDOW_DAYS_DEFAULT, ge=1, le=IDEMPOTENCY_WINDOW_DAYS_MAX)
    """How long a new bus remembers an event_id, in days."""
    create_buses: bool = True
    """Whether the first write to a bus creates it. False, or with authentication: only CreateBus does. The bus `default` always exists."""
    quota_calls_per_second: int = Field(CALLS_PER_SECOND_DEFAULT, ge=1)
    """Calls a second of one caller: one address or, with authentication, one principal."""
    quota_bytes_per_second: int = Field(BYTES_PER_SECOND_DEFAULT, ge=1)
    """Bytes of requests a second of one caller."""
    quota_streams: int = Field(STREAMS_DEFAULT, ge=1)
    """Open streams of one caller."""
    quota_subscriptions: int = Field(SUBSCRIPTIONS_DEFAULT, ge=1)
    """Open subscriptions of one caller, out of its streams."""
    authentication: Authentication = "none"
    """Whether callers must be authenticated: none or required."""
    tls_cert: Path | None = None
    """The server's certificate in PEM, followed by the intermediate certificates. With `tls_key`, callers over TCP must use TLS."""
    tls_key: Path | None = None
    """The private key of `tls_cert` in PEM."""
    tls_client_ca: Path | None = None
    """The authorities of client certificates in PEM. Callers over TCP must present a certificate that one of them has signed."""
    tls_client_certificate: ClientCertificate = "required"
    """Whether callers over TCP must present a client certificate or may use another credential: required or optional (native front)."""
    mtls_name: tuple[MtlsName, ...] = ("spiffe", "dns", "cn")
    """The kinds of names in a client certificate, in order of preference."""
    token_file: Path | None = None
    """The file of `gavel token create`, with the digests of tokens."""
    issuers: tuple[JwtIssuer, ...] = ()
    """The issuers of JSON Web Tokens that are accepted."""
    unix_users: dict[str, str] = {}
    """Names of callers on Unix sockets, by user id or login name. Others are named uid:N."""
    admins: tuple[str, ...] = ()
    """Names, or groups as group:NAME, that may deploy the first grants of a bus."""
    allow_unauthenticated_network: bool = False
    """Listen on addresses that other machines reach without TLS or without authentication, because the network is protected otherwise."""
    container: bool = False
    """Whether the server runs in a container of its own, as in the image. Nothing outside reaches the loopback of a container.
    Without a `listen` setting the server therefore listens on all addresses, unless its log would be lost with the container; the
    published ports decide who reaches it."""

    @property
    def is_unreachable(self) -> bool:
        """Whether nothing outside its container reaches the server: no `listen` is set, and the log would be lost with the container."""
        is_durable = self.store is not None or _is_on_volume(self.data)
        return self.container and "listen" not in self.model_fields_set and not is_durable

    @property
    def quotas(self) -> QuotaLimits:
        """The quotas of each caller."""
        return QuotaLimits(self.quota_calls_per_second, self.quota_bytes_per_second, self.quota_streams, self.quota_subscriptions)

    @property
    def store(self) -> str | None:
        """The URL of the store of logs; None: the embedded Redis."""
        return self.log or self.redis

    @property
    def acknowledgement(self) -> Acknowledgement:
        """The copies that a write needs before it is answered."""
        return Acknowledgement.parse(self.ack)

    @property
    def identity(self) -> IdentitySettings:
        """How callers are authenticated."""
        return IdentitySettings(
            self.authentication,
            self.tls_cert,
            self.tls_key,
            self.tls_client_ca,
            self.tls_client_certificate,
            self.mtls_name,
            self.token_file,
            self.issuers,
            self.unix_users,
        )

    @property
    def redis_memory_bytes_max(self) -> int:
        """How much memory the data of the embedded Redis may take."""
        return memory_bytes() // 2 if self.redis_memory_mib is None else self.redis_memory_mib * 1024 * 1024

    @property
    def idempotency_window_ms(self) -> int:
        """How long a new bus remembers an event_id, in milliseconds."""
        return self.idempotency_window_days * DAY_MS

    @property
    def cross_check_of_new_bus(self) -> CrossCheck:
        """The cross-check mode that a new bus is opened with."""
        match self.cross_check.split():
            case ["sample", every]:
                return CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_SAMPLE, sample_every=int(every))
            case ["off"]:
                return CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_OFF)
        return CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS)

    @model_validator(mode="after")
    def _has_one_store(self) -> Settings:
        """Refuse two stores: each log is in one."""
        if self.log is not None and self.redis is not None:
            raise ValueError("log and redis name two stores; set one of them")
        return self

    @model_validator(mode="after")
    def _stays_local(self) -> Settings:
        """Refuse addresses that other machines reach: without authentication any caller can act as any producer, or read the metrics."""
        if self.metrics is not None and not (self.allow_unauthenticated_network or self.container or is_local(self.metrics)):
            raise ValueError(
                f"metrics is {self.metrics}, which other machines may reach, and no authentication is configured: any caller could read "
                "the metrics. Serve them on 127.0.0.1, or, if the network is protected by other means, give --allow-unauthenticated-network"
            )
        if self.authentication == "required":
            if self.tls_cert is None and not self.allow_unauthenticated_network and not is_local(self.listen):
                raise ValueError(
                    f"listen is {self.listen}, which other machines may reach, without TLS: credentials could be read on the way. Set "
                    "tls_cert and tls_key, or, if the network is protected by other means, give --allow-unauthenticated-network"
                )
        elif not self.allow_unauthenticated_network and not is_local(self.listen):
            raise ValueError(
                f"listen is {self.listen}, which other machines may reach, and no authentication is configured: any caller could act "
                'as any producer. Listen on 127.0.0.1 or unix:PATH, set authentication = "required" (docs/security.md), or, if the '
                "network is protected by other means, give --allow-unauthenticated-network"
            )
        return self

    @model_validator(mode="after")
    def _identifies_callers(self) -> Settings:
        """Refuse settings of authentication that contradict each other, or that would have no effect."""
        methods = ("tls_client_ca", "token_file", "issuers", "unix_users", "admins")
        present = [name for name in methods if getattr(self, name)]
        if self.authentication == "none" and present:
            raise ValueError(f'{", ".join(present)} would have no effect without authentication; set authentication = "required" as well')
        can_meet = self.listen.startswith(_UNIX) or {"tls_client_ca", "token_file", "issuers"} & {*present}
        if self.authentication == "required" and not can_meet:
            raise ValueError(
                "authentication is required, and no caller could meet it: set token_file (gavel token create), issuers, or "
                "tls_client_ca with tls_cert and tls_key"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together; set both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key: client certificates are presented over TLS")
        names = [issuer.issuer for issuer in self.issuers]
        if len({*names}) < len(names):
            raise ValueError("issuers has an issuer twice; give it all its audiences in one entry")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line > environment > TOML file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load(config: Path | None = None, options: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings; `options` holds those of the command line, by field name.

    Raises SettingsError, which names every invalid setting.
    """

    class Configured(Settings):
        model_config = SettingsConfigDict(toml_file=config)

    try:
        if config is not None and not config.is_file():
            raise SettingsError(f"settings file {config} does not exist; give another one with --config")
        settings = Configured(**(options or {}))
    except ValidationError as error:
        raise SettingsError("\n".join(_sentence(problem, config) for problem in error.errors())) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{config} is not TOML: {error}") from None
    except OSError as error:
        raise SettingsError(f"cannot read {config}: {error.strerror}") from None
    if not settings.container or settings.is_unreachable or "listen" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"listen": LISTEN_IN_CONTAINER, "allow_unauthenticated_network": True})


def _is_on_volume(path: Path) -> bool:
    """Return whether a file system other than the root is mounted at a path or above it."""
    path = path.resolve()
    return any(part.is_mount() for part in (path, *path.parents) if part != part.parent)


def is_local(listen: str) -> bool:
    """Return whether only this machine reaches an address: loopback or a Unix socket."""
    if listen.startswith(_UNIX):
        return True
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _sentence(problem: Any, config: Path | None) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        owner = problem["loc"][0] if len(problem["loc"]) > 1 else ""
        known = sorted(JwtIssuer.model_fields if owner == "issuers" else Settings.model_fields)
        what = f"the settings of {owner} are" if owner else "the settings are"
        return f"{config} sets {name}, which is not a setting; {what}: {', '.join(known)}"
    why = problem["msg"].removeprefix("Value error, ")
    if not name:
        return str(why)
    field = name.partition(".")[0]
    if field in FILE_ONLY:
        return f"setting {name} ({field} in the file, or {ENVIRONMENT_PREFIX}{field.upper()} as JSON): {why}"
    return f"setting {name} (--{name.replace('_', '-')}, {ENVIRONMENT_PREFIX}{name.upper()}, or {name} in the file): {why}"
