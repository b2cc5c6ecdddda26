"""A question with a passage as the encoder reads them, and the spans of a passage that may be an answer.

The sequence is ``[CLS] question [SEP] title [SEP] text [SEP]``, without title ``[CLS] question [SEP] text [SEP]``. What
follows the question is of the second token type. "None" is read at ``[CLS]``, starts and ends at the text's words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from colmlm.model.annotate.bio import Span
from colmlm.model.annotate.windows import Words, WordTokenizer
from colmlm.model.text.tokens import padded

LONGEST_QUESTION = 64
LONGEST_TITLE = 48
# Offsets strictly within these are no bounds of an answer: numbers with the sign or the short name of their unit,
# ranges and compounds of numbers ("6-week"), initials, what follows an apostrophe.
_NUMBER = r"\d+(?:[.,:]\d+)*"
_UNIT = r"%|‰|°(?:[CF]\b)?|[€£$¥]|(?:[kMGT]i?B|[kMG]?Hz|[kcm]?m|[mk]?g|m?l|ms|kWh?|MWh?|km/h|mph)\b"
_UNCUT = re.compile(
    rf"(?:[€£$¥]\s?)?{_NUMBER}(?:[-–][^\W_]+|\s?(?:{_UNIT}))?|(?:[^\W\d_]\.){{2,}}|(?<=\w)['’]\w+"
)


@dataclass(frozen=True, slots=True)
class Joined:
    """Question, title and text as one sequence: `second` is where the second token type begins, `text` the text."""

    ids: list[int]
    second: int
    text: int


@dataclass(frozen=True, slots=True)
class ReaderBatch:
    """Padded sequences: ids, mask, token types, and where a span may begin or end (``[CLS]`` and the text's tokens)."""

    ids_BT: Tensor
    mask_BT: Tensor
    types_BT: Tensor
    open_BT: Tensor


def joined(tokenizer: WordTokenizer, question: Words, title: Words, text: Sequence[int]) -> Joined:
    """Joins the three. Question and title are cut at their longest lengths."""
    head = tokenizer.framed(question.ids[:LONGEST_QUESTION])
    named = [*title.ids[:LONGEST_TITLE], tokenizer.sep] if title.ids else []
    return Joined([*head, *named, *text, tokenizer.sep], len(head), len(head) + len(named))


def batched(sequences: Sequence[Joined], pad: int) -> ReaderBatch:
    """Pads the sequences on the right."""
    ids_BT, mask_BT = padded([sequence.ids for sequence in sequences], pad)
    types_BT, open_BT = torch.zeros_like(ids_BT), torch.zeros_like(ids_BT, dtype=torch.bool)
    open_BT[:, 0] = True
    for row, sequence in enumerate(sequences):
        types_BT[row, sequence.second : len(sequence.ids)] = 1
        open_BT[row, sequence.text : len(sequence.ids) - 1] = True
    return ReaderBatch(ids_BT, mask_BT, types_BT, open_BT)


def logits(module: torch.nn.Module, batch: ReaderBatch, device: torch.device) -> Tensor:
    """Computes the logits of starts and ends, [B, T, 2] in float32; where none may be, minus infinity."""
    inputs = {"input_ids": batch.ids_BT.to(device), "attention_mask": batch.mask_BT.to(device)}
    if getattr(module.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = batch.types_BT.to(device)
    logits_BT2: Tensor = module(**inputs).logits.float()
    return logits_BT2.masked_fill(~batch.open_BT.to(device)[..., None], float("-inf"))


def cuts(text: str) -> set[int]:
    """Gives the offsets at which no answer begins or ends, since it would cut a number or a word."""
    return {at for found in _UNCUT.finditer(text) for at in range(found.start() + 1, found.end())}


def last_tokens(words: Words) -> list[int]:
    """Gives the last token of each word."""
    return [after - 1 for after in (*words.first[1:], len(words.ids))] if words.words else []


def words_of(words: Words, span: Span) -> tuple[int, int] | None:
    """Gives the first and the last word that the span covers, in part or whole; None if it covers none."""
    covered = [n for n, (start, end) in enumerate(words.words) if start < span[1] and end > span[0]]
    return (covered[0], covered[-1]) if covered else None
