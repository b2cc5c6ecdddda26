"""Articles of MediaWiki dumps and of extracts become documents with title, revision and address."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, Refusal
from colmlm.kb.corpus.raw.files import find_files
from colmlm.kb.corpus.raw.read import plain_text
from colmlm.kb.corpus.raw.reading import read_raw
from colmlm.kb.texts.characters import DocumentLimits

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11"><siteinfo>
<base>https://de.example.org/wiki/Start</base><namespaces><namespace key="0"/><namespace key="6">Datei</namespace>
<namespace key="14">Kategorie</namespace></namespaces></siteinfo>"""
HARBOUR = """{{Infobox|a={{b}}}}
[[Datei:a.png|thumb|The [[pier]] in 1900]]
'''Lundvik''' ({{lang|x}}) is a [[town (place)|town]] in [[Norway]].&lt;ref&gt;[[x]]&lt;/ref&gt;
It's&amp;nbsp;''old''.__NOTOC__

== Harbour ==
* opened in 1834&lt;br/&gt;and [https://e.example widened]
{| class="x"
| cell
|}
[[Kategorie:Towns]] [[:Kategorie:Shown]]"""


def page(number: int, title: str, text: str, *, ns: int = 0, more: str = "", revisions: int = 1) -> str:
    texts = [*["old"] * (revisions - 1), text]
    said = "".join(
        f"<revision><id>{number}{n}</id><model>wikitext</model><text>{one}</text></revision>"
        for n, one in enumerate(texts)
    )
    return f"<page><title>{title}</title><ns>{ns}</ns><id>{number}</id>{more}{said}</page>"


def read(
    path: Path, content: bytes, limits: DocumentLimits | None = None
) -> tuple[list[AnnotatedDocument], list[Refusal]]:
    path.write_bytes(content)
    parsed = list(read_raw(find_files([path]).files, limits=limits))
    return [p.document for p in parsed if p.document], [r for p in parsed for r in p.refusals]


@pytest.mark.parametrize("name", ["dump.xml", "dump.xml.bz2", "dump.xml.gz"])
def test_articles_of_a_dump_are_documents_and_other_pages_are_passed_over(tmp_path: Path, name: str) -> None:
    dump = (
        HEAD
        + page(1, "Talk:Lundvik", "chat", ns=1)
        + page(2, "Lundvík by", HARBOUR, revisions=3)
        + page(3, "Old name", "#REDIRECT [[Lundvik]]", more='<redirect title="Lundvik"/>')
        + page(4, "Empty", "{{stub}}")
        + page(5, "Oslo", "Oslo is big.")
        + "</mediawiki>"
    ).encode()
    pack = {".bz2": bz2.compress, ".gz": gzip.compress}.get(Path(name).suffix, bytes)
    documents, refusals = read(tmp_path / name, pack(dump))
    lundvik, oslo = documents
    assert lundvik == AnnotatedDocument(
        "2",
        "Lundvik is a town in Norway.\nIt's old.\n\nHarbour\n\nopened in 1834\nand widened\n\nKategorie:Shown",
        title="Lundvík by", uri="https://de.example.org/wiki/Lundv%C3%ADk_by", revision="22",
    )  # fmt: skip
    assert (oslo.external_id, oslo.text, oslo.revision) == ("5", "Oslo is big.", "50")
    assert [(r.document, r.reason[:10]) for r in refusals] == [("Empty", "no text in")]


def test_a_dump_that_ends_early_gives_what_stands_before(tmp_path: Path) -> None:
    whole = HEAD + "".join(page(n, f"Hall {n}", f"Hall {n} opened.") for n in range(1, 20))
    documents, (refusal,) = read(tmp_path / "d.xml", whole.encode())
    assert len(documents) == 19 and "after page 19; the rest was not read" in refusal.reason
    packed = bz2.compress(whole.encode())
    _, (refusal,) = read(tmp_path / "d.xml.bz2", packed[:-40])
    assert "damaged bzip2 data" in refusal.reason or "no XML" in refusal.reason


def test_other_xml_is_refused_where_it_is_named_and_passed_over_in_a_folder(tmp_path: Path) -> None:
    documents, (refusal,) = read(tmp_path / "pom.xml", b"<project/>")
    assert documents == [] and "another kind (project): only MediaWiki dumps" in refusal.reason
    (tmp_path / "wiki.xml").write_text(HEAD + "</mediawiki>")
    found = find_files([tmp_path])
    assert [file.external_id for file in found.files] == ["wiki.xml"] and found.passed_over == {".xml": 1}


def test_a_page_beyond_the_limits_is_refused_and_the_next_are_read(tmp_path: Path) -> None:
    dump = HEAD + page(1, "Long", "word " * 1000) + page(2, "Oslo", "Oslo is big.") + "</mediawiki>"
    documents, (refusal,) = read(tmp_path / "d.xml", dump.encode(), DocumentLimits(characters=2000))
    assert [d.title for d in documents] == ["Oslo"] and (refusal.document, refusal.code) == ("1", "size")


def test_an_entity_that_swells_ends_its_dump_only(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    bomb = f'<!DOCTYPE x [<!ENTITY a0 "lol">{entities}]>' + HEAD + page(1, "Bomb", "&a11;") + "</mediawiki>"
    (tmp_path / "b.xml").write_text(HEAD + page(2, "Oslo", "Oslo is big.") + "</mediawiki>")
    (tmp_path / "a.xml").write_text(bomb)
    parsed = list(read_raw(find_files([tmp_path / "a.xml", tmp_path / "b.xml"]).files))
    assert [p.document.title for p in parsed if p.document] == ["Oslo"]
    assert [r.document for p in parsed for r in p.refusals] == ["a.xml"]


def test_extracts_are_read_by_their_names_with_revision_and_address(tmp_path: Path) -> None:
    article = {
        "revid": "9",
        "url": "https://en.example.org/wiki?curid=12",
        "title": "Lima",
        "text": "Lima is big.",
    }
    for name, pack in (("AA/wiki_00", bytes), ("AB/wiki_01.bz2", bz2.compress)):
        (tmp_path / name).parent.mkdir()
        line = json.dumps({**article, "id": name[:2]}).encode() + b"\n"
        (tmp_path / name).write_bytes(pack(line))
    first, second = read_raw(find_files([tmp_path]).files)
    assert first.document == AnnotatedDocument(
        "AA", "Lima is big.", title="Lima", uri=article["url"], revision="9"
    )
    assert second.document is not None and second.document.external_id == "AB"


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("a ''b'' '''c'''<!-- d --><nowiki>[[e]]</nowiki>", "a b c[[e]]"),
        ("[[File:a.png|thumb|b [[c]] d]]e", "e"),
        ("[http://x.example] http://x.example/y", "http://x.example/y"),
        ("{{unclosed\n\nText.", "{{unclosed\n\nText."),
        ("; term\n: meaning\n# one", "term\nmeaning\none"),
        ("<div>in</div> &eacute;", "in é"),
    ],
)
def test_wikitext_says_what_its_page_shows(wikitext: str, text: str) -> None:
    assert plain_text(wikitext, ("file",)) == text
