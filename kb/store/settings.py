"""Settings of the knowledge base: its place and its limits, read once from `COLMLM_*` by the program's entry point."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from colmlm.kb.errors import SettingsError
from colmlm.kb.principal import local_user
from colmlm.kb.texts.characters import DocumentLimits

Uri = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s@]+$",
        description="an address that starts with http:// or https:// and holds no password",
    ),
]
CallSeconds = Annotated[float, Meta(ge=0.1, le=600, description="a number of seconds from 0.1 to 600")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MilvusAddress:
    """The Milvus server of keysets whose index is `milvus:COLLECTION`. Without such a keyset it gets no request."""

    uri: Uri = field(default="http://127.0.0.1:19530", repr=False)  # a wrong one may hold a password
    """The address of the Milvus server, for keysets that name a collection."""
    token: str | None = field(default=None, repr=False)
    """The server's token, or `user:password`."""
    timeout_seconds: CallSeconds = 5.0
    """How long one request of a lookup there may take. A write may take a minute."""


_POSTGRES = re.compile(r"postgres(?:ql)?(?:\+psycopg)?://")

Number = Annotated[int, Meta(ge=0, le=10**12, description="a number")]
Megabytes = Annotated[int, Meta(ge=1, le=1_000_000, description="a number of megabytes from 1 to 1000000")]
Percent = Annotated[int, Meta(ge=0, le=100, description="a number of percent from 0 to 100")]
SharedPlace = Annotated[
    str,
    Meta(
        pattern=r"^([a-z][a-z0-9+.-]*:/)?/[^\s@:?#]+$",
        description="a directory, or an address like s3://bucket/folder that holds no password",
    ),
]
Days = Annotated[int, Meta(ge=0, le=36_500, description="a number of days from 0 to 36500")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings as one frozen value that is passed down; nothing below `cli` reads the environment."""

    home: Path
    """The folder of this installation. Default: `$XDG_DATA_HOME/colmlm`, else `~/.local/share/colmlm`."""
    database_url: str | None = field(default=None, repr=False)  # holds a password
    """`postgresql://user:password@host/database` of your own server. Unset, the embedded server is used."""
    actor: str = "unknown"
    """The name that changes made on this machine are recorded under. Default: your user name."""
    index_wait_seconds: Seconds = 5.0
    """How long a lookup waits for the change that it has to have seen."""
    lock_timeout_seconds: Seconds = 10.0
    """How long a request to a server waits for a lock, such as that of the change log. 0 waits without
    end.
    """
    statement_timeout_seconds: Seconds = 60.0
    """How long one statement of a request to a server may run. 0 sets no limit."""
    report_timeout_seconds: Seconds = 600.0
    """How long one statement of a report may run, such as `corpus list --stats`. 0 sets no limit."""
    erase_needs_two: bool = False
    """`yes`: an erasure waits until a second admin approves it."""
    hold_needs_two: Literal["no", "release", "both"] = "no"
    """`release`: a hold ends only when the holder of a second token says so. `both`: it begins so, too."""
    keep_answers: bool = True
    """`no`: neither answers nor their questions are stored."""
    upload_max_mb: Megabytes = 256
    """The largest file that may be uploaded. All files that wait for their jobs may take four times as
    much.
    """
    document: DocumentLimits = field(default_factory=DocumentLimits)
    milvus: MilvusAddress = field(default_factory=MilvusAddress)
    index_device_percent: Percent = 50
    """How many percent of a CUDA device's free memory the keys of an index may take. 0: no device is used."""
    job_retention_days: Days = 90
    """How long a job is kept after it ended. 0 keeps all jobs."""
    miss_retention_days: Days = 365
    """How long a miss is kept, with its question. 0 keeps all misses."""
    shared_snapshots: SharedPlace | None = field(default=None, repr=False)  # a wrong one may hold a password
    """A folder or an address of object storage through which servers of one base share index snapshots."""
    plan_max_facts: Number = 100_000
    """Up to how many live facts a server works out plans to forget."""
    as_of_max_scores: Number = 100_000_000
    """How many scores a lookup as of a change may compute: its queries times the keys of the base."""
    webhook_networks: tuple[str, ...] = ()
    """Private networks that webhooks may reach, such as `10.20.0.0/16`, with commas between them."""
    backup_recipients: tuple[str, ...] = ()
    """Public keys of age (`age1...`), or files of such keys, that backups are encrypted to."""
    sealing_keys: Path | None = None
    """The file of the keys that open the texts in backups. Default: `sealing.keys` in the home."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Settings:
        """Make the settings from `env`. An empty variable counts as unset. Raises `SettingsError`."""
        actor = env.get("COLMLM_ACTOR", "").strip() or local_user()
        found = read_settings(cls, env, home=_home(env), actor=actor)
        _check_networks(found.webhook_networks)
        return replace(found, database_url=_database_url(found.database_url))

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


def _check_networks(networks: tuple[str, ...]) -> None:
    for network in networks:
        try:
            ip_network(network)
        except ValueError as error:
            raise SettingsError(
                "COLMLM_WEBHOOK_NETWORKS", f"{network!r} is no network like 10.0.0.0/8"
            ) from error


def _database_url(url: str | None) -> str | None:
    """Give the URL in SQLAlchemy's form for psycopg 3. Its error never repeats the URL, which holds a password."""
    if url is None:
        return None
    if not (scheme := _POSTGRES.match(url)):
        raise SettingsError("COLMLM_DATABASE_URL", "it must start with postgresql://")
    return f"postgresql+psycopg://{_hosts_as_options(url[scheme.end() :])}"


def _hosts_as_options(rest: str) -> str:
    """Move several hosts (``user@one:5432,two:5432/base``) of a URL into its options `host` and `port`.

    `rest` is the URL without its scheme. Where it sets no `target_session_attrs`, the primary is connected to.
    """
    where, slash, path = rest.partition("/")
    user, at, hosts = where.rpartition("@")
    base, _, said = path.partition("?")
    options = [option for option in said.split("&") if option]
    if "," in hosts:
        places = [host.partition(":") for host in hosts.split(",")]
        options.append(f"host={','.join(name for name, _, _ in places)}")
        options.append(f"port={','.join(port or '5432' for _, _, port in places)}")
        hosts = ""
    several = any(option.startswith("host=") and "," in option for option in options)
    if several and not any(option.startswith("target_session_attrs=") for option in options):
        options.append("target_session_attrs=primary")
    return f"{user}{at}{hosts}{slash or '/'}{base}?{'&'.join(options)}" if several else rest


# Reads records of settings from an environment: the field `port` is the variable COLMLM_PORT.

T = TypeVar("T")

Seconds = Annotated[float, Meta(ge=0, le=3600, description="a number of seconds from 0 to 3600")]
Port = Annotated[int, Meta(ge=1, le=65_535, description="a port from 1 to 65535")]


def read_settings(kind: type[T], env: Mapping[str, str], prefix: str = "COLMLM_", **given: Any) -> T:
    """Read a dataclass of settings from `env`, but take the fields in `given` as they are. An empty variable is unset.

    A field with `repr=False` is a secret: a variable with the suffix _FILE may name its file. Raises `SettingsError`,
    which names the variable.
    """
    hints = get_type_hints(kind, include_extras=True)
    for setting in fields(kind):  # type: ignore[arg-type]  # T is a dataclass
        variable, hint = f"{prefix}{setting.name.upper()}", hints[setting.name]
        if setting.name in given:
            continue
        if is_dataclass(hint):
            given[setting.name] = read_settings(hint, env, prefix=f"{variable}_")  # type: ignore[arg-type]
        elif (text := env.get(variable) if setting.repr else _secret(env, variable)) and text.strip():
            given[setting.name] = _convert_setting(variable, text.strip(), hint, is_secret=not setting.repr)
    return kind(**given)


def _convert_setting(variable: str, text: str, hint: Any, *, is_secret: bool) -> Any:
    inner = _without_none(hint)
    bare = get_args(inner)[0] if get_origin(inner) is Annotated else inner
    if bare is Path:
        return Path(text).expanduser()
    if bare is bool:
        inner, text = Literal["yes", "no"], text.lower()
    value: Any = text.lower() if get_origin(inner) is Literal else text
    if get_origin(bare) is tuple:
        value = [item.strip() for item in text.split(",") if item.strip()]
    try:
        found = msgspec.convert(value, inner, strict=False)
    except msgspec.ValidationError as error:
        said = "its value" if is_secret else repr(text)
        raise SettingsError(variable, f"{said} is not {_describe_type(inner)}") from error
    return found == "yes" if bare is bool else found


def _without_none(hint: Any) -> Any:
    """Give the type hint of a field without its alternative None."""
    if type(None) not in get_args(hint):
        return hint
    return Union[tuple(arg for arg in get_args(hint) if arg is not type(None))]  # noqa: UP007  made at run time


def _describe_type(hint: Any) -> str:
    """Describe the values of a type for an error message, such as "a number of days from 0 to 36500"."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    for one in (hint, *get_args(hint)):
        for meta in getattr(one, "__metadata__", ()):
            if isinstance(meta, Meta) and meta.description:
                return meta.description
    return f"a {getattr(hint, '__name__', hint)}"


def _secret(env: Mapping[str, str], variable: str) -> str | None:
    """Read a secret from `variable`, or from the file that its _FILE names; None where neither is set."""
    value, in_file = env.get(variable, "").strip(), f"{variable}_FILE"
    if value and env.get(in_file):
        raise SettingsError(variable, f"{in_file} is set too. Unset one of them")
    if not value and (file := env.get(in_file)):
        try:
            value = Path(file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            cause = getattr(error, "strerror", None) or "it is not UTF-8"
            raise SettingsError(in_file, f"{file} cannot be read ({cause})") from error
        if not value:
            raise SettingsError(in_file, f"{file} is empty. Write the value into it")
    return value or None
