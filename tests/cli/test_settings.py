"""Settings come from the environment, each room's its own; a wrong one is named, and a secret is not repeated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url

from colmlm.api.settings import ServerSettings, SignOnSettings
from colmlm.cli.settings import UserSettings
from colmlm.kb.access.records import Grant
from colmlm.kb.errors import SettingsError
from colmlm.kb.store.settings import Settings


def read_all(env: Mapping[str, str]) -> tuple[Settings, ServerSettings, UserSettings]:
    return (
        Settings.from_environment(env),
        ServerSettings.from_environment(env),
        UserSettings.from_environment(env),
    )


def test_settings_name_the_variable_at_fault_and_hide_secrets() -> None:
    for variable, value in {
        "COLMLM_PORT": "http",
        "COLMLM_DATABASE_URL": "mysql://me:hunter2@x/y",
        "COLMLM_INDEX_WAIT_SECONDS": "nan",
        "COLMLM_HOME": "/dev/null",
        "COLMLM_ALLOWED_HOSTS": "kb.example.org,https://kb.example.org",
        "COLMLM_CORS_ORIGINS": "https://app.example.org/",
        "COLMLM_DOCS_URL": "javascript:alert(1)",
        "COLMLM_RATE_LIMIT": "0",
        "COLMLM_DOCUMENT_MEMORY_MB": "12",
        "COLMLM_DOCUMENT_SECONDS": "0.5",
        "COLMLM_DOCUMENT_CHARACTERS": "all",
        "COLMLM_ERASE_NEEDS_TWO": "maybe",
        "COLMLM_KEEP_ANSWERS": "sometimes",
        "COLMLM_DRAIN_SECONDS": "for ever",
        "COLMLM_LOCK_TIMEOUT_SECONDS": "-1",
        "COLMLM_STATEMENT_TIMEOUT_SECONDS": "soon",
        "COLMLM_AS_OF_MAX_SCORES": "many",
        "COLMLM_READY_LAG": "-1",
        "COLMLM_LOG_FORMAT": "xml",
        "COLMLM_LOG_LEVEL": "loud",
        "COLMLM_METRICS_LISTEN": "9484",
        "COLMLM_UPLOAD_MAX_MB": "0",
        "COLMLM_JOB_RETENTION_DAYS": "-1",
        "COLMLM_MILVUS_URI": "http://me:hunter2@milvus",
        "COLMLM_MILVUS_TIMEOUT_SECONDS": "0",
    }.items():
        with pytest.raises(SettingsError, match=variable) as caught:
            read_all({variable: value})
        assert "hunter2" not in str(caught.value)
    settings = Settings.from_environment({"COLMLM_DATABASE_URL": "postgres://me:hunter2@x/y"})
    assert settings.database_url == "postgresql+psycopg://me:hunter2@x/y" and "hunter2" not in repr(settings)
    assert "hunter2" not in repr(Settings.from_environment({"COLMLM_MILVUS_TOKEN": "me:hunter2"}))
    assert "hunter2" not in repr(UserSettings.from_environment({"COLMLM_TOKEN": "hunter2"}))


def test_settings_have_defaults(tmp_path: Path) -> None:
    settings, serving, user = read_all(
        {"XDG_DATA_HOME": str(tmp_path), "COLMLM_ACTOR": "", "COLMLM_PORT": ""}
    )
    assert settings.home == tmp_path / "colmlm" and serving.port == 8484 and settings.actor
    assert settings.database_url is None and settings.index_wait_seconds == 5.0
    assert (serving.allowed_hosts, serving.cors_origins, serving.rate_limit) == ((), (), None)
    assert settings.erase_needs_two is False and user == UserSettings()
    named = ServerSettings.from_environment(
        {"COLMLM_CORS_ORIGINS": "https://a.example, http://localhost:5173"}
    )
    assert named.cors_origins == ("https://a.example", "http://localhost:5173")


def test_the_metrics_listen_where_they_are_told_to() -> None:
    told = {"[::1]:9484": ("::1", 9484), "0.0.0.0:1": ("0.0.0.0", 1), "": None}
    for value, address in told.items():
        assert ServerSettings.from_environment({"COLMLM_METRICS_LISTEN": value}).metrics_address() == address


def test_every_kind_of_value_is_read() -> None:
    settings, serving, user = read_all(
        {
            "COLMLM_LOCK_TIMEOUT_SECONDS": "0.5",
            "COLMLM_ERASE_NEEDS_TWO": "Yes",
            "COLMLM_DOCUMENT_MEMORY_MB": "512",
            "COLMLM_LOG_FORMAT": "JSON",
            "COLMLM_RATE_LIMIT": "60",
            "COLMLM_ALLOWED_HOSTS": "a.example, b.example",
            "COLMLM_KEY_FILE": "~/reader.key",
        }
    )
    assert (settings.lock_timeout_seconds, settings.erase_needs_two) == (0.5, True)
    assert settings.document.memory_mb == 512 and serving.log_format == "json" and serving.rate_limit == 60
    assert serving.allowed_hosts == ("a.example", "b.example")
    assert user.key_file == Path("~/reader.key").expanduser()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgresql://u@one/base", "postgresql+psycopg://u@one/base"),
        (
            "postgresql://u:p@one,two:5433/base?sslmode=verify-full",
            "postgresql+psycopg://u:p@/base?sslmode=verify-full&host=one,two&port=5432,5433&target_session_attrs=primary",
        ),
        (
            "postgresql:///base?host=/one,/two&target_session_attrs=any",
            "postgresql+psycopg:///base?host=/one,/two&target_session_attrs=any",
        ),
    ],
)
def test_of_several_servers_the_primary_is_connected_to_unless_the_url_says_otherwise(
    given: str, expected: str
) -> None:
    found = Settings.from_environment({"COLMLM_DATABASE_URL": given}).database_url
    assert found == expected
    assert Settings.from_environment({"COLMLM_DATABASE_URL": expected}).database_url == expected
    conninfo_to_dict(
        make_url(expected).set(drivername="postgresql").render_as_string()
    )  # libpq takes it as well


def test_settings_that_let_nobody_in_or_too_many_are_refused() -> None:
    right = {
        "COLMLM_SIGN_ON_ISSUER": "https://login.example.org/realms/kb",
        "COLMLM_SIGN_ON_CLIENT_ID": "console",
        "COLMLM_SIGN_ON_CLIENT_SECRET": "hunter2",
        "COLMLM_SIGN_ON_ROLES": "cn=admins=admin, sales=reader:demo+notes",
    }
    read = ServerSettings.from_environment(right).sign_on
    assert read.grants() == [("cn=admins", Grant("admin")), ("sales", Grant("reader", ("demo", "notes")))]
    assert "hunter2" not in repr(read)
    for variable, value in {
        "COLMLM_SIGN_ON_ISSUER": "http://login.example.org",
        "COLMLM_SIGN_ON_CLIENT_ID": "",
        "COLMLM_SIGN_ON_SCOPE": "email",
        "COLMLM_SIGN_ON_ROLES": "",
    }.items():
        with pytest.raises(SettingsError, match=variable):
            ServerSettings.from_environment(right | {variable: value})
    for roles in ("sales", "sales=chief", "sales=trainer:demo", "=admin"):
        with pytest.raises(SettingsError, match="COLMLM_SIGN_ON_ROLES") as refused:
            ServerSettings.from_environment(right | {"COLMLM_SIGN_ON_ROLES": roles})
        assert "unset" not in str(refused.value)


def test_the_first_mapped_group_gives_the_role() -> None:
    def grant(*groups: str) -> Grant | None:
        settings = SignOnSettings(roles=("a=reader:x", "b=reader:y", "c=admin", "d=reader", "e=decoder:z"))
        return settings.grant_of(groups)

    assert grant("b", "a") == Grant("reader", ("x", "y"))
    assert grant("c", "a") == Grant("reader", ("x",)) and grant("d", "a") == Grant("reader")
    assert grant("e", "a") == Grant("reader", ("x",)) and grant("c", "d") == Grant("admin")
    assert grant("A", "") is None
