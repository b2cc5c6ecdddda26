"""Settings: where the knowledge base lives and how it is served, from `COLMLM_*` variables that `cli` reads once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from colmlm.kb.corpus.raw.limits import Limits
from colmlm.kb.errors import SettingsError
from colmlm.kb.principal import local_user

_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?")
LOG_FORMATS = ("auto", "json", "text")
LOG_LEVELS = ("debug", "info", "warning", "error")

_POSTGRES = re.compile(r"postgres(?:ql)?(?:\+psycopg)?://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings as one frozen value that is passed down; nothing below `cli` reads the environment."""

    home: Path
    database_url: str | None = field(default=None, repr=False)  # holds a password
    checkpoint: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8484
    actor: str = "unknown"
    index_wait_seconds: float = 5.0
    lock_timeout_seconds: float = 10.0
    statement_timeout_seconds: float = 60.0
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    rate_limit: int | None = None
    erase_needs_two: bool = False
    token: str | None = field(default=None, repr=False)
    server: str | None = None
    key_file: Path | None = None
    upload_max_mb: int = 256
    document_limits: Limits = field(default_factory=Limits)
    job_retention_days: int = 90
    plan_max_facts: int = 100_000
    as_of_max_scores: int = 100_000_000
    prompt_max_tokens: int = 4096
    ready_lag: int = 1000
    drain_seconds: float = 30.0
    log_format: str = "auto"
    log_level: str = "info"
    metrics_listen: tuple[str, int] | None = None
    annotator_api_key: str | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Settings:
        """Makes the settings from `env`. An empty variable counts as unset. Raises `SettingsError`."""
        checkpoint, key_file = env.get("COLMLM_CHECKPOINT"), env.get("COLMLM_KEY_FILE")
        return cls(
            home=_home(env),
            database_url=_database_url(_secret(env, "COLMLM_DATABASE_URL", "COLMLM_DATABASE_URL_FILE")),
            checkpoint=Path(checkpoint).expanduser() if checkpoint else None,
            host=env.get("COLMLM_HOST") or "127.0.0.1",
            port=_port(env.get("COLMLM_PORT") or "8484"),
            actor=_actor(env),
            index_wait_seconds=_seconds(
                "COLMLM_INDEX_WAIT_SECONDS", env.get("COLMLM_INDEX_WAIT_SECONDS") or "5"
            ),
            lock_timeout_seconds=_seconds(
                "COLMLM_LOCK_TIMEOUT_SECONDS", env.get("COLMLM_LOCK_TIMEOUT_SECONDS") or "10"
            ),
            statement_timeout_seconds=_seconds(
                "COLMLM_STATEMENT_TIMEOUT_SECONDS", env.get("COLMLM_STATEMENT_TIMEOUT_SECONDS") or "60"
            ),
            allowed_hosts=_hosts(env.get("COLMLM_ALLOWED_HOSTS") or ""),
            cors_origins=_origins(env.get("COLMLM_CORS_ORIGINS") or ""),
            rate_limit=_rate(env.get("COLMLM_RATE_LIMIT") or None),
            erase_needs_two=_is_on("COLMLM_ERASE_NEEDS_TWO", env.get("COLMLM_ERASE_NEEDS_TWO") or "no"),
            token=env.get("COLMLM_TOKEN", "").strip() or None,
            server=env.get("COLMLM_SERVER") or None,
            key_file=Path(key_file).expanduser() if key_file else None,
            upload_max_mb=_megabytes("COLMLM_UPLOAD_MAX_MB", env.get("COLMLM_UPLOAD_MAX_MB") or "256"),
            document_limits=_limits(env),
            job_retention_days=_days(
                "COLMLM_JOB_RETENTION_DAYS", env.get("COLMLM_JOB_RETENTION_DAYS") or "90"
            ),
            plan_max_facts=_number(
                "COLMLM_PLAN_MAX_FACTS", env.get("COLMLM_PLAN_MAX_FACTS") or "100000", "facts"
            ),
            as_of_max_scores=_number(
                "COLMLM_AS_OF_MAX_SCORES", env.get("COLMLM_AS_OF_MAX_SCORES") or "100000000", "scores"
            ),
            prompt_max_tokens=_number(
                "COLMLM_PROMPT_MAX_TOKENS", env.get("COLMLM_PROMPT_MAX_TOKENS") or "4096", "tokens"
            ),
            ready_lag=_number("COLMLM_READY_LAG", env.get("COLMLM_READY_LAG") or "1000", "changes"),
            drain_seconds=_seconds("COLMLM_DRAIN_SECONDS", env.get("COLMLM_DRAIN_SECONDS") or "30"),
            log_format=_one_of("COLMLM_LOG_FORMAT", env.get("COLMLM_LOG_FORMAT") or "auto", LOG_FORMATS),
            log_level=_one_of("COLMLM_LOG_LEVEL", env.get("COLMLM_LOG_LEVEL") or "info", LOG_LEVELS),
            metrics_listen=_address(env.get("COLMLM_METRICS_LISTEN") or None),
            annotator_api_key=_secret(env, "COLMLM_ANNOTATOR_API_KEY", "COLMLM_ANNOTATOR_API_KEY_FILE"),
        )

    @property
    def index_directory(self) -> Path:
        """The directory of index snapshots, a cache that may be removed at any time."""
        return self.home / "index"


