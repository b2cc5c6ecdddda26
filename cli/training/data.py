"""The data that `colmlm train` reads: annotated files, SQuAD files, and shards made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.api.nouns.telling import Advance
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import note, print_json, progress, say
from colmlm.cli.training.config import Method, Preset, chosen
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, read_annotated
from colmlm.kb.corpus.squad import read_squad
from colmlm.kb.demo import DEMO_CORPUS

if TYPE_CHECKING:
    from colmlm.model.text.tokens import FactTokenizer
    from colmlm.model.training.config import TrainConfig
    from colmlm.model.training.corpora import Corpus
    from colmlm.model.training.plan import Ratios
    from colmlm.model.training.shards import BuiltShards

Squad = Annotated[
    list[Path] | None,
    typer.Option("--squad", exists=True, dir_okay=False, help="A SQuAD file; may be repeated."),
]
Annotations = Annotated[
    list[Path] | None,
    typer.Option(
        "--annotated", exists=True, dir_okay=False, help="An annotated JSONL file; may be repeated."
    ),
]
Shards = Annotated[
    list[Path] | None,
    typer.Option(
        "--shards", exists=True, file_okay=False, help="A folder of `train shards`; may be repeated."
    ),
]

_AT_ONCE = 500  # documents that are tokenised between two reports of progress

SHARDS_EXAMPLES = examples(
    "colmlm train shards --annotated wikipedia.jsonl --preset co-lmlm-360m --out shards/wikipedia",
    "colmlm train shards --squad train.jsonl --out shards/squad",
)


@dataclass(frozen=True, slots=True)
class Sources:
    """The corpora of a run, in the order that a mix weighs them: shards, annotated files, SQuAD files, the demo."""

    shards: tuple[Path, ...] = ()
    annotated: tuple[Path, ...] = ()
    squad: tuple[Path, ...] = ()
    demo: bool = False
    held_out: int = 0

    def __bool__(self) -> bool:
        return bool(self.shards or self.annotated or self.squad or self.demo)

    def corpora(self, tokenizer: FactTokenizer, config: TrainConfig) -> list[Corpus]:
        """Gives the corpora as tokens: maps shards into memory, and reads and tokenises files."""
        from colmlm.model.training.shards import open_shards

        mapped = [open_shards(folder, tokenizer, config) for folder in self.shards]
        files = _kept([list(_documents(path)) for path in self._readers()], self.held_out)
        files += [list(_documents(read_annotated(DEMO_CORPUS)))] * self.demo
        with progress("documents tokenised") as advance:
            mapped += [_tokenised(documents, tokenizer, config, advance) for documents in files]
        return mapped

    def ratios(self) -> Ratios | None:
        """Computes the share of question tokens from the shards' manifests; None without shards."""
        from colmlm.model.training.plan import Ratios
        from colmlm.model.training.shards import read_manifest

        built = [read_manifest(folder)["built"] for folder in self.shards]
        if not built:
            return None
        questions = sum(each["question_tokens"] for each in built)
        return Ratios(questions=questions / sum(each["tokens"] for each in built), source="of these shards")

    def documents(self) -> Iterator[AnnotatedDocument]:
        """Reads the documents of all files, one after another."""
        return chain.from_iterable(_documents(path) for path in self._readers())

    def _readers(self) -> list[Iterable[Parsed]]:
        return [*map(read_annotated, self.annotated), *map(read_squad, self.squad)]


def shards(
    out: Annotated[Path, typer.Option("--out", help="The folder; a build already there goes on.")],
    squad: Squad = None,
    annotated: Annotations = None,
    preset: Preset = None,
    method: Method = None,
    init: Annotated[
        str | None, typer.Option("--init", help="What will be trained, for its tokenizer; see `train`.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, as of `train`.")
    ] = None,
    per_shard: Annotated[int, typer.Option("--per-shard", min=1, help="Documents in a shard.")] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Tokenise files once, for runs that read them while they train. Ctrl-C or a kill loses at most one shard.

    Shards belong to a tokenizer, a method and the settings `max_question_length`, `title_fraction` and
    `paraphrase_fraction`.
    """
    from colmlm.model.training.start import tokenizer_of

    sources = Sources(annotated=tuple(annotated or ()), squad=tuple(squad or ()))
    if not sources:
        raise typer.BadParameter("nothing to make shards of: name a file with --annotated or --squad.")
    config = chosen(None, preset, method, settings or [], init=init)
    with Runtime.from_environment() as runtime:
        tokenizer = tokenizer_of(config, runtime.settings.home / "models")
    built = _build(sources, out, tokenizer, config, per_shard)
    if as_json:
        print_json({"shards": str(out), "built": built})
    else:
        say(
            f"{out}: {built.shards} shards ({built.kept} there already), {built.documents} documents, "
            f"{built.tokens} tokens, {built.questions} questions of {built.question_tokens} tokens"
        )


def _tokenised(
    documents: Sequence[AnnotatedDocument], tokenizer: FactTokenizer, config: TrainConfig, advance: Advance
) -> Corpus:
    from colmlm.model.training.corpora import DataError, merged, tokenise

    if not documents:
        raise DataError("a file holds no documents")
    parts = []
    for start in range(0, len(documents), _AT_ONCE):
        parts.append(tokenise(documents[start : start + _AT_ONCE], tokenizer, config))
        advance(min(start + _AT_ONCE, len(documents)), len(documents))
    return merged(parts)


def _build(
    sources: Sources, out: Path, tokenizer: FactTokenizer, config: TrainConfig, per_shard: int
) -> BuiltShards:
    from colmlm.model.training.shards import build_shards

    built = None
    with progress("documents in shards") as advance:
        for built in build_shards(sources.documents(), out, tokenizer, config, per_shard=per_shard):
            advance(built.documents, None)
    assert built is not None
    return built


def _kept(files: Sequence[list[AnnotatedDocument]], held_out: int) -> list[list[AnnotatedDocument]]:
    """Gives the files without `held_out` documents, which are drawn from all of them."""
    from colmlm.model.training.steps import hold_out

    numbered = [(number, document) for number, file in enumerate(files) for document in file]
    if held_out >= len(numbered) > 0:
        raise typer.BadParameter(f"cannot leave {held_out} of {len(numbered)} documents out.")
    kept = hold_out(numbered, held_out)[0]
    return [[document for number, document in kept if number == n] for n in range(len(files))]


def _documents(parsed: Iterable[Parsed]) -> Iterator[AnnotatedDocument]:
    refused = 0
    for item in parsed:
        refused += len(item.refusals)
        if item.document is not None:
            yield item.document
    if refused:
        note(f"{refused} malformed spans or documents left out; `colmlm corpus ingest --dry-run` lists them")
