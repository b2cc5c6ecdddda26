"""Text to token ids and back, with the tokens that a method adds to a vocabulary (section 3.1).

Documents and prompts are never trusted: a literal ``<FACT>`` in a text is encoded as its characters, not as the token,
so no document can trigger or forge a lookup.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.text.markup import CO_LMLM, Markup, Span

END_OF_TEXT = "<|endoftext|>"
ENDS = (END_OF_TEXT, "<|end_of_text|>", "<eos>", "</s>")  # as the families name the end of a text
BEGINS = ("<|begin_of_text|>", "<bos>", "<s>")  # and its beginning, where that is another token
_SPACED = " a  b"


@dataclass(frozen=True, slots=True)
class EncodedText:
    """One sequence: its ids, the positions where its lookups begin, and the tokens that the loss leaves out.

    `fact_positions` are indices in `ids` of the opening token (``<FACT>``, or ``<FACT-q>`` of a question), in the order
    of the facts. `masked[t]` is True where token t belongs to M of section 3.2: the span and its closing token, but
    neither the opening token nor a query in words.
    """

    ids: tuple[int, ...]
    fact_positions: tuple[int, ...]
    masked: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.ids)


class TokenizerUnfit(ValueError):
    """A tokenizer that cannot be used here; the message says what it lacks."""


class FactTokenizer:
    """A BPE tokenizer, of bytes or as SentencePiece makes it, with the tokens of a markup as its last ids.

    `space_inside` says where the space before a span goes. True: into the span's first token (``in<FACT>
    1981</FACT>``), so that the surrounding text keeps the base model's own tokens. False: before ``<FACT>`` (``in
    <FACT>1981</FACT>``), as the paper's inline form is tokenised. `unsayable` are tokens that hold a NUL, which no
    database keeps as text. `num_fresh` counts the markup's tokens that the tokenizer did not have before; a model needs
    as many new rows. `begin` is the token before every text: a token of its own, or the end-of-text token. Raises
    `TokenizerUnfit` for a tokenizer without such a token, or one that changes the spaces of a text.
    """

    def __init__(self, tokenizer: Tokenizer, *, markup: Markup = CO_LMLM, space_inside: bool = True) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        missing = [token for token in markup.tokens if tokenizer.token_to_id(token) is None]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in missing])
        tokenizer.encode_special_tokens = True
        self.num_fresh = len(missing)
        self.tokenizer = tokenizer
        self.markup = markup
        self.space_inside = space_inside
        self.added = [self.id_of(token) for token in markup.tokens]
        named = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(i for i, token in named.items() if token.special)
        self.end_of_text = self._first_special(ENDS, tokenizer.token_to_id(END_OF_TEXT))
        self.begin = self._first_special(BEGINS, self.end_of_text)
        self._check_spaces()
        self.alphabet = alphabet_of(tokenizer)
        self.unsayable = [
            i for token, i in tokenizer.get_vocab().items() if any(nul in token for nul in self.alphabet.nuls)
        ]

    @classmethod
    def load(cls, path: Path, *, markup: Markup = CO_LMLM, space_inside: bool = True) -> FactTokenizer:
        """Read a ``tokenizer.json``. Raises `TokenizerUnfit` if it cannot be read, or not be used."""
        try:
            return cls(Tokenizer.from_file(str(path)), markup=markup, space_inside=space_inside)
        except TokenizerUnfit as error:
            raise TokenizerUnfit(f"{path}: {error}") from error
        except Exception as error:  # the library raises nothing more special
            if type(error) is not Exception:
                raise
            raise TokenizerUnfit(f"{path} cannot be read ({error})") from error

    @property
    def fact(self) -> int:
        """Give the id of the token that begins a lookup. Raises `ValueError` if there is none."""
        return self.id_of(self.markup.opens)

    @property
    def fact_end(self) -> int:
        """Give the id of the token after a value. Raises `ValueError` if there is none."""
        return self.id_of(self.markup.closes)

    @property
    def fact_q(self) -> int:
        """Give the id of the token whose state after a question is a key. Raises `ValueError` if there is none."""
        return self.id_of(self.markup.key)

    @property
    def vocabulary_size(self) -> int:
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def num_learnt(self) -> int:
        """Give the number of tokens that were learnt from texts, without those that were added by name."""
        return int(self.tokenizer.get_vocab_size(with_added_tokens=False))

    def encode(self, text: str) -> list[int]:
        """Encode plain text; special tokens in it are read as characters."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many plain texts in one call on all cores, each as `encode` does."""
        return [
            encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def prompt(self, prompt: str | Sequence[int]) -> list[int]:
        """Give the ids of a prompt (a text or ids), with the token that begins every text in front.

        Raises `ValueError` if the given ids hold a token of the markup, which would forge a lookup, or an unknown id,
        and for a text with a lone surrogate.
        """
        if isinstance(prompt, str):
            prompt.encode()  # raises for a lone surrogate, which the tokenizer calls no string at all
            return [self.begin, *self.encode(prompt)]
        wrong = [token for token in prompt if not 0 <= token < self.vocabulary_size or token in self.added]
        if wrong:
            raise ValueError(f"token {wrong[0]} cannot stand in a prompt; leave it out")
        ids = list(prompt)
        return ids if ids[:1] == [self.begin] else [self.begin, *ids]

    def question(self, question: str, max_length: int = 128) -> EncodedText:
        """Encode a question closed by ``<FACT-q>``, keeping the end of one that is too long (paper: 128 tokens)."""
        ids = [self.begin, *self.encode(question.strip())[-(max_length - 2) :], self.fact_q]
        return EncodedText(tuple(ids), (len(ids) - 1,), (True,) * len(ids))

    def context(self, text: str, max_length: int) -> EncodedText:
        """Encode a text followed by ``<FACT>``, as in a document, and keep the last `max_length` tokens."""
        if self.space_inside:
            text = text.removesuffix(" ")  # the space belongs to the value
        ids = [*self.prompt(text), self.fact][-max_length:]
        return EncodedText(tuple(ids), (len(ids) - 1,), (False,) * len(ids))

    def forbid_markup(self, logits_NV: torch.Tensor) -> None:
        """Set the logits of the markup's tokens to minus infinity."""
        added = torch.tensor(self.added, dtype=torch.long, device=logits_NV.device)
        logits_NV.index_fill_(1, added, -math.inf)

    def bytes_of(self, token: int) -> bytes:
        """Give the bytes that a token stands for, which may be part of a character. A special token gives its name."""
        name = self.tokenizer.id_to_token(token) or ""
        return name.encode() if token in self.special else self.alphabet.bytes_of(name)

    def query_in_words(self, ids: Sequence[int]) -> str:
        """Give the text of a query written between `opens` and `asks`, with its parts on separate lines."""
        if self.markup.parts is None:
            return self.decode(ids).strip()
        parts: list[list[int]] = [[]]
        separator = self.id_of(self.markup.parts)
        for token in ids:
            if token == separator:
                parts.append([])
            else:
                parts[-1].append(token)
        return "\n".join(self.decode(part).strip() for part in parts)

    def document(
        self, document: AnnotatedDocument, *, with_title: bool = True, close: bool = True
    ) -> EncodedText:
        """Encode a document with its lookups, and with its title, if any, as the first line."""
        return self.spans(_lead(document) if with_title else "", document.text, document.facts, close=close)

    def documents(self, documents: Sequence[AnnotatedDocument], *, close: bool = True) -> list[EncodedText]:
        """Encode each document as `document` does, the pieces of all of them in one call on all cores."""
        cut = [self._cut(_lead(one), one.text, one.facts) for one in documents]
        ids = iter(self.encode_each([piece for pieces in cut for piece in pieces.texts()]))
        return [self._join(pieces, ids, close=close) for pieces in cut]

    def spans(self, lead: str, text: str, facts: Sequence[FactSpan], *, close: bool = True) -> EncodedText:
        """Encode `lead` and `text` as one sequence with each fact of `text` as a lookup; `close` appends end-of-text.

        A markup without lookups leaves the text unchanged. One with queries in words writes each fact's question as the
        query, and leaves a fact without a question as plain text.
        """
        pieces = self._cut(lead, text, facts)
        return self._join(pieces, map(self.encode, pieces.texts()), close=close)

    def _cut(self, lead: str, text: str, facts: Sequence[FactSpan]) -> _CutText:
        """Cut `lead` and `text` at the spans of those facts that become lookups."""
        pieces, at = _CutText([], ""), 0
        for span in facts if self.markup.opens else ():
            if self.markup.asks and not span.question:
                continue
            before, value = (lead + text[at : span.start]), span.value
            lead = ""
            if self.space_inside and before.endswith(" "):
                before, value = before[:-1], f" {value}"
            pieces.lookups.append((before, value, self._query_parts(span.question)))
            at = span.end
        pieces.tail = lead + text[at:]
        return pieces

    def _join(self, pieces: _CutText, encoded: Iterator[list[int]], *, close: bool) -> EncodedText:
        """Join a cut text to one sequence. `encoded` yields the ids of its pieces in the order of `_CutText.texts`."""
        ids, masked, positions = [self.begin], [False], []
        opens, closes = (self.fact, self.fact_end) if pieces.lookups else (0, 0)
        for _, _, query in pieces.lookups:
            outside, inside = [*next(encoded), opens], next(encoded)
            positions.append(len(ids) + len(outside) - 1)
            outside += self._query([next(encoded) for _ in query])
            ids += [*outside, *inside, closes]
            masked += [*[False] * len(outside), *[True] * (len(inside) + 1)]
        tail = next(encoded) + [self.end_of_text] * close
        return EncodedText(tuple(ids + tail), tuple(positions), tuple(masked + [False] * len(tail)))

    def save(self, path: Path) -> None:
        self.tokenizer.save(str(path))

    def id_of(self, token: str | None) -> int:
        """Give the id of a token. Raises `ValueError` if the tokenizer does not have it, or if `token` is None."""
        token_id = None if token is None else self.tokenizer.token_to_id(token)
        if token_id is None:
            raise ValueError(
                f"the tokenizer has no {token or 'such'} token, which method {self.markup.method} "
                "writes; name a checkpoint that was trained with it"
            )
        return int(token_id)

    def _first_special(self, names: Sequence[str], otherwise: int | None) -> int:
        """Give the id of the first name that is a special token, else `otherwise` (if None, raise `TokenizerUnfit`)."""
        found = (i for name in names if (i := self.tokenizer.token_to_id(name)) in self.special)
        token = next(found, otherwise)
        if token is None:
            raise TokenizerUnfit(
                f"this tokenizer has no {names[0]} token, and none of {', '.join(names[1:])}"
            )
        return int(token)

    def _check_spaces(self) -> None:
        """Raise `TokenizerUnfit` if decoding changes a text's spaces, since offsets in outputs depend on them."""
        if (again := self.decode(self.encode(_SPACED))) != _SPACED:
            raise TokenizerUnfit(
                f"this tokenizer gives {again!r} back for {_SPACED!r}: it adds or drops spaces where a piece of a text "
                "begins, and values that are spliced would not stand where they are said to"
            )

    def _query_parts(self, question: str | None) -> list[str]:
        """Give the parts of a fact's query in words; none where the method's query is a hidden state."""
        if self.markup.asks is None:
            return []
        return [
            part.strip() for part in ((question or "").split("\n") if self.markup.parts else [question or ""])
        ]

    def _query(self, parts: Sequence[list[int]]) -> list[int]:
        """Join a query's parts, with separators and closing token, to ids; none where the query is a hidden state."""
        if self.markup.asks is None:
            return []
        ids: list[int] = []
        for number, part in enumerate(parts):
            ids += [self.id_of(self.markup.parts), *part] if number else part
        return [*ids, self.id_of(self.markup.asks)]


@dataclass(slots=True)
class _CutText:
    """A text cut at its lookups: the text before each, its value and its query's parts, and the text after the last."""

    lookups: list[tuple[str, str, list[str]]]
    tail: str

    def texts(self) -> Iterator[str]:
        for before, value, query in self.lookups:
            yield from (before, value, *query)
        yield self.tail


def _lead(document: AnnotatedDocument) -> str:
    return f"{document.title}\n\n" if document.title else ""


# The two ways in which tokens are written in a vocabulary: their bytes as characters, or a mark for each
# space.

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"


class Alphabet(Protocol):
    """The way a vocabulary writes bytes as names of tokens. A name with one of `nuls` stands for bytes with a NUL."""

    nuls: tuple[str, ...]

    def bytes_of(self, name: str) -> bytes:
        """Give the bytes that a token of this name stands for, which may be part of a character."""
        ...


def alphabet_of(tokenizer: Tokenizer) -> Alphabet:
    """Give the alphabet in which a tokenizer's tokens are written."""
    return ByteAlphabet() if b'"ByteLevel"' in tokenizer.decoder.__getstate__() else SpaceAlphabet()


class ByteAlphabet:
    """The alphabet of byte-level BPE: printable bytes as themselves, the others as characters from 256 on."""

    nuls: tuple[str, ...] = (chr(256),)

    def __init__(self) -> None:
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        self._bytes = {chr(byte): byte for byte in printable}
        self._bytes |= {chr(256 + n): byte for n, byte in enumerate(others)}

    def bytes_of(self, name: str) -> bytes:
        if self._bytes.keys() >= set(name):
            return bytes(self._bytes[character] for character in name)
        return name.encode()  # one that was added as it stands


class SpaceAlphabet:
    """The alphabet of SentencePiece: U+2581 is a space, and a byte without another token is named like ``<0x0A>``."""

    nuls: tuple[str, ...] = ("<0x00>", "\0")

    def bytes_of(self, name: str) -> bytes:
        if byte := _BYTE.fullmatch(name):
            return bytes([int(byte[1], 16)])
        return name.replace(_SPACE, " ").encode()


# Batches of texts: token ids of several texts in one tensor, padded on the right, those of similar length
# together.
#
# An accelerator reads them in few fixed shapes: rows are padded to the next of a few lengths, and a batch has as many
# rows as its budget of tokens allows. On a CPU a new shape costs nothing, and padding does.

TOKENS_AT_ONCE = 4096  # of a forward on a CPU
TOKENS_AT_ONCE_ON_DEVICE = 32_768  # of one on an accelerator
_SHORTEST_LENGTH = 32  # the least of the fixed lengths
_LENGTHS_PER_DOUBLING = 4  # how many fixed lengths there are up to the double of one


def tokens_at_once(device: torch.device) -> int:
    """Give the number of tokens, padding included, that a forward pass over a batch takes on this device."""
    return TOKENS_AT_ONCE if device.type == "cpu" else TOKENS_AT_ONCE_ON_DEVICE


def fixed_length(length: int) -> int:
    """Round a length up to one of few: 32, 40, 48, 56, 64, 80, 96, 112, 128, 160 and so on."""
    step = max(_SHORTEST_LENGTH, 1 << (max(1, length) - 1).bit_length()) // (2 * _LENGTHS_PER_DOUBLING)
    return max(_SHORTEST_LENGTH, -(-length // step) * step)


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """A batch for one forward pass: the indices of its sequences, and the shape that they are padded to."""

    numbers: list[int]
    rows: int
    width: int

    def pad(self, sequences: Sequence[Sequence[int]], pad: int, device: torch.device) -> torch.Tensor:
        """Give the [rows, width] ids of this batch, filled up with `pad`, on a device (see `send`)."""
        ids_BT = np.full((self.rows, self.width), pad, dtype=np.int64)
        for row, number in enumerate(self.numbers):
            ids_BT[row, : len(sequences[number])] = sequences[number]
        return send(torch.from_numpy(ids_BT), device)

    def mask(self, lengths: Sequence[int], device: torch.device) -> torch.Tensor:
        """Give the [rows, width] mask: 1 at tokens, 0 at padding. A row without a sequence has one 1."""
        counts_B = np.ones(self.rows, dtype=np.int64)
        counts_B[: len(self.numbers)] = [lengths[number] for number in self.numbers]
        return send(torch.from_numpy((np.arange(self.width) < counts_B[:, None]).astype(np.int64)), device)


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor from the host to a device: to CUDA from pinned memory, without waiting for the copy."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def length_batches(
    lengths: Sequence[int], *, device: torch.device, max_tokens: int | None = None, longest: int | None = None
) -> list[PaddedBatch]:
    """Group sequences of these lengths to batches, longest first, of at most `max_tokens` tokens with their padding.

    On an accelerator the shapes are few: a width is a `fixed_length`, at most `longest`. A batch has the rows that
    `max_tokens` allows, and the last batch of a width the next power of two.
    """
    budget = max_tokens or tokens_at_once(device)
    if device.type == "cpu":
        groups = length_groups(lengths, max_tokens=budget)
        return [PaddedBatch(group, len(group), lengths[group[0]]) for group in groups]
    by_width: dict[int, list[int]] = {}
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        width = fixed_length(lengths[number])
        by_width.setdefault(width if longest is None else min(width, longest), []).append(number)
    batches = []
    for width, numbers in by_width.items():
        most = max(1, budget // width)
        for at in range(0, len(numbers), most):
            some = numbers[at : at + most]
            batches.append(PaddedBatch(some, min(most, 1 << (len(some) - 1).bit_length()), width))
    return batches


def pad_sequences(sequences: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad sequences on the right, on the host: give [B, T] ids, and [B, T] with 1 where there is a token."""
    lengths_B = np.array([len(ids) for ids in sequences])
    ids_BT = np.full((len(sequences), int(lengths_B.max())), pad, dtype=np.int64)
    for row, ids in enumerate(sequences):
        ids_BT[row, : len(ids)] = ids
    mask_BT = (np.arange(ids_BT.shape[1]) < lengths_B[:, None]).astype(np.int64)
    return torch.from_numpy(ids_BT), torch.from_numpy(mask_BT)


def length_groups(lengths: Sequence[int], waste: float = 0.15, max_tokens: int = 8192) -> list[list[int]]:
    """Group the indices of sequences that are padded together, longest first.

    A group grows until padding would exceed the share `waste` of its tokens, or `max_tokens`.
    """
    groups: list[list[int]] = []
    real = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups:
            width = lengths[groups[-1][0]]
            room = width * (len(groups[-1]) + 1)
            if room <= max_tokens and real + lengths[i] >= (1 - waste) * room:
                groups[-1].append(i)
                real += lengths[i]
                continue
        groups.append([i])
        real = lengths[i]
    return groups


# Texts as an encoder reads them: token ids, the words they belong to, and windows over long texts.


@dataclass(frozen=True, slots=True)
class TokenisedWords:
    """A text's tokens. `words[i]` are the offsets of word i in code points, and `first[i]` is its first token."""

    ids: list[int]
    words: list[Span]
    first: list[int]


@dataclass(frozen=True, slots=True)
class WordWindow:
    """Tokens ``[start, end)`` of a text, and the indices of the words for which a model reads this window."""

    start: int
    end: int
    words: range


# What begins, ends and pads a sequence: BERT's tokens, RoBERTa's, which MPNet has too, and those of SmolLM2's chats.
_FRAMES = (
    ("[CLS]", "[SEP]", "[PAD]"),
    ("<s>", "</s>", "<pad>"),
    ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
)


class WordTokenizer:
    """The tokenizer of a model that reads words; it encodes a literal ``[SEP]`` in a text as its characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self.tokenizer = tokenizer
        self.cls, self.sep, self.pad = map(self._id, *_FRAMES)

    @classmethod
    def load(cls, path: Path) -> WordTokenizer:
        """Read a ``tokenizer.json``."""
        return cls(Tokenizer.from_file(str(path)))

    def encode(self, text: str) -> TokenisedWords:
        """Encode the words of a text in order; what the tokenizer drops (controls, blanks) is in no word."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        words: list[Span] = []
        first: list[int] = []
        word_before: int | None = None
        for token, (word, (start, end)) in enumerate(zip(encoding.word_ids, encoding.offsets, strict=True)):
            if word is None or word != word_before:
                words.append((start, end))
                first.append(token)
            else:
                words[-1] = (words[-1][0], max(end, words[-1][1]))
            word_before = word
        return TokenisedWords(list(encoding.ids), words, first)

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of many texts in one call on all cores, without the texts' words."""
        return [
            encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]

    def frame_ids(self, ids: list[int]) -> list[int]:
        """Put the ids between the tokens that begin and end a sequence."""
        return [self.cls, *ids, self.sep]

    def _id(self, *names: str) -> int:
        """Give the id of a token under the first of its names that the vocabulary has."""
        for name in names:
            if (token_id := self.tokenizer.token_to_id(name)) is not None:
                return int(token_id)
        raise ValueError(
            f"the tokenizer has none of {', '.join(names)}: no reader or tagger can be made of it; name "
            "another base"
        )


def windows(encoded: TokenisedWords, size: int, overlap: int) -> list[WordWindow]:
    """Make windows of at most `size` tokens that overlap by at least `overlap`.

    Each word is read in the window where its first token is furthest from a cut, and so has the most context. The ends
    of the text are no cuts.
    """
    if not 0 <= overlap < size:
        raise ValueError(
            f"windows of {size} tokens cannot overlap by {overlap}; lower overlap, or raise max_length"
        )
    length = len(encoded.ids)
    starts = [*range(0, max(1, length - size), size - overlap)]
    if length > size:
        starts.append(length - size)
    context_T = np.full(length, -1, dtype=np.int64)
    owner_T = np.zeros(length, dtype=np.int64)
    for number, start in enumerate(starts):
        end = min(start + size, length)
        at_T = np.arange(start, end)
        left_T = at_T - start if start else np.full(len(at_T), length)
        right_T = end - 1 - at_T if end < length else np.full(len(at_T), length)
        here_T = np.minimum(left_T, right_T)
        better_T = here_T > context_T[start:end]
        context_T[start:end][better_T] = here_T[better_T]
        owner_T[start:end][better_T] = number
    owners = owner_T[np.array(encoded.first, dtype=np.int64)]  # never decreases from one word to the next
    bounds = np.searchsorted(owners, np.arange(len(starts) + 1))
    read = [
        WordWindow(start, min(start + size, length), range(int(bounds[n]), int(bounds[n + 1])))
        for n, start in enumerate(starts)
    ]
    return [window for window in read if window.words]
