from __future__ import annotations

from sqlalchemy import create_engine, text

from tests.cli.conftest import Run


def test_the_log_is_shown_page_by_page(run: Run, keyed: list[int]) -> None:
    whole = run("changes", "--json").json["changes"]
    first = run("changes", "--limit", 1, "--json").json
    assert first["changes"] == whole[:1] and first["next_after"] == whole[0]["seq"]
    assert "ingest" in run("changes").out


def test_a_sound_base_passes_the_check(run: Run, keyed: list[int]) -> None:
    ran = run("fsck", "--json")
    assert ran.code == 0 and ran.json["ok"]
    assert ran.json["live_facts"] == ran.json["live_keys"] == ran.json["index_ids"] == 2
    assert run("fsck").out.startswith("ok\n")


def test_a_damaged_text_fails_the_check(run: Run, keyed: list[int], database_url: str) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE document SET text = replace(text, 'Lima', 'LIMA')"))
    engine.dispose()
    ran = run("fsck", "--json")
    assert ran.code == 1 and not ran.json["ok"] and len(ran.json["non_verbatim_facts"]) == 1
    assert run("fsck").out.startswith("NOT ok\n")


def test_what_is_derived_is_mended_and_what_is_true_is_not(
    run: Run, keyed: list[int], database_url: str
) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE fact_key SET id = 1000 WHERE id = (SELECT min(id) FROM fact_key)"))
    assert run("fsck", "--dry-run").code == 2
    dry = run("fsck", "--repair", "--dry-run", "--json")
    assert dry.code == 1 and len(dry.json["mended"]) == 1 and not dry.json["ok"]
    assert run("fsck", "--repair").out.startswith("mended: ") and run("fsck").code == 0
    with engine.begin() as connection:
        connection.execute(text("UPDATE document SET text = replace(text, 'Lima', 'LIMA')"))
    engine.dispose()
    ran = run("fsck", "--repair")
    assert ran.code == 1 and "NOT mended" in ran.out
