"""Answers questions by method: with a decoder, its lookups, and the passages put before the prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from colmlm.cli.composition.encoders import EncoderName, SentenceKeys
from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.keys.records import CheckpointInfo, KeysetRecord
from colmlm.kb.service import KnowledgeBase

if TYPE_CHECKING:
    from colmlm.model.decoding.config import DecodeConfig
    from colmlm.model.decoding.decoder import DecodedOutput, Decoder
    from colmlm.model.lm.checkpoint import Checkpoint
    from colmlm.model.text.passages import PassageChoice, PassageIndex


class Method(StrEnum):
    co_lmlm = "co-lmlm"
    standard = "standard"
    asker = "asker"
    rel_lmlm = "rel-lmlm"
    rag = "rag"


@dataclass(frozen=True, slots=True)
class Answerer:
    """A decoder, how it looks up (`mode`), and its prompts. `run` identifies all of them to a later run."""

    decoder: Decoder
    mode: str
    prompts: Callable[[Sequence[str]], list[str]]
    run: dict[str, Any]


def answerer(
    runtime: Runtime,
    method: Method,
    checkpoint: Path | None,
    mode: str | None,
    corpora: Sequence[str],
    choice: PassageChoice | None = None,
) -> Answerer:
    """Give the answerer of a method. Refuses a checkpoint of another method, and a mode that the method lacks.

    Method rag puts the passages of `choice` before a prompt (None: the paper's).
    """
    from colmlm.model.decoding.decoder import Decoder

    loaded = _load_checkpoint(runtime, method, checkpoint)
    spoken = loaded.config.method
    if method is not Method.rag and spoken != method:
        raise typer.BadParameter(
            f"{loaded.config.name} is of method {spoken}, not {method}; pass --method {spoken}, or name another one.",
            param_hint="--checkpoint",
        )
    mode = mode or ("off" if spoken == "standard" else "auto")
    if mode != "off" and spoken == "standard":
        raise typer.BadParameter("a standard model looks nothing up; leave --mode out.", param_hint="--mode")
    run: dict[str, Any] = {"method": str(method), "mode": mode, "checkpoint_id": loaded.checkpoint_id}
    decoder = Decoder(loaded, None)
    if mode != "off":
        asks_by = _in_words() if spoken in ("asker", "rel-lmlm") else None
        keyset = keyset_of(runtime, asks_by.checkpoint if asks_by else None, loaded)
        lookup = runtime.kb.lookups.in_keyset(keyset.keyset_id)
        decoder = Decoder(loaded, lookup, query_encoder=asks_by.sentences if asks_by else None)
        run |= {"keyset_id": keyset.keyset_id, "keys_of": keyset.checkpoint_id}
    passages = LivePassages(runtime.kb, corpora, choice) if method is Method.rag else None
    return Answerer(decoder, mode, passages.augment if passages else list, run)


def _load_checkpoint(runtime: Runtime, method: Method, path: Path | None) -> Checkpoint:
    """Load the named checkpoint; without a name the settings' for Co-LMLM, and the base model for the baselines."""
    from colmlm.model.lm.checkpoint import WHEEL_BASE, base_checkpoint, load
    from colmlm.model.text.markup import STANDARD

    cache = runtime.settings.home / "models"
    if path is not None:
        return load(path, cache)
    if method is Method.co_lmlm:
        return runtime.checkpoint
    if method in (Method.asker, Method.rel_lmlm):
        raise typer.BadParameter(
            f"name one that was trained with method {method}.", param_hint="--checkpoint"
        )
    return base_checkpoint(WHEEL_BASE, cache, markup=STANDARD)


def _in_words() -> SentenceKeys:
    return SentenceKeys.of_encoder(EncoderName.minilm)


def keyset_of(
    runtime: Runtime, sentences: CheckpointInfo | None, loaded: Checkpoint, named: str = "--method"
) -> KeysetRecord:
    """Give the keyset that a model looks up in, active or not. Refuses one that lacks keys, for the option `named`."""
    checkpoint_id = sentences.checkpoint_id if sentences else loaded.checkpoint_id
    fills = f"colmlm keysets fill --checkpoint {loaded.path}"
    command = "colmlm keysets create --encoder minilm" if sentences else fills
    found = next(
        (k for k in runtime.kb.keysets.all() if k.checkpoint_id == checkpoint_id and k.state != "retired"),
        None,
    )
    if found is None or found.state == "building" or found.num_unkeyed:
        raise typer.BadParameter(
            f"not all facts have the keys that this method asks; run: {command}",
            param_hint=named,
        )
    return found


def generate_all(
    decoder: Decoder,
    prompts: Sequence[str],
    config: DecodeConfig,
    batch: int,
    done: Callable[[int], None] = lambda number: None,
) -> list[DecodedOutput]:
    """Decode all prompts, so many together."""
    made: list[DecodedOutput] = []
    for start in range(0, len(prompts), batch):
        some = prompts[start : start + batch]
        made += decoder.generate(some, config)
        done(len(some))
    return made


# Finds passages of the knowledge base's current documents for retrieval-augmented prompts.


class LivePassages:
    """BM25 over the current documents of some corpora, in memory, rebuilt after every change of the log.

    So no passage holds an erased fact. It may hold a deleted one, whose document still says it.
    """

    def __init__(
        self, kb: KnowledgeBase, corpora: Sequence[str], choice: PassageChoice | None = None
    ) -> None:
        from colmlm.model.text.passages import PassageChoice

        self.kb, self.corpora, self.choice = kb, tuple(corpora), choice or PassageChoice()
        self._index: PassageIndex | None = None
        self._said: list[str] = []  # the passages as they stand in a prompt, in the order of the index
        self._seq = -1

    def augment(self, prompts: Sequence[str]) -> list[str]:
        """Put the passages that BM25 finds for it before each prompt."""
        from colmlm.model.text.passages import TOP

        found = self._current().nearest(prompts, max(TOP, self.choice.count))
        return [
            self.choice.prompt(prompt, [self._said[n] for n in numbers], self._said)
            for prompt, numbers in zip(prompts, found, strict=True)
        ]

    def _current(self) -> PassageIndex:
        from colmlm.model.text.passages import PassageIndex, passages_of

        seq = self.kb.log.head_seq()  # before the texts: a change meanwhile is seen at the next call
        if self._index is None or seq != self._seq:
            documents = [one for corpus in self.corpora for one in self.kb.corpora.export(corpus)]
            self._said = list(passages_of(documents, titled=not self.choice.no_titles))
            self._index, self._seq = PassageIndex(passages_of(documents)), seq
        return self._index
