"""`colmlm corpus add`: reads, annotates, ingests and keys raw documents, so that the model can cite them.

It also takes in what has facts already: annotated files, and stores that others publish.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.composition import annotators
from colmlm.cli.composition.annotators import (
    AnyRawPaths,
    Encoding,
    IdField,
    QuestionGeneratorPath,
    Questions,
    SpanAnnotatorPath,
    SpanThreshold,
    TextField,
    TitleField,
    Verify,
)
from colmlm.cli.composition.bulk.spreading import Ray, RayWorkers
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import REFUSED
from colmlm.cli.options import (
    Actor,
    AllowErased,
    AllowPrivate,
    CheckpointPath,
    DryRun,
    examples,
    some_text,
    wants_json,
)
from colmlm.cli.output import count_of, note, plain, print_json, print_table, progress, say
from colmlm.kb.corpus.format import is_blank
from colmlm.kb.corpus.raw.blocks import FieldNames, RawAddition, Unreadable, decode_text
from colmlm.kb.corpus.raw.files import FoundFiles, find_files
from colmlm.kb.facts.records import Ingesting, IngestReport

if TYPE_CHECKING:
    from colmlm.kb.keys.records import CheckpointInfo, KeysetRecord
    from colmlm.kb.releases.releases import ImportReport

ADD_EXAMPLES = examples(
    "colmlm corpus add handbook/ --corpus handbook",
    "colmlm corpus add minutes.pdf notes.md --corpus meetings --dry-run",
    "colmlm corpus add articles.jsonl.gz --corpus wiki --questions",
    "colmlm corpus add --urls sitemap.xml --corpus site",
    "colmlm corpus add products.csv --corpus products --id-field sku --text-field description",
    "colmlm corpus add articles.jsonl.gz --corpus wiki --ray auto",
    "colmlm corpus add marked.jsonl --corpus handbook --commit-every 50000",
    "colmlm corpus add release/ --format colmlm-release --corpus wiki --checkpoint checkpoints/co-lmlm",
    "colmlm corpus add dev-v2.0.json --format squad --corpus squad --dry-run",
)
MOST_SHOWN = 20


Urls = Annotated[
    Path | None,
    typer.Option(
        "--urls",
        exists=True,
        dir_okay=False,
        help="A list of addresses, or a sitemap: fetch and add the pages.",
    ),
]
SkipUnknown = Annotated[
    bool,
    typer.Option("--skip-unknown", help="Say nothing of files of other kinds in folders, and end with 0."),
]


class Format(StrEnum):
    annotated = "annotated"
    parquet = "parquet"
    squad = "squad"
    rel_lmlm = "rel-lmlm"
    colmlm_release = "colmlm-release"


@anywhere
def add(
    base: Base,
    corpus: Annotated[str, typer.Option("--corpus", callback=some_text, help="The corpus to put them in.")],
    paths: AnyRawPaths = None,
    urls: Urls = None,
    allow_private: AllowPrivate = False,
    skip_unknown: SkipUnknown = False,
    dry_run: DryRun = False,
    questions: Questions = False,
    verify: Verify = True,
    again: Annotated[
        bool,
        typer.Option("--again", help="Annotate what is there unchanged too: after a change of annotators."),
    ] = False,
    encoding: Encoding = None,
    id_field: IdField = None,
    title_field: TitleField = None,
    text_field: TextField = None,
    span_annotator: SpanAnnotatorPath = None,
    span_threshold: SpanThreshold = None,
    question_generator: QuestionGeneratorPath = None,
    checkpoint: CheckpointPath = None,
    actor: Actor = None,
    reason: Annotated[
        str | None, typer.Option("--reason", callback=some_text, help="Why; by default what was added.")
    ] = None,
    allow_erased: AllowErased = False,
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Of what has facts: JSON Lines (recognised), Parquet, SQuAD, dblookup calls, a published store.",
        ),
    ] = None,
    commit_every: Annotated[
        int | None,
        typer.Option(
            "--commit-every", min=1, help="With marked facts: documents of one change. Default: 10000."
        ),
    ] = None,
    ray: Ray = None,
    ray_workers: RayWorkers = None,
) -> None:
    """Read documents, annotate their facts, ingest them and give the facts keys: then `colmlm ask` answers from them.

    Files that cannot be read are refused, each with the reason, and those of other kinds in folders are counted; the
    others are added, and the exit code is then 3.
    A second run skips what is unchanged and replaces what has changed; after an interruption it continues.
    With --server the files are uploaded and a job there does it; a document is then known by its file's name alone.

    A file whose facts are marked already is ingested as it is: documents and facts that fail the checks are
    refused with document, offset and reason. `colmlm keysets fill` gives its facts keys. A folder that is published
    as a store of facts is taken in with its keys: --checkpoint names what made those.
    """
    annotators.known_encoding(encoding)
    if (marked := format_ or recognise_annotated(paths or ())) is not None:
        _refuse_annotating(urls=urls, questions=questions, again=again, ray=ray)
        if marked is Format.colmlm_release:
            base.only_here(format_=marked)
            import_release(paths or (), corpus, checkpoint, actor, reason, dry_run=dry_run)
            return
        ingesting: Ingesting = {
            "actor": base.actor(actor),
            "reason": reason or f"ingest of a file, {marked.value}",
            "commit_every": commit_every,
            "dry_run": dry_run,
            "allow_erased": allow_erased,
        }
        ingest_annotated(base, paths or (), marked, corpus, ingesting)
        return
    if commit_every is not None:
        raise typer.BadParameter("leave it out; it is for marked facts.", param_hint="--commit-every")
    base.only_here(urls=urls)
    base.use_checkpoint(checkpoint)
    base.use_ray(ray, ray_workers)
    how = RawAddition(
        encoding=encoding,
        fields=FieldNames(id_field, title_field, text_field),
        questions=questions,
        verify=verify,
        span_threshold=span_threshold,
        span_annotator=span_annotator,
        question_generator=question_generator,
        again=again,
        allow_erased=allow_erased,
        dry_run=dry_run,
    )
    with found_in(paths or (), urls, allow_private=allow_private) as found:
        done = base.corpora.add(found, corpus, how, actor=base.actor(actor), reason=reason or "corpus add")
    is_new = bool(done["added"] or done["facts"])
    done["try"] = _command_to_try(base, done) if is_new and done["citable"] else None
    print_json(done) if wants_json() else _show_added(done, skip_unknown=skip_unknown)
    if done["refused"] or (done["passed_over"] and not skip_unknown):
        raise typer.Exit(REFUSED)


def _refuse_annotating(**given: object) -> None:
    """Raise `BadParameter` for options on reading and annotating, given with a file whose facts are marked."""
    if idle := [f"--{name}" for name, value in given.items() if value]:
        raise typer.BadParameter("leave it out; facts are marked already.", param_hint=", ".join(idle))


def _command_to_try(base: Base, done: dict[str, Any]) -> str | None:
    """Give the command that asks the question of the suggested fact; None without such a fact or question."""
    if done["suggested"] is None or (question := base.facts.show(done["suggested"]).question) is None:
        return None
    there = [] if base.server is None else ["--server", base.server]
    return shlex.join(["colmlm", "ask", question, *there])


def _show_added(done: dict[str, Any], *, skip_unknown: bool) -> None:
    say(
        f"Read {count_of(done['documents'], 'document')}: {done['new']} new, {done['changed']} changed, "
        f"{done['unchanged']} there already."
    )
    if not skip_unknown:
        show_passed_over(done["passed_over"])
    _show_left_out(done)
    if done["dry_run"]:
        many = done["new"] + done["changed"]
        say(f"Would annotate and add {count_of(many, 'document')}; nothing was done.")
        return
    if done["seq"] is None and not done["added"]:
        say(f"Nothing to add to {done['corpus']!r}.")
        return
    added = done["added"]
    if added:
        print_table(
            ("document", "title", "facts", "with a question", "rejected by the checks"),
            [tuple(one.values()) for one in added[:MOST_SHOWN]],
        )
    if len(added) > MOST_SHOWN:
        say(f"... and {len(added) - MOST_SHOWN} more; --json lists them all.")
    _show_citable(done)


def _show_citable(done: dict[str, Any]) -> None:
    added, corpus = done["added"], done["corpus"]
    facts = sum(one["facts"] for one in added) if added else done["facts"]
    if not facts:
        say(
            "The annotators found no fact in them; the texts are kept. A lower --span-threshold with --again finds "
            "more, or mark them by hand in an annotated file."
        )
    elif done["citable"]:
        holding = sum(1 for one in added if one["facts"])
        of = f" of {count_of(holding, 'document')}" if holding else ""
        say(f"{count_of(facts, 'fact')}{of} of {corpus!r} can be cited now.")
        if done["threshold"]:
            say(done["threshold"])
        if done["try"]:
            say(f"Try: {done['try']}")
    else:
        say(f"{corpus!r} has {count_of(facts, 'fact')} more, to be cited once their keyset is active.")
    if facts and added:
        say(f"Nobody has reviewed them yet: colmlm review list --corpus {shlex.quote(corpus)}")


def _show_left_out(done: dict[str, Any]) -> None:
    show_refusals(done["refused"], done["refusals"])
    if done["suppressed"]:
        say(
            f"{count_of(done['suppressed'], 'span')} left out and redacted, erased before (see --allow-erased)."
        )
    if done["still_deleted"]:
        say(_tell_still_deleted(done["still_deleted"], "documents name"))
    if done["contradictions"]:
        say(
            f"{count_of(done['contradictions'], 'contradiction')} with facts that are here: "
            "colmlm facts compare contradictions"
        )


def _tell_still_deleted(number: int, who: str) -> str:
    was = "was" if number == 1 else "were"
    return f"{count_of(number, 'fact')} that the {who} {was} deleted here before; that stays."


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
    """Print how many files of other kinds the folders have, and of which kinds; print nothing for none."""
    if passed_over:
        most = sorted(passed_over.items(), key=lambda item: -item[1])[:8]
        kinds = ", ".join(f"{kind} {number}" for kind, number in most)
        many = count_of(sum(passed_over.values()), "file")
        say(f"{many} of other kinds passed over ({kinds}); --skip-unknown takes that for right.")


def show_refusals(refused: int, refusals: Sequence[object]) -> None:
    """Print the number of refusals, and the places and reasons of the first of them; print nothing for none."""
    if not refused:
        return
    say(f"Refused {refused}:")
    shown = plain(refusals[:MOST_SHOWN])
    has_offsets = any(one["offset"] for one in shown)
    columns = ("document", "offset", "reason") if has_offsets else ("document", "reason")
    print_table(columns, [[one[column] for column in columns] for one in shown])
    if refused > len(shown):
        say(f"... and {refused - len(shown)} more; --json lists them.")
    say("Correct what was refused and run this again; nothing is added twice.")


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
        raise Unreadable("no address in it; write one on each line")
    if len(found) > MOST_ADDRESSES:
        raise Unreadable(
            f"{len(found):,} addresses, and at most {MOST_ADDRESSES} are fetched at once; split it"
        )
    return found


_LONGEST_LINE = 4_000_000  # of a file that is recognised by its first line


def recognise_annotated(paths: Sequence[Path]) -> Format | None:
    """Give the format of a file whose first line is a document with its facts; None for other files."""
    found = [path for path in paths if path.suffix == ".jsonl" and path.is_file() and _begins_annotated(path)]
    if found and len(paths) > 1:
        raise typer.BadParameter(f"{found[0].name} is an annotated file; add it alone.", param_hint="PATH")
    return Format.annotated if found else None


def _begins_annotated(path: Path) -> bool:
    with path.open("rb") as file:
        line = file.readline(_LONGEST_LINE)
    try:
        record = json.loads(line)
    except ValueError:
        return False
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        return False
    return (
        isinstance(record.get("facts"), list)
        or re.search(r"<FACT(?: [^>]*)?>.*</FACT>", record["text"]) is not None
    )


def ingest_annotated(base: Base, paths: Sequence[Path], format_: Format, corpus: str, how: Ingesting) -> None:
    """Ingest an annotated file and print the report. Exits with 3 if something was refused."""
    if len(paths) != 1 or not paths[0].is_file():
        raise typer.BadParameter("it is the form of one file; name that alone.", param_hint="--format")
    report, refused = base.corpora.ingest(paths[0], format_.value, corpus, **how)
    dry_run = how.get("dry_run", False)
    if wants_json():
        print_json({"dry_run": dry_run, "refused": refused, **_as_dict(report)})
    else:
        _show_ingested(report, refused, dry_run)
    if refused:
        raise typer.Exit(REFUSED)


def _as_dict(report: IngestReport) -> dict[str, object]:
    return {name: getattr(report, name) for name in IngestReport.__dataclass_fields__}


def _show_ingested(report: IngestReport, refused: int, dry_run: bool) -> None:
    taken = f"{count_of(report.documents, 'document')} with {count_of(report.facts, 'new fact')}"
    say(
        f"{'Would take' if dry_run else 'Took'} {taken} into {report.corpus!r}; {report.unchanged} were there already."
    )
    if report.replaced:
        say(f"Of them, {count_of(report.replaced, 'document', 'replace')} an older text.")
    if report.still_deleted:
        say(_tell_still_deleted(report.still_deleted, "file names"))
    if report.overlaps_resolved:
        say(f"{count_of(report.overlaps_resolved, 'overlapping span')} left out.")
    if report.suppressed:
        say(
            f"{count_of(report.suppressed, 'span')} left out and redacted, erased before (see --allow-erased):"
        )
        shown = report.suppressed_at[:MOST_SHOWN]
        print_table(("document", "start", "end"), [(s.document, s.start, s.end) for s in shown])
    if report.contradictions:
        say(
            f"{count_of(report.contradictions, 'contradiction')} with facts that are here: "
            "colmlm facts compare contradictions"
        )
    if report.duplicates:
        say(
            f"{count_of(report.duplicates, 'duplicate')} of facts that are here: colmlm facts compare duplicates"
        )
    show_refusals(refused, report.refusals)
    if report.facts and not dry_run:
        note("Facts are found once they have keys. Run: colmlm keysets fill")


def import_release(
    paths: Sequence[Path],
    corpus: str,
    checkpoint: Path | None,
    actor: str | None,
    reason: str | None,
    *,
    dry_run: bool,
) -> None:
    """Import a published store of facts with its keys. If it is interrupted, run it again to continue.

    The whole release is checked first, and nothing is stored of a damaged or inconsistent one. Its facts have no
    offsets, only their number in a sample. Their keys are approximate, since they are reconstructed from the codes of
    the index. Others are made later for facts that get a question, and for facts whose documents are ingested into
    the same corpus under the names of the samples.
    """
    if len(paths) != 1 or not paths[0].is_dir():
        raise typer.BadParameter("not the one folder of a release; name that alone.", param_hint="PATH")
    with Runtime.from_environment() as runtime:
        from colmlm.kb.releases.releases import ReleaseProgress

        made_by = _checkpoint_of_keys(runtime, checkpoint)
        with (
            runtime.telling.progress("Checking entries") as examined,
            runtime.telling.progress("Checking keys") as read,
            runtime.telling.progress("Storing facts") as facts,
            runtime.telling.progress("Adopting keys") as keys,
        ):
            progress = ReleaseProgress(examined, read, facts, keys)
            if dry_run:
                report, keyset = runtime.kb.releases.examine(paths[0], corpus, made_by, progress), None
            else:
                who = {"actor": runtime.actor(actor), "reason": reason or "import of a colmlm-release"}
                report = runtime.kb.releases.take(paths[0], corpus, made_by, **who, progress=progress)
                assert report.keyset_id is not None, "keys were adopted into a keyset"
                keyset = runtime.kb.keysets.finish(report.keyset_id)
    told = {"dry_run": dry_run, **asdict(report), "approximate": True, "keyset": keyset}
    print_json(told) if wants_json() else _show_importing(report, keyset)


def _checkpoint_of_keys(runtime: Runtime, checkpoint: Path | None) -> CheckpointInfo | None:
    return None if checkpoint is None else runtime.encoder_at(checkpoint).checkpoint


def _show_importing(report: ImportReport, keyset: KeysetRecord | None) -> None:
    release = f"{count_of(report.entries, 'fact')}, {report.kind} of width {report.dim}"
    if keyset is None:
        say(f"The release is sound: {release}. {report.there} are in {report.corpus!r} already.")
        return
    say(f"Took {count_of(report.facts, 'fact')} into {report.corpus!r}; {report.there} were there already.")
    if report.suppressed:
        say(f"{report.suppressed} left out, as they were erased before.")
    say(
        f"Adopted {count_of(report.adopted, 'key')} into keyset {keyset.keyset_id}, {keyset.state}: approximate ones."
    )
    say("Their facts have no text here, so each is known by its number in a sample, without offsets.")
    if keyset.state == "ready":
        note(f"Another keyset is active. To let this one answer: colmlm keysets activate {keyset.keyset_id}")
