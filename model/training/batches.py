"""Micro-batches as tensors: the input of one forward of the joint objective (section 3.2)."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from colmlm.model.text.tokens import Encoded
from colmlm.model.training.losses import question_ids
from colmlm.model.training.packing import Rows, lay_out
from colmlm.model.training.steps import Step


@dataclass(frozen=True, slots=True)
class JointBatch:
    """Sequences laid out in `rows` (`model.training.packing`), and the positions where their losses apply.

    Positions are numbered consecutively over all rows: those of the first of `rows`, line by line, then the second's.
    `scored_N` are positions whose state predicts a token of `targets_N`: all outside M, or a sample of them. `facts_P`
    and `queries_P` are the positions of the pairs, and `questions_P` numbers the question of each.
    """

    rows: tuple[Rows, ...]
    scored_N: Tensor
    targets_N: Tensor
    facts_P: Tensor
    queries_P: Tensor
    questions_P: Tensor
    num_tokens: int

    @property
    def num_pairs(self) -> int:
        return len(self.facts_P)

    def to(self, device: torch.device) -> JointBatch:
        tensors = ("scored_N", "targets_N", "facts_P", "queries_P", "questions_P")
        moved = {name: getattr(self, name).to(device) for name in tensors}
        return replace(self, rows=tuple(row.to(device) for row in self.rows), **moved)

    def without_targets(self) -> JointBatch:
        """Gives the same batch for its pairs alone."""
        return replace(self, scored_N=self.scored_N[:0], targets_N=self.targets_N[:0])

    def with_rows(self, count: int) -> JointBatch:
        """Adds rows of one token until there are `count`, so that all processes make equally many forwards."""
        filler = lay_out(())[0] * (count - len(self.rows))
        return replace(self, rows=self.rows + filler)


def joint_batch(
    step: Step, *, pairs: bool, fraction: float, salt: int, layout: str = "padded", row_length: int = 512
) -> JointBatch:
    """Makes the tensors of a step, or of a part of one. `pairs` False leaves the contrastive part out.

    A share `fraction` of the positions is scored. Which ones depends on `salt` and on the sequence alone, not on the
    rest of the batch or on where it runs.
    """
    rows, starts = lay_out(step.sequences, layout=layout, row_length=row_length)
    scored, targets = [], []
    for sequence, start, is_scored in zip(step.sequences, starts, step.scored, strict=True):
        if is_scored:
            kept_N = _kept(sequence, fraction, salt)
            scored.append(start + kept_N - 1)
            targets.append(torch.tensor(sequence.ids)[kept_N])
    chosen = step.pairs if pairs else ()
    return JointBatch(
        rows=rows,
        scored_N=_joined(scored),
        targets_N=_joined(targets),
        facts_P=torch.tensor([starts[p.fact_sequence] + p.fact_position for p in chosen], dtype=torch.long),
        queries_P=torch.tensor([starts[p.query_sequence] + p.query_position for p in chosen], dtype=torch.long),
        questions_P=question_ids([p.question for p in chosen]),
        num_tokens=step.num_tokens,
    )  # fmt: skip


def lookups_batch(sequences: Sequence[Encoded]) -> JointBatch:
    """Lays out sequences without a loss; `facts_P` are the positions of all their lookups, in order."""
    rows, starts = lay_out(sequences)
    nothing = torch.zeros(0, dtype=torch.long)
    lookups = [start + at for start, s in zip(starts, sequences, strict=True) for at in s.fact_positions]
    at_P = torch.tensor(lookups, dtype=torch.long)
    return JointBatch(rows, nothing, nothing, at_P, nothing, nothing, sum(map(len, sequences)))


def _kept(sequence: Encoded, fraction: float, salt: int) -> Tensor:
    """Gives the positions of a sequence whose tokens carry the next-token loss."""
    outside = ~torch.tensor(sequence.masked)
    outside[:1] = False  # no token before it predicts it
    if fraction < 1.0:
        digest = zlib.crc32(array("q", sequence.ids).tobytes(), salt & 0xFFFFFFFF)
        outside &= torch.rand(len(outside), generator=torch.Generator().manual_seed(digest)) < fraction
    return outside.nonzero().flatten()


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(pieces)) if pieces else torch.zeros(0, dtype=torch.long)
