"""How much each step does: on the accelerator, in its smoke test, and in a rehearsal on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from colmlm.model.training.config import Architecture
from colmlm.model.training.presets import SCRATCH_CONTEXT


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The sizes of the steps. What is named `minutes` bounds the training or writing of a step, without its loading.

    Questions are written by `writers` processes, which share the accelerator; each takes up to `asked` documents and
    `cache_tokens` tokens at once. `documents` of texts are taken, `measured` of those that recall is measured on,
    `held` of those for perplexity, whose lookups are among the facts of `known` documents.
    """

    reader_rounds: int
    reader_steps: int | None
    reader_minutes: float
    generator_steps: int | None
    generator_minutes: float
    writers: int
    asked: int | None
    cache_tokens: int
    questions_minutes: float
    batch: int
    micro: int
    steps: int
    train_minutes: float
    rank: int
    documents: int | None
    measured: int | None
    held: int
    known: int
    scratch: Architecture
    scratch_batch: int
    scratch_steps: int
    scratch_minutes: float


FULL = Sizes(
    reader_rounds=8,
    reader_steps=None,
    reader_minutes=1.5,
    generator_steps=None,
    generator_minutes=1.0,
    writers=12,
    asked=None,
    cache_tokens=65_536,
    questions_minutes=5.0,
    batch=512,
    micro=64,
    steps=100_000,
    train_minutes=8.0,
    rank=24,
    documents=None,
    measured=None,
    held=500,
    known=10_000,
    scratch=Architecture(layers=12, width=384, heads=6, kv_heads=6, ffn=1024, context=SCRATCH_CONTEXT),
    scratch_batch=64,
    scratch_steps=100_000,
    scratch_minutes=3.5,
)
SMOKE = replace(
    FULL,
    reader_rounds=1,
    reader_steps=10,
    generator_steps=10,
    asked=32,
    questions_minutes=0.5,
    steps=10,
    documents=4096,
    measured=64,
    held=4,
    known=64,
    scratch_steps=10,
)
TINY = replace(
    SMOKE,
    reader_steps=2,
    generator_steps=1,
    writers=1,
    asked=2,
    cache_tokens=4096,
    questions_minutes=10.0,
    batch=2,
    micro=1,
    steps=2,
    rank=2,
    documents=8,
    measured=2,
    held=1,
    known=2,
    scratch=Architecture(layers=2, width=64, heads=2, kv_heads=2, ffn=128, context=SCRATCH_CONTEXT),
    scratch_batch=4,
    scratch_steps=2,
)
SIZES = {"full": FULL, "smoke": SMOKE, "tiny": TINY}
