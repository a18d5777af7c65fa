"""The settings of `gavel serve`: sources, precedence and validation."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel.v1 import fact_pb2
from gavel.v1.fact_pb2 import CrossCheck
from gavel_server.config import Settings, SettingsError, is_local, load
from gavel_server.log.acknowledgement import Acknowledgement


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove Gavel's variables from the environment."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"GAVEL_{name.upper()}", raising=False)


def test_defaults() -> None:
    """By default a server listens on loopback, keeps its log in .gavel, and evaluates every proposal with both engines."""
    settings = load()
    assert ("127.0.0.1:9090", Path(".gavel"), None) == (settings.listen, settings.data, settings.redis)
    assert CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS) == settings.cross_check_of_new_bus
    assert (Acknowledgement(), 7 * 24 * 60 * 60 * 1000) == (settings.acknowledgement, settings.idempotency_window_ms)
    assert (True, False, False) == (settings.fdr, settings.accept_volatile, settings.allow_unauthenticated_network)


def test_command_line_before_environment_before_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line overrides the environment, which overrides the file; each applies where the others are unset."""
    file = tmp_path / "gavel.toml"
    file.write_text('listen = "127.0.0.1:1"\ndata = "from-file"\nack = "replicas:1"\n')
    monkeypatch.setenv("GAVEL_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("GAVEL_DATA", "from-environment")
    settings = load(file, {"listen": "127.0.0.1:3"})
    assert ("127.0.0.1:3", Path("from-environment"), Acknowledgement(1)) == (settings.listen, settings.data, settings.acknowledgement)


def test_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment variable that is empty counts as not set."""
    monkeypatch.setenv("GAVEL_REDIS", "")
    assert load().redis is None


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("off", CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_OFF)),
        ("sample 20", CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_SAMPLE, sample_every=20)),
    ],
)
def test_cross_check(mode: str, expected: CrossCheck) -> None:
    """The text of a cross-check mode is parsed into the contract's message."""
    assert expected == load(options={"cross_check": mode}).cross_check_of_new_bus


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.9.9.9:1", "[::1]:9090", "localhost:1", "unix:/run/gavel.sock", "unix:gavel.sock"])
def test_local_addresses(listen: str) -> None:
    """Loopback and unix sockets need no permission."""
    assert is_local(listen)
    assert listen == load(options={"listen": listen}).listen


@pytest.mark.parametrize("listen", ["0.0.0.0:9090", "[::]:9090", "10.0.0.1:1", "gavel.example:9090", "localhost.example:1"])
def test_network_needs_an_explicit_option(listen: str) -> None:
    """A server listens beyond this machine only with --allow-unauthenticated-network."""
    with pytest.raises(SettingsError, match=r"no authentication is configured.*--allow-unauthenticated-network"):
        load(options={"listen": listen})
    assert listen == load(options={"listen": listen, "allow_unauthenticated_network": True}).listen


def test_metrics_bind_like_the_server() -> None:
    """Metrics are served beyond this machine only with --allow-unauthenticated-network."""
    with pytest.raises(SettingsError, match=r"metrics is 0\.0\.0\.0:9091.*--allow-unauthenticated-network"):
        load(options={"metrics": "0.0.0.0:9091"})
    assert "127.0.0.1:9091" == load(options={"metrics": "127.0.0.1:9091"}).metrics
    assert "0.0.0.0:9091" == load(options={"metrics": "0.0.0.0:9091", "allow_unauthenticated_network": True}).metrics


@pytest.mark.parametrize("listen", ["", "9090", ":9090", "host:", "host:65536", "host:-1", "::1:9090", "host:port", "unix:"])
def test_invalid_addresses(listen: str) -> None:
    """An invalid address is refused with the valid forms."""
    with pytest.raises(SettingsError, match="use HOST:PORT"):
        load(options={"listen": listen})


@pytest.mark.parametrize("storage", ['redis = "redis://elsewhere:6379/0"', 'data = "/dev/gavel"'], ids=["redis", "volume"])
def test_container_with_storage(storage: str, tmp_path: Path) -> None:
    """In a container with a Redis or a volume, also one set by the file, a server listens on all addresses; elsewhere it does not."""
    file = tmp_path / "gavel.toml"
    file.write_text(storage)
    inside = load(file, {"container": True})
    assert ("0.0.0.0:9090", True, False) == (inside.listen, inside.allow_unauthenticated_network, inside.is_unreachable)
    outside = load(file)
    assert ("127.0.0.1:9090", False, False) == (outside.listen, outside.allow_unauthenticated_network, outside.is_unreachable)


def test_container_without_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container without storage the server stays on loopback and logs the reason."""
    monkeypatch.setattr(Path, "is_mount", lambda path: path == Path("/"))
    settings = load(options={"container": True})
    assert ("127.0.0.1:9090", False, True) == (settings.listen, settings.allow_unauthenticated_network, settings.is_unreachable)


def test_explicit_address_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit address applies in a container too, with the same safeguards."""
    monkeypatch.setenv("GAVEL_CONTAINER", "true")
    file = tmp_path / "gavel.toml"
    file.write_text('listen = "127.0.0.1:1"\nredis = "redis://elsewhere:6379/0"\n')
    settings = load(file)
    assert ("127.0.0.1:1", False, False) == (settings.listen, settings.allow_unauthenticated_network, settings.is_unreachable)
    with pytest.raises(SettingsError, match="no authentication is configured"):
        load(file, {"listen": "0.0.0.0:1"})


def test_all_invalid_settings_at_once() -> None:
    """All invalid settings are reported at once, each with its sources."""
    with pytest.raises(SettingsError) as refusal:
        load(options={"ack": "all", "cross_check": "sample 0", "idempotency_window_days": 0, "log_level": "loud"})
    named = [line.split(":")[0] for line in str(refusal.value).splitlines()]
    window = "idempotency_window_days"
    assert [
        "setting ack (--ack, GAVEL_ACK, or ack in the file)",
        "setting log_level (--log-level, GAVEL_LOG_LEVEL, or log_level in the file)",
        "setting cross_check (--cross-check, GAVEL_CROSS_CHECK, or cross_check in the file)",
        f"setting {window} (--idempotency-window-days, GAVEL_IDEMPOTENCY_WINDOW_DAYS, or {window} in the file)",
    ] == named


def test_unknown_key_in_the_file(tmp_path: Path) -> None:
    """An unknown key is refused, with the names of the settings."""
    file = tmp_path / "gavel.toml"
    file.write_text('lisen = "127.0.0.1:1"\n')
    with pytest.raises(
        SettingsError, match=r"gavel\.toml sets lisen, which is not a setting; the settings are: accept_volatile, ack, .*listen"
    ):
        load(file)


def test_unknown_key_of_an_issuer(tmp_path: Path) -> None:
    """An unknown key of an issuer is refused, with the names of an issuer's settings."""
    file = tmp_path / "gavel.toml"
    file.write_text('[[issuers]]\nissuer = "https://a"\naudience = "gavel"\naudiens = "x"\njwks_file = "k.json"\n')
    with pytest.raises(
        SettingsError,
        match=r"sets issuers\.0\.audiens, which is not a setting; the settings of issuers are: algorithms, audience, .*leeway",
    ):
        load(file)


def test_unreadable_files(tmp_path: Path) -> None:
    """A missing file and one that is not TOML are refused by name."""
    with pytest.raises(SettingsError, match=r"settings file .*nowhere\.toml does not exist"):
        load(tmp_path / "nowhere.toml")
    file = tmp_path / "gavel.toml"
    file.write_text("listen = \n")
    with pytest.raises(SettingsError, match=r"gavel\.toml is not TOML: .*line 1"):
        load(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"gavel\.toml is not TOML: .*utf-8"):
        load(file)


@pytest.mark.parametrize(
    "url", ["nowhere", "http://host", "redis://host:port", "redis://host/orders", "redis://host/1/2", "redis://host?db=x"]
)
def test_invalid_redis_urls(url: str) -> None:
    """An invalid Redis URL is refused, also one whose database is not a number, which would select database 0."""
    with pytest.raises(SettingsError, match=r"setting redis \(--redis, .* the Redis URL .* is malformed; use redis://host:6379/0"):
        load(options={"redis": url})


def test_one_store() -> None:
    """`log` names a PostgreSQL or a Redis and `redis` a Redis; both together are refused, and without them the server has its own."""
    url = "postgresql://gavel_server@db/logs"
    assert (url, "redis://host", "redis://host", None) == (
        load(options={"log": url}).store,
        load(options={"log": "redis://host"}).store,
        load(options={"redis": "redis://host"}).store,
        load().store,
    )
    with pytest.raises(SettingsError, match="log and redis name two stores; set one of them"):
        load(options={"log": url, "redis": "redis://host"})
    with pytest.raises(SettingsError, match=r"setting redis \(--redis"):
        load(options={"redis": url})


@pytest.mark.parametrize("url", ["redis://host", "redis://host/", "rediss://:secret@host:6379/15", "unix:///run/redis.sock?db=1"])
def test_valid_redis_urls(url: str) -> None:
    """A valid Redis URL is unchanged."""
    assert url == load(options={"redis": url}).redis
