"""The documents that a command is to read: files, folders, and pages that are fetched for it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from colmlm.cli.output import counted, progress, say
from colmlm.kb.corpus.format import is_blank
from colmlm.kb.corpus.raw.blocks import Unreadable, decode_text
from colmlm.kb.corpus.raw.files import FoundFiles, find_files

Urls = Annotated[
    Path | None,
    typer.Option(
        "--urls",
        exists=True,
        dir_okay=False,
        help="A list of addresses, or a sitemap: fetch and add the pages.",
    ),
]
AllowPrivate = Annotated[
    bool,
    typer.Option("--allow-private", help="Fetch from hosts of private networks and of this machine, too."),
]

SkipUnknown = Annotated[
    bool,
    typer.Option("--skip-unknown", help="Say nothing of files of other kinds in folders, and end with 0."),
]


@contextmanager
def found_in(paths: Sequence[Path], urls: Path | None, *, allow_private: bool) -> Iterator[FoundFiles]:
    """Give the files to read; fetched pages are in a temporary folder, which is gone after the block."""
    if not paths and urls is None:
        raise typer.BadParameter("name files or folders, or addresses with --urls.", param_hint="PATH")
    found = find_files(paths)
    if urls is None:
        yield found
        return
    from colmlm.kb.corpus.raw.web import Fetcher  # imported here, since importing httpx2 takes time

    try:
        addresses = read_addresses(urls)
    except Unreadable as error:
        raise typer.BadParameter(f"{urls.name}: {error}.", param_hint="--urls") from error
    with TemporaryDirectory(prefix="colmlm-pages-") as folder:
        with Fetcher(Path(folder), allow_private) as fetcher, progress("Fetching pages") as advance:
            pages = fetcher.fetch(addresses, advance)
        yield FoundFiles([*found.files, *pages.files], [*found.refusals, *pages.refusals], found.passed_over)


def show_passed_over(passed_over: Mapping[str, int]) -> None:
    """Say how many files of which other kinds were in the folders."""
    if passed_over:
        most = sorted(passed_over.items(), key=lambda item: -item[1])[:8]
        kinds = ", ".join(f"{kind} {number}" for kind, number in most)
        many = counted(sum(passed_over.values()), "file")
        say(f"{many} of other kinds passed over ({kinds}); --skip-unknown takes that for right.")


# Lists of addresses: a line each, or a sitemap.

MOST_ADDRESSES = 10_000
_MOST_BYTES = 50_000_000  # of a sitemap, by its own specification
_SITEMAP, _INDEX = "<urlset", "<sitemapindex"
_PLACE = re.compile(r"<loc>\s*(?:<!\[CDATA\[)?([^<\]]*)")


def read_addresses(path: Path) -> list[str]:
    """Give the addresses in a file, each once. In a list, lines that begin with # are remarks. Raises `Unreadable`."""
    if path.stat().st_size > _MOST_BYTES:
        raise Unreadable(f"more than {_MOST_BYTES} bytes; split it")
    text = decode_text(path.read_bytes())
    if _INDEX in text:
        raise Unreadable("an index of sitemaps; fetch those it names, and give one of them")
    lines = _PLACE.findall(text) if _SITEMAP in text else text.splitlines()
    said = (html.unescape(line).strip() if _SITEMAP in text else line.strip() for line in lines)
    found = list(dict.fromkeys(line for line in said if not is_blank(line) and not line.startswith("#")))
    if not found:
        raise Unreadable("no address in it")
    if len(found) > MOST_ADDRESSES:
        raise Unreadable(
            f"{len(found)} addresses, and at most {MOST_ADDRESSES} are fetched at once; split it"
        )
    return found
