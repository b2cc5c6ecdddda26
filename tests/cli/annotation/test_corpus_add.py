"""`corpus add`: from files to facts that can be cited, and again without doing anything twice."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from colmlm.kb.facts.corpora import says_the_same
from colmlm.kb.service import KnowledgeBase
from tests.cli.conftest import OPENING, Annotators, Run, annotators_that_ask
from tests.gates import full_disk, gate, interrupted
from tests.kb.corpus.raw.pages import Page, site
from tests.kb.corpus.raw.pdfs import pdf

INTO = ("--corpus", "town", "--json")


@pytest.fixture
def town(tmp_path: Path) -> Path:
    folder = tmp_path / "town"
    (folder / "old").mkdir(parents=True)
    (folder / "harbour.md").write_text("# Harbour\n\nThe harbour of **Lundvik** opened in 1834.\n")
    (folder / "museum.html").write_text("<nav>x</nav><h1>Museum</h1><p>The museum opened in <b>1902</b>.")
    (folder / "old" / "light.pdf").write_bytes(pdf(["The lighthouse opened in 1870."], title="Lighthouse"))
    (folder / "noise.txt").write_bytes(bytes(range(256)))
    (folder / "map.png").touch()
    return folder


def test_documents_of_three_kinds_become_facts_that_can_be_cited(
    run: Run, kb: KnowledgeBase, light: Annotators, town: Path
) -> None:
    with light.gone():
        dry = run("corpus", "add", town, *INTO, "--dry-run")
    assert dry.code == 3 and (dry.json["new"], dry.json["facts"]) == (3, 0)
    assert kb.corpora.all() == [] and kb.keysets.all() == []
    ran = run("corpus", "add", town, *INTO, "--questions")
    assert ran.code == 3 and ran.json["passed_over"] == {".png": 1}
    assert [refusal["document"] for refusal in ran.json["refusals"]] == ["noise.txt"]
    assert (ran.json["new"], ran.json["facts"], ran.json["citable"]) == (3, 3, True)
    assert ran.json["keyset"]["num_keys"] == 6 and ran.json["keyset"]["num_unkeyed"] == 0
    for fact in kb.facts.find():
        source = fact.source
        assert (
            source is not None
            and kb.documents.text(source.document_id)[source.start : source.end] == fact.value
        )
        assert (fact.question, fact.review) == (OPENING, "proposed")
        assert source.uri is None and kb.documents.read(source.document_id)[0].uri is None, (
            "no path of this machine"
        )
    assert {fact.source.external_id for fact in kb.facts.find() if fact.source} == {
        "harbour.md", "museum.html", "old/light.pdf"
    }  # fmt: skip
    command = shlex.split(ran.json["try"])
    assert command[:2] == ["colmlm", "ask"]
    said = run(*command[1:], "--json")
    assert said.code == 0 and said.json["answer"] in ("1834", "1870", "1902")


def test_a_fact_that_lost_its_question_to_the_checks_is_doubted(
    run: Run, kb: KnowledgeBase, town: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotators_that_ask("Who opened the given text?", tmp_path, monkeypatch)
    ran = run("corpus", "add", town, "--corpus", "town", "--questions")
    assert "Nobody has reviewed them yet: colmlm review list --corpus town" in ran.out
    found = kb.review.inbox(kind="doubted")
    assert {(item.fact.question, item.doubt) for item in found.items} == {(None, "pointing")}
    assert found.total == found.progress.proposed == 3


@pytest.mark.parametrize("option", [(), ("--no-questions",)])
def test_questions_are_written_only_where_they_are_asked_for(
    run: Run, kb: KnowledgeBase, light: Annotators, town: Path, option: tuple[str, ...]
) -> None:
    light.question_generator.rename(light.question_generator.with_name("away"))
    ran = run("corpus", "add", town, *INTO, *option)
    assert (ran.json["facts"], ran.json["citable"]) == (3, True)
    assert "keep the threshold" in ran.err and "`colmlm ask` needs none" in ran.err
    assert {fact.question for fact in kb.facts.find()} == {None}
    assert run("corpus", "add", town, *INTO, "--again", "--questions").code == 7


def test_questions_that_nobody_verified_get_no_keys(run: Run, light: Annotators, town: Path) -> None:
    added = run("corpus", "add", town, *INTO, "--questions", "--no-verify").json
    assert (added["facts"], added["keyset"]["num_keys"]) == (3, 3)
    assert {one["questions"] for one in added["added"]} == {1}


def test_unchanged_files_are_passed_over_and_a_changed_one_replaces_its_document(
    run: Run, kb: KnowledgeBase, light: Annotators, town: Path
) -> None:
    (town / "noise.txt").unlink()
    (town / "map.png").unlink()
    assert run("corpus", "add", town, "--corpus", "town").code == 0
    before, head = kb.facts.find(), kb.log.head_seq()
    with light.gone():
        again = run("corpus", "add", town, *INTO)
        assert "Nothing to add" in run("corpus", "add", town, "--corpus", "town").out
    assert (again.code, again.json["unchanged"], again.json["facts"], again.json["seq"]) == (0, 3, 0, None)
    assert kb.log.head_seq() == head
    (town / "museum.html").write_text("<h1>Museum</h1><p>The museum opened in 1904.")
    changed = run("corpus", "add", town, *INTO).json
    assert (changed["changed"], changed["unchanged"], changed["facts"]) == (1, 2, 1)
    assert [one["document"] for one in changed["added"]] == ["museum.html"]
    values = {fact.value for fact in kb.facts.find()}
    assert values == {"1834", "1870", "1904"} and {fact.value for fact in before} == {"1834", "1870", "1902"}
    assert kb.keysets.all()[0].num_unkeyed == 0
    with light.gone():
        assert run("corpus", "add", town, "--corpus", "town", "--again").code == 7
    spoken = run("corpus", "add", town, "--corpus", "town", "--again", "--questions").out
    assert "can be cited now" in spoken and "Try: colmlm ask" in spoken


def test_a_run_that_is_cut_off_is_gone_on_with_and_everything_is_keyed_in_the_end(
    run: Run, kb: KnowledgeBase, light: Annotators, tmp_path: Path, database_url: str
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for n in range(50):
        (folder / f"{n:02}.txt").write_text(f"Hall {n} opened in {1900 + 2 * n}.")
    with full_disk(database_url, "INSERT ON document", "NEW.external_id = '25.txt'"):
        stopped = run("corpus", "add", folder, *INTO)
    assert stopped.code == 9 and "20 documents are in 'town'" in stopped.err
    with gate(database_url, "INSERT ON change", "NEW.kind = 'key'") as keying, interrupted(keying):
        assert run("corpus", "add", folder, *INTO).code == 130
    assert len(kb.facts.find(limit=100)) == 50
    with light.gone():
        done = run("corpus", "add", folder, *INTO).json
    assert (done["unchanged"], done["facts"]) == (50, 0)
    assert done["keyset"]["num_keys"] == 50 and done["citable"]


def test_what_was_erased_does_not_make_a_file_look_changed(
    run: Run, kb: KnowledgeBase, light: Annotators, town: Path
) -> None:
    assert run("corpus", "add", town, "--corpus", "town").code == 3
    assert run("erase", kb.facts.find()[0].fact_id, "--reason", "asked for", "--yes").code == 0
    with light.gone():
        again = run("corpus", "add", town, *INTO).json
    assert (again["unchanged"], again["facts"]) == (3, 0)
    forced = run("corpus", "add", town, *INTO, "--again").json
    assert (forced["suppressed"], forced["facts"], len(kb.facts.find())) == (1, 0, 2)


def test_texts_are_compared_apart_from_what_was_erased() -> None:
    assert says_the_same("Lima is ████.", "Lima is good.")
    assert says_the_same("█ is", "█ is")
    assert not says_the_same("Lima is ████.", "Lima is so bad.")
    assert not says_the_same("Lima is good.", "Lima is ████.")


def test_files_of_other_kinds_are_counted_and_tell_unless_they_are_to_be_skipped(
    run: Run, light: Annotators, town: Path
) -> None:
    (town / "noise.txt").unlink()
    told = run("corpus", "add", town, "--corpus", "town")
    assert told.code == 3 and "1 file of other kinds passed over (.png 1)" in told.out
    silent = run("corpus", "add", town, "--corpus", "town", "--skip-unknown")
    assert silent.code == 0 and "passed over" not in silent.out
    counted = run("corpus", "add", town, *INTO, "--skip-unknown")
    assert (counted.code, counted.json["passed_over"]) == (0, {".png": 1})
    annotating = ("corpus", "annotate", town, "--output", town.parent / "town.jsonl", "--dry-run")
    assert run(*annotating).code == 3 and run(*annotating, "--skip-unknown").code == 0


def test_fields_of_records_are_named(run: Run, kb: KnowledgeBase, light: Annotators, tmp_path: Path) -> None:
    table = tmp_path / "halls.csv"
    table.write_text("hall,name,words\n7,Old Hall,It opened in 1834.\n8,New Hall\n")
    unnamed = run("corpus", "add", table, *INTO)
    assert unnamed.code == 3 and "'hall', 'name', 'words'" in unnamed.json["refusals"][0]["reason"]
    named = ("--id-field", "hall", "--title-field", "name", "--text-field", "words")
    ran = run("corpus", "add", table, *INTO, *named)
    assert (ran.code, ran.json["new"], ran.json["refusals"][0]["document"]) == (3, 1, "halls.csv:3")
    (fact,) = kb.facts.find()
    assert fact.source is not None and (fact.source.external_id, fact.source.title) == ("7", "Old Hall")


def test_pages_of_the_web_are_added_with_their_addresses(
    run: Run, kb: KnowledgeBase, light: Annotators, tmp_path: Path
) -> None:
    addresses = tmp_path / "pages.txt"
    with site({"/museum": Page(b"<h1>Museum</h1><p>It opened in 1902.")}) as here:
        addresses.write_text(f"{here.address}/museum\n{here.address}/none\n")
        refused = run("corpus", "add", "--urls", addresses, *INTO)
        assert (
            refused.code == 3
            and "--allow-private" in refused.json["refusals"][0]["reason"]
            and not here.asked
        )
        ran = run("corpus", "add", "--urls", addresses, *INTO, "--allow-private")
    assert (ran.code, ran.json["new"], ran.json["refused"]) == (3, 1, 1)
    (fact,) = kb.facts.find()
    assert fact.source is not None and fact.value == "1902"
    assert fact.source.external_id == fact.source.uri == f"{here.address}/museum"
    assert run("corpus", "add", *INTO).code == 2
    addresses.write_text("# none\n")
    assert "no address in it" in run("corpus", "add", "--urls", addresses, *INTO).err


def test_a_fact_of_a_pdf_says_its_page(
    run: Run, kb: KnowledgeBase, light: Annotators, tmp_path: Path
) -> None:
    printed = tmp_path / "light.pdf"
    printed.write_bytes(pdf(["The lighthouse"], [], ["It opened in 1870."]))
    assert run("corpus", "add", printed, *INTO).code == 0
    (fact,) = kb.facts.find()
    assert run("facts", "show", fact.fact_id, "--json").json["page"] == 3
    assert "page:     3" in run("facts", "show", fact.fact_id).out
    assert ", page 3" in run("trace", "fact", fact.fact_id).out
    assert run("trace", "fact", fact.fact_id, "--json").json["page"] == 3
    assert "[page 3]\nIt opened in 1870." in run("corpus", "documents", 1).out


def test_what_cannot_be_done_is_one_line(run: Run, light: Annotators, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    nothing = run("corpus", "add", tmp_path / "empty", *INTO)
    assert nothing.code == 0 and nothing.json["documents"] == 0 and nothing.json["keyset"] is None
    assert run("corpus", "add", tmp_path / "none", *INTO).code == 2
    assert "no encoding 'klingon'" in run("corpus", "add", tmp_path, *INTO, "--encoding", "klingon").err