def _home(env: Mapping[str, str]) -> Path:
    if chosen := env.get("COLMLM_HOME"):
        home = Path(chosen).expanduser()
        if home.exists() and not home.is_dir():
            raise SettingsError("COLMLM_HOME", f"{home} is not a directory")
        return home.absolute()
    data = env.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "colmlm"


def _secret(env: Mapping[str, str], variable: str, in_file: str) -> str | None:
    """Gives the value of `variable`, or the content of the file that `in_file` names, as containers pass secrets."""
    value = env.get(variable, "").strip()
    if value and env.get(in_file):
        raise SettingsError(variable, f"{in_file} is set too")
    if not value and (file := env.get(in_file)):
        try:
            value = Path(file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(in_file, f"{file} cannot be read") from error
    return value or None


def _database_url(url: str | None) -> str | None:
    """Gives the URL in SQLAlchemy's form for psycopg 3. Its error never repeats the URL, which holds a password."""
    if url is None:
        return None
    if not (scheme := _POSTGRES.match(url)):
        raise SettingsError("COLMLM_DATABASE_URL", "it must start with postgresql://")
    return f"postgresql+psycopg://{url[scheme.end() :]}"


def _actor(env: Mapping[str, str]) -> str:
    if actor := env.get("COLMLM_ACTOR", "").strip():
        return actor
    return local_user()


def _port(text: str, variable: str = "COLMLM_PORT") -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise SettingsError(variable, f"{text!r} is not a port from 1 to 65535")
    return int(text)


def _address(text: str | None) -> tuple[str, int] | None:
    """Gives host and port of HOST:PORT, or of [HOST]:PORT for IPv6."""
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not (colon and host.strip("[]")):
        raise SettingsError("COLMLM_METRICS_LISTEN", f"{text!r} is not HOST:PORT")
    return host.strip("[]"), _port(port, "COLMLM_METRICS_LISTEN")


def _one_of(variable: str, text: str, allowed: tuple[str, ...]) -> str:
    if text.lower() not in allowed:
        raise SettingsError(variable, f"{text!r} is not one of {', '.join(allowed)}")
    return text.lower()


def _number(variable: str, text: str, of: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise SettingsError(variable, f"{text!r} is not a number of {of}")
    return int(text)


def _seconds(variable: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise SettingsError(variable, f"{text!r} is not a number of seconds") from None
    if not 0 <= seconds <= 3600:
        raise SettingsError(variable, f"{text!r} is not between 0 and 3600 seconds")
    return seconds


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _hosts(text: str) -> tuple[str, ...]:
    hosts = _listed(text)
    for host in hosts:
        if "/" in host or "*" in host or any(c.isspace() for c in host):
            raise SettingsError("COLMLM_ALLOWED_HOSTS", f"{host!r} is not the name of a host")
    return hosts


def _origins(text: str) -> tuple[str, ...]:
    """Gives origins as browsers write them, since they are compared literally."""
    origins = _listed(text)
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise SettingsError("COLMLM_CORS_ORIGINS", f"{origin!r} is not like https://app.example.org")
    return origins


def _rate(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 1_000_000:
        raise SettingsError(
            "COLMLM_RATE_LIMIT", f"{text!r} is not a number of requests a minute from 1 to 1000000"
        )
    return int(text)


def _is_on(variable: str, text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise SettingsError(variable, f"{text!r} is neither yes nor no")
    return text.lower() == "yes"


def _megabytes(variable: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 1_000_000:
        raise SettingsError(variable, f"{text!r} is not a number of megabytes from 1 to 1000000")
    return int(text)


def _limits(env: Mapping[str, str]) -> Limits:
    """Gives the limits for reading one document; with less memory than the least allowed a reader does not start."""
    usual = Limits()
    return Limits(
        _counted(env, "COLMLM_DOCUMENT_MEMORY_MB", usual.memory_mb, 128, 1_000_000),
        _counted(env, "COLMLM_DOCUMENT_SECONDS", usual.seconds, 1, 86_400),
        _counted(env, "COLMLM_DOCUMENT_CHARACTERS", usual.characters, 1000, 100_000_000),
    )


def _counted(env: Mapping[str, str], variable: str, usual: int, least: int, most: int) -> int:
    text = env.get(variable) or str(usual)
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise SettingsError(variable, f"{text!r} is not a number from {least} to {most}")
    return int(text)


def _days(variable: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 36_500:
        raise SettingsError(variable, f"{text!r} is not a number of days from 0 to 36500")
    return int(text)
