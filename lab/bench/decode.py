"""Measures decoding beside `transformers.generate` with the same weights, and with and without the cost of lookups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.corpus.format import AnnotatedDocument, read_annotated
from colmlm.kb.demo import DEMO_CORPUS
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.machine import Seconds, in_turns
from colmlm.lab.methods.methods import generate_all
from colmlm.model.decoding.config import DecodeConfig, LookupPort, LookupResult
from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from colmlm.model.lm.checkpoint import Checkpoint

BATCH = 8
_WORDS = 12  # words of a document that make a prompt
_KNOWN = 40  # documents in the knowledge base
_RANKED = 40  # questions that are looked up by every ranking


def bench_decode(
    checkpoint: Checkpoint,
    home: Path,
    *,
    tokens: int,
    rounds: int,
    rankings: Sequence[str] = (),
    reader: Callable[[], JudgedReader] | None = None,
) -> dict[str, Any]:
    """Measure all figures, on knowledge bases of their own under `home`. Rankings that read need the `reader`.

    `shares` splits the time in mode auto: forward passes, logits, lookups and the rest. `rankings` are the costs of
    finding facts by each ranking that was asked for, on a base of the whole demo corpus.
    """
    documents = [parsed.document for parsed in read_annotated(DEMO_CORPUS) if parsed.document is not None]
    prompts = [" ".join(document.text.split()[:_WORDS]) for document in documents[:BATCH]]
    questions = _question_prompts(documents[:BATCH])
    alone, together = (time_decoding(checkpoint, some, tokens, rounds) for some in (prompts[:1], prompts))
    with demo_base(checkpoint, home) as kb:
        cost = lookup_cost(checkpoint, kb.lookups, questions, rounds)
        shares = time_shares(checkpoint, kb.lookups, questions)
    ranked = {}
    if rankings:
        assert reader is not None
        with demo_base(checkpoint, home / "rankings", len(documents)) as kb:
            some = _question_prompts(documents)[:_RANKED]
            ranked = bench_rankings(checkpoint, kb, reader, some, rankings, rounds)
    return {
        "precision": str(checkpoint.lm.inference.embedding.dtype).removeprefix("torch."),
        "device": describe_device(checkpoint.lm.device),
        "batch1": alone,
        "batch8": together,
        "vs_generate_batch1": alone["vs_generate"],
        "vs_generate_batch8": together["vs_generate"],
        "lookups": cost,
        "lookup_cost": cost["lookup_cost"],
        "shares": shares,
        "rankings": ranked,
    }


def describe_device(device: torch.device) -> str:
    """Name the device that a model computes on: a GPU by its model, else its kind."""
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type


def _question_prompts(documents: Sequence[AnnotatedDocument]) -> list[str]:
    """Give the question of the first fact of each document, as a prompt."""
    return [f"Question: {span.question} Answer:" for d in documents for span in d.facts[:1] if span.question]


def time_decoding(checkpoint: Checkpoint, prompts: Sequence[str], tokens: int, rounds: int) -> dict[str, Any]:
    """Time greedy decoding without lookups by both programs in turns, and compare their outputs token by token.

    `agreement` is the share of positions with the same token; since two outputs seldom agree again after they differ,
    `identical` counts the rows that agree throughout.
    """
    outputs: dict[str, list[list[int]]] = {}

    def run_ours() -> None:
        outputs["ours"] = plain_tokens(checkpoint, prompts, tokens)

    def generate() -> None:
        outputs["generate"] = generated_tokens(checkpoint, prompts, tokens)

    seconds = in_turns({"ours": run_ours, "generate": generate}, rounds)
    pairs = list(zip(outputs["ours"], outputs["generate"], strict=True))
    same = [a == b for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True)]
    count = len(prompts) * tokens
    return {
        "prompts": len(prompts),
        "tokens": count,
        "ours": seconds["ours"],
        "generate": seconds["generate"],
        "vs_generate": seconds["generate"].median / seconds["ours"].median,
        "tokens_per_s": count / seconds["ours"].median,
        "generate_tokens_per_s": count / seconds["generate"].median,
        "agreement": float(np.mean(same)),
        "identical": sum(mine == theirs for mine, theirs in pairs),
    }


def plain_tokens(checkpoint: Checkpoint, prompts: Sequence[str], tokens: int) -> list[list[int]]:
    """Give the tokens that this program decodes without lookups."""
    config = DecodeConfig(mode="off", max_tokens=tokens, min_tokens=tokens)
    run, rows = Decoder(checkpoint, None).run(prompts, config)
    for _ in run.steps():
        pass
    return [row.tail for row in rows]


def generated_tokens(checkpoint: Checkpoint, prompts: Sequence[str], tokens: int) -> list[list[int]]:
    """Give the tokens that `transformers.generate` decodes with the same settings."""
    tokenizer, device = checkpoint.tokenizer, checkpoint.lm.device
    end = tokenizer.end_of_text
    rows = [tokenizer.prompt(prompt) for prompt in prompts]
    width = max(map(len, rows))
    ids = torch.tensor([[end] * (width - len(row)) + row for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    with torch.inference_mode():
        generated: Any = checkpoint.lm.causal.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            repetition_penalty=DecodeConfig().repetition_penalty,
            max_new_tokens=tokens,
            suppress_tokens=[*tokenizer.added, end],
            eos_token_id=None,
            pad_token_id=end,
        )
    said: list[list[int]] = generated[:, width:].tolist()
    return said


@dataclass(slots=True)
class _Recorded:
    """Passes lookups on and records their results; without `lookups` it replays the recorded results in order."""

    lookups: LookupPort | None
    seconds: float = 0.0
    calls: int = 0
    answers: list[Sequence[LookupResult]] = field(default_factory=list)

    def find(self, queries_BD: NDArray[np.float32], **options: Any) -> Sequence[LookupResult]:
        if self.lookups is None:
            self.calls += 1
            return self.answers[self.calls - 1]
        started = time.perf_counter()
        found = self.lookups.find(queries_BD, **options)
        self.seconds += time.perf_counter() - started
        self.answers.append(found)
        return found


def lookup_cost(
    checkpoint: Checkpoint, kb: LookupPort, questions: Sequence[str], rounds: int
) -> dict[str, Any]:
    """Time questions in mode auto with lookups, and again with recorded results, which give the same tokens."""
    config = DecodeConfig(mode="auto", max_tokens=24)
    Decoder(checkpoint, kb).generate(questions[:1], config)  # opens the index
    recorded = _Recorded(kb)
    decoder = Decoder(checkpoint, recorded)
    first = [decoder.generate([question], config)[0] for question in questions]
    num_lookups = len(recorded.answers)
    lookup_ms = 1000 * recorded.seconds / max(1, num_lookups)

    def replay() -> None:
        memory = Decoder(checkpoint, _Recorded(None, answers=recorded.answers[:num_lookups]))
        for question in questions:
            memory.generate([question], config)

    plain = Decoder(checkpoint, kb)
    seconds = in_turns(
        {"auto": lambda: [plain.generate([q], config) for q in questions], "replay": replay}, rounds
    )
    splices = [s for generation in first for s in generation.splices]
    values = [
        generation.output[s.output_start : s.output_end]
        for generation in first
        for s in generation.splices
        if s.outcome == "hit"
    ]
    return {
        "questions": len(questions),
        "lookups": num_lookups,
        "hits": sum(s.outcome == "hit" for s in splices),
        "spliced_tokens": sum(len(checkpoint.tokenizer.encode(value)) for value in values),
        "content_tokens": sum(generation.content_tokens for generation in first),
        "auto": seconds["auto"],
        "replay": seconds["replay"],
        "lookup_cost": seconds["auto"].median / seconds["replay"].median - 1,
        "lookup_ms": lookup_ms,
    }


@dataclass(slots=True)
class _Timed:
    """A proxy of an object that adds up the seconds spent in the named methods."""

    inner: Any
    spent: dict[str, float]
    names: dict[str, str]
    settle: Callable[[], object] = lambda: None  # waits for an accelerator, whose work goes on after a call

    def __post_init__(self) -> None:
        for name in self.names:
            getattr(self.inner, name)  # a method of another name would pass for one that takes no time

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        if name not in self.names:
            return attribute

        def run_timed(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            result = attribute(*args, **options)
            self.settle()
            self.spent[self.names[name]] = (
                self.spent.get(self.names[name], 0.0) + time.perf_counter() - started
            )
            return result

        return run_timed


def time_shares(checkpoint: Checkpoint, kb: LookupPort, questions: Sequence[str]) -> dict[str, float]:
    """Give the shares of the time of decoding these questions, one at a time in mode auto."""
    spent: dict[str, float] = dict.fromkeys(("forward", "logits", "lookups"), 0.0)
    timed_kb: Any = _Timed(kb, spent, {"find": "lookups"})
    settle = torch.cuda.synchronize if checkpoint.lm.device.type == "cuda" else lambda: None
    started = time.perf_counter()
    for question in questions:
        run, _ = Decoder(checkpoint, timed_kb).run([question], DecodeConfig(mode="auto", max_tokens=24))
        run.forward = _Timed(run.forward, spent, {"feed": "forward", "logits": "logits"}, settle)
        for _ in run.steps():
            pass
    total = time.perf_counter() - started
    shares = {name: seconds / total for name, seconds in spent.items()}
    return shares | {"rest": 1 - sum(shares.values())}


@contextmanager
def demo_base(checkpoint: Checkpoint, home: Path, documents: int = _KNOWN) -> Iterator[KnowledgeBase]:
    """Yield a knowledge base of the first demo documents, with keys of this checkpoint, in a database of its own."""
    with KnowledgeBase.open(Settings(home=home, actor="bench")) as kb:
        known = islice(read_annotated(DEMO_CORPUS), documents)
        kb.corpora.ingest(known, "demo", actor="bench", reason="benchmark")
        kb.keysets.rekey(ModelEncoder(checkpoint))
        yield kb


# Measures what finding facts by more than the key costs a decoder: the same questions by each ranking.

TOKENS = 24
TOGETHER = 8


def bench_rankings(
    checkpoint: Checkpoint,
    kb: KnowledgeBase,
    reader: Callable[[], JudgedReader],
    questions: Sequence[str],
    rankings: Sequence[str],
    rounds: int,
) -> dict[str, dict[str, Any]]:
    """Decode the questions by each of the rankings, in turns."""
    lookups = RankedLookups(kb, reader)
    decoder = Decoder(checkpoint, lookups)
    configs = {name: DecodeConfig(max_tokens=TOKENS, ranking=name) for name in rankings}
    outputs, spent = {}, {}
    for name, config in configs.items():
        decoder.generate(questions[:1], config)  # opens the index, and loads the reader
        spent[name] = dict[str, float]()
        timed: Any = _Timed(lookups, spent[name], {"find": "lookups"})
        outputs[name] = generate_all(Decoder(checkpoint, timed), questions, config, 1)
    alone, together = (
        in_turns(
            {name: partial(generate_all, decoder, questions, one, rows) for name, one in configs.items()},
            rounds,
        )
        for rows in (1, TOGETHER)
    )
    return {
        name: _run_cost(
            checkpoint, outputs[name], alone[name], together[name], spent[name].get("lookups", 0.0)
        )
        for name in rankings
    }


def _run_cost(
    checkpoint: Checkpoint, outputs: Sequence[DecodedOutput], alone: Seconds, together: Seconds, spent: float
) -> dict[str, Any]:
    splices = [splice for output in outputs for splice in output.splices]
    tokens = sum(len(checkpoint.tokenizer.encode(output.output)) for output in outputs)
    return {
        "tokens": tokens,
        "lookups": len(splices),
        "hits": sum(splice.outcome == "hit" for splice in splices),
        "alone": alone,
        "together": together,
        "tokens_per_s": tokens / alone.median,
        "tokens_per_s_together": tokens / together.median,
        "lookup_ms": 1000 * spent / max(1, len(splices)),
    }
