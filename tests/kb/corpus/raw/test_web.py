"""Pages are fetched by their addresses, within limits, and from private networks only where that is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.cli.contents.corpus_add import MOST_ADDRESSES, read_addresses
from colmlm.kb.corpus.raw.blocks import Unreadable
from colmlm.kb.corpus.raw.files import FoundFiles
from colmlm.kb.corpus.raw.reading import read_raw
from colmlm.kb.corpus.raw.web import MOST_BYTES, Fetcher
from tests.kb.corpus.raw.pages import Page, site
from tests.kb.corpus.raw.pdfs import pdf

SITEMAP = """<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">
<url><loc> https://e.example/a?x=1&amp;y=2 </loc><lastmod>2026-01-01</lastmod></url>
<url><loc><![CDATA[https://e.example/b]]></loc><image:loc>https://e.example/b.png</image:loc></url></urlset>"""


def fetched(folder: Path, *addresses: str, allow_private: bool = True, seconds: float = 60) -> FoundFiles:
    with Fetcher(folder, allow_private, seconds) as fetcher:
        return fetcher.fetch(addresses, lambda done, total: None)


def test_pages_become_documents_with_their_addresses(tmp_path: Path) -> None:
    pages = {
        "/museum": Page(
            "<h1>Museum</h1><p>It opened in 1902, in a café.".encode("cp1252"), "text/html; charset=cp1252"
        ),
        "/notes/opening-hours.txt": Page(b"Monday: closed", "text/plain"),
        "/light": Page(pdf(["The lighthouse opened in 1870."]), "application/pdf"),
        "/old": Page(status=302, headers={"location": "museum"}),
        "/book.md": Page(b"# Book\n\nIt is long.", "application/octet-stream"),
    }
    with site(pages) as here:
        found = fetched(tmp_path, *(here.address + path for path in pages))
        documents = [p.document for p in read_raw(found.files) if p.document]
    assert found.refusals == [] and [d.uri for d in documents] == [here.address + path for path in pages]
    assert [d.external_id for d in documents] == [d.uri for d in documents]
    assert [(d.title, d.text) for d in documents] == [
        ("Museum", "It opened in 1902, in a café."),
        ("opening hours", "Monday: closed"),
        ("light", "The lighthouse opened in 1870."),
        ("Museum", "It opened in 1902, in a café."),
        ("Book", "It is long."),
    ]
    assert {host for _, host in here.asked} == {here.address.removeprefix("http://")}


def test_pages_that_cannot_be_had_are_refused_each_with_its_reason(tmp_path: Path) -> None:
    pages = {
        "/loop": Page(status=302, headers={"location": "/loop"}),
        "/out": Page(status=302, headers={"location": "file:///etc/passwd"}),
        "/big": Page(b"x" * (MOST_BYTES + 1), "text/plain"),
        "/picture": Page(b"x", "image/png"),
        "/fine": Page(b"<p>Lima", "text/html"),
    }
    with site(pages) as here:
        name = here.address.removeprefix("http://")
        found = fetched(
            tmp_path, *(here.address + path for path in ("/none", *pages)), "ftp://e.example/a", "no address",
            f"http://ann:secret@{name}/fine", "http://127.0.0.1:9/", "http://none.invalid/",
        )  # fmt: skip
        slow = fetched(tmp_path, f"{here.address}/fine", seconds=0)
    reasons = [
        "answers 404", "more than 5 redirects", "not http:// or https://", "more than 20000000 bytes",
        "no reader for what the server calls 'image/png'", "not http:// or https://", "not http:// or https://",
        "or a password", "cannot be fetched", "cannot be fetched",
    ]  # fmt: skip
    assert [file.external_id for file in found.files] == [f"{here.address}/fine"]
    assert len(found.refusals) == len(reasons)
    for refusal, reason in zip(found.refusals, reasons, strict=True):
        assert reason in refusal.reason, refusal
    assert "took too long" in slow.refusals[0].reason


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "10.1.2.3",
        "169.254.169.254",
        "[64:ff9b::10.0.0.5]",
        "[::10.0.0.5]",
        "[fec0::1]",
    ],
)
def test_private_networks_are_not_asked(tmp_path: Path, host: str) -> None:
    with site({"/": Page(b"<p>secret")}) as here:
        port = here.address.rpartition(":")[2]
        (refusal,) = fetched(tmp_path, f"http://{host}:{port}/", allow_private=False).refusals
        assert "of a private network; pass --allow-private" in refusal.reason and here.asked == []


def test_refused_pages_leave_no_file_and_a_list_takes_no_more_than_its_bytes(tmp_path: Path) -> None:
    pages = {
        "/big": Page(b"x" * (MOST_BYTES + 1), "text/plain"),
        "/first": Page(b"x" * 60, "text/plain"),
        "/second": Page(b"x" * 60, "text/plain"),
        "/third": Page(b"x" * 40, "text/plain"),
        "/fourth": Page(b"x", "text/plain"),
    }
    with site(pages) as here, Fetcher(tmp_path, allow_private=True, bytes_left=100) as fetcher:
        fetcher.fetch([f"{here.address}/big"], lambda done, total: None)
        assert list(tmp_path.iterdir()) == []
        found = fetcher.fetch([here.address + path for path in list(pages)[1:]], lambda done, total: None)
    assert [file.external_id.rpartition("/")[2] for file in found.files] == ["first", "third"]
    assert sorted(tmp_path.iterdir()) == [file.path for file in found.files]
    assert [refusal.document.rpartition("/")[2] for refusal in found.refusals] == ["second", "fourth"]
    assert all("that the pages of one list may have" in refusal.reason for refusal in found.refusals)
    assert [path for path, _ in here.asked] == ["/big", "/first", "/second", "/third"]


def test_a_list_and_a_sitemap_name_each_address_once(tmp_path: Path) -> None:
    file = tmp_path / "pages.txt"
    file.write_text("# ours\nhttps://e.example/a\n\n https://e.example/b \nhttps://e.example/a\n")
    assert read_addresses(file) == ["https://e.example/a", "https://e.example/b"]
    file.write_text(SITEMAP)
    assert read_addresses(file) == ["https://e.example/a?x=1&y=2", "https://e.example/b"]
    many = "\n".join(f"https://e.example/{n}" for n in range(MOST_ADDRESSES + 1))
    for content, reason in (
        ("<sitemapindex>", "an index of sitemaps"),
        ("# none\n", "no address"),
        (many, "split it"),
    ):
        file.write_text(content)
        with pytest.raises(Unreadable, match=reason):
            read_addresses(file)
