"""Text to token ids and back, with the three tokens that Co-LMLM adds to a vocabulary (section 3.1).

Documents and prompts are never trusted: a literal ``<FACT>`` in a text is encoded as the characters it
is, not as the token, so no document can trigger or forge a lookup.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from kb.corpus import AnnotatedDocument, FactSpan

FACT, FACT_END, FACT_Q = "<FACT>", "</FACT>", "<FACT-q>"
ADDED_TOKENS = (FACT, FACT_END, FACT_Q)
END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Encoded:
    """One sequence: its ids, where its query markers are, and which tokens the loss leaves out.

    `fact_positions` are indices of ``<FACT>`` (or ``<FACT-q>``) in `ids`, in the order of the facts;
    `masked[t]` is True where token t belongs to M of section 3.2: the span and its ``</FACT>``, but not
    the opening ``<FACT>``.
    """

    ids: tuple[int, ...]
    fact_positions: tuple[int, ...]
    masked: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.ids)


class FactTokenizer:
    """A byte-level BPE tokenizer with ``<FACT>``, ``</FACT>`` and ``<FACT-q>`` as its last three ids.

    `space_inside` says where the space before a span goes. True: into the span's first token
    (``in<FACT> 1981</FACT>``), so that the text around keeps the base model's own tokens. False: before
    ``<FACT>`` (``in <FACT>1981</FACT>``), as plain tokenisation of the paper's inline form gives.
    """

    def __init__(self, tokenizer: Tokenizer, *, space_inside: bool = True) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        missing = [token for token in ADDED_TOKENS if tokenizer.token_to_id(token) is None]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in missing])
        tokenizer.encode_special_tokens = True
        self.tokenizer = tokenizer
        self.space_inside = space_inside
        self.fact, self.fact_end, self.fact_q, self.end_of_text = (
            self._required(token) for token in (*ADDED_TOKENS, END_OF_TEXT)
        )

    @classmethod
    def load(cls, path: Path, *, space_inside: bool = True) -> FactTokenizer:
        """Read a ``tokenizer.json``."""
        return cls(Tokenizer.from_file(str(path)), space_inside=space_inside)

    @property
    def vocabulary_size(self) -> int:
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; special tokens in it are read as characters."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def prompt(self, text: str) -> list[int]:
        """Ids of a prompt: every sequence starts with the end-of-text token, as documents do."""
        return [self.end_of_text, *self.encode(text)]

    def question(self, question: str, max_length: int = 128) -> Encoded:
        """A question closed by ``<FACT-q>``; of a longer one the end is kept (paper: 128 tokens)."""
        ids = [self.end_of_text, *self.encode(question.strip())[-(max_length - 2) :], self.fact_q]
        return Encoded(tuple(ids), (len(ids) - 1,), (True,) * len(ids))

    def context(self, text: str, max_length: int) -> Encoded:
        """A text closed by ``<FACT>``, as far as a document has it there; of a longer one the end is kept."""
        if self.space_inside:
            text = text.removesuffix(" ")  # it belongs to the value
        ids = [*self.prompt(text), self.fact][-max_length:]
        return Encoded(tuple(ids), (len(ids) - 1,), (False,) * len(ids))

    def document(
        self, document: AnnotatedDocument, *, with_title: bool = True, close: bool = True
    ) -> Encoded:
        """A document with its spans in tags, its title as the first line where it has one."""
        lead = f"{document.title}\n\n" if with_title and document.title else ""
        return self.spans(lead, document.text, document.facts, close=close)

    def spans(self, lead: str, text: str, facts: tuple[FactSpan, ...], *, close: bool = True) -> Encoded:
        """`lead` and `text` as one sequence, each fact of `text` in tags; `close` appends end-of-text."""
        ids, masked, positions = [self.end_of_text], [False], []
        at = 0
        for span in facts:
            before, value = (lead + text[at : span.start]), span.value
            lead = ""
            if self.space_inside and before.endswith(" "):
                before, value = before[:-1], f" {value}"
            outside, inside = self.encode(before), self.encode(value)
            positions.append(len(ids) + len(outside))
            ids += [*outside, self.fact, *inside, self.fact_end]
            masked += [*[False] * (len(outside) + 1), *[True] * (len(inside) + 1)]
            at = span.end
        tail = self.encode(lead + text[at:]) + [self.end_of_text] * close
        return Encoded(tuple(ids + tail), tuple(positions), tuple(masked + [False] * len(tail)))

    def save(self, path: Path) -> None:
        self.tokenizer.save(str(path))

    def _required(self, token: str) -> int:
        token_id = self.tokenizer.token_to_id(token)
        if token_id is None:
            raise ValueError(f"the tokenizer has no {token} token")
        return int(token_id)
