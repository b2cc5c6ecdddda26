"""The encoders that make keys: a checkpoint, a sentence encoder, and encoders that wrap another.

Keys of the demo corpus by the released checkpoint come with the program. A key depends on the weights and on what it is
made of, and on nothing else. So a file of keys names its checkpoint, and each of its entries the digest of the document
or the question it was made of; what differs in either is encoded anew.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from colmlm.kb.corpus.format import AnnotatedDocument, to_record
from colmlm.kb.corpus.training_record import RECORD_FILE, RECORDED
from colmlm.kb.keys.records import CheckpointInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from colmlm.kb.keys.rekey import Encoder
    from colmlm.model.lm.checkpoint import Checkpoint
    from colmlm.model.lm.encoder import SentenceEncoder

    Floats = NDArray[np.float32]

T = TypeVar("T")


class WrappingEncoder:
    """Encodes by another encoder what a subclass does not encode itself; a `kb.keys.rekey.Encoder`."""

    def __init__(self, encoder: Any, checkpoint: CheckpointInfo) -> None:
        self._encoder, self.checkpoint = encoder, checkpoint

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Floats]:
        keys: list[Floats] = self._encoder.encode_documents(documents)
        return keys

    def encode_questions(self, questions: Sequence[str]) -> Floats:
        keys: Floats = self._encoder.encode_questions(questions)
        return keys

    def encode_contexts(self, texts: Sequence[str]) -> Floats:
        queries: Floats = self._encoder.encode_contexts(texts)
        return queries


def describe(checkpoint: Checkpoint) -> CheckpointInfo:
    """Give the description of a checkpoint that the knowledge base stores."""
    record = checkpoint.config.digests.get(RECORD_FILE)
    trained_on = checkpoint.config.training.get("data_sha256") if record is None else f"{RECORDED}{record}"
    return CheckpointInfo(
        checkpoint_id=checkpoint.checkpoint_id,
        name=checkpoint.config.name,
        dim=checkpoint.config.dim,
        path=str(checkpoint.path.absolute()) if checkpoint.path else None,
        tokenizer_hash=checkpoint.tokenizer_hash,
        trained_on=str(trained_on) if trained_on else None,
    )


class ModelEncoder(WrappingEncoder):
    """Makes keys with a checkpoint; also an `api.ports.QuestionEncoder`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        from colmlm.model.lm.encoder import KeyEncoder

        super().__init__(KeyEncoder(checkpoint), describe(checkpoint))


REGISTERED = "encoder:"  # starts the path under which a sentence encoder is registered


class EncoderName(StrEnum):
    """The all-MiniLM-L6-v2 encoders. A key encodes a fact's question (else its sentence), or always its sentence."""

    minilm = "minilm"
    minilm_sentences = "minilm-sentences"


class SentenceKeys(WrappingEncoder):
    """Makes keys with a sentence encoder, for the baselines whose queries are texts."""

    def __init__(self, name: EncoderName, encoder: SentenceEncoder) -> None:
        self.sentences = encoder
        registered = CheckpointInfo(
            checkpoint_id=encoder.checkpoint_id,
            name=encoder.name,
            dim=encoder.dim,
            path=f"{REGISTERED}{name}",
            tokenizer_hash=encoder.tokenizer_hash,
        )
        super().__init__(encoder, registered)

    @classmethod
    def of_encoder(cls, name: EncoderName) -> SentenceKeys:
        from colmlm.model.lm.encoder import SentenceEncoder

        keys = "question" if name is EncoderName.minilm else "sentence"
        return cls(name, SentenceEncoder(keys=keys))


MOST_GATHERED = 32  # questions of several threads in one call, so that none waits for long


@dataclass(slots=True, eq=False)
class _EncodingRequest:
    """The questions of one thread, and the result: rows [n, d] or the error of the encoder (None: not encoded yet)."""

    questions: Sequence[str]
    rows: Floats | Exception | None = None


class GatheringEncoder(WrappingEncoder):
    """Encodes the questions of several threads by one call of the model, which costs little more than one alone.

    Questions that arrive during a call wait for the next one, so a thread that asks alone waits for nobody. The last
    bits of a row depend on the other questions of its call.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder, encoder.checkpoint)
        self._waiting: list[_EncodingRequest] = []
        self._changing, self._turn = threading.Lock(), threading.Lock()

    def encode_questions(self, questions: Sequence[str]) -> Floats:
        mine = _EncodingRequest(questions)
        with self._changing:
            self._waiting.append(mine)
        with self._turn:  # whoever has the turn encodes for all that wait
            while mine.rows is None:
                self._encode(self._take_batch())
        if isinstance(mine.rows, Exception):
            raise mine.rows
        return mine.rows

    def _take_batch(self) -> list[_EncodingRequest]:
        """Take the oldest requests off the queue: the first, and as many more as `MOST_GATHERED` questions allow."""
        with self._changing:
            count, num_questions = 1, len(self._waiting[0].questions)
            for asked in self._waiting[1:]:
                num_questions += len(asked.questions)
                if num_questions > MOST_GATHERED:
                    break
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _encode(self, taken: Sequence[_EncodingRequest]) -> None:
        try:
            rows = self._encoder.encode_questions([q for asked in taken for q in asked.questions])
        except Exception as error:  # noqa: BLE001 - it is raised in the thread of whoever asked
            if len(taken) == 1:
                taken[0].rows = error
                return
            for asked in taken:  # one of them spoils no other
                self._encode([asked])
            return
        ends = accumulate(len(asked.questions) for asked in taken)
        for asked, end in zip(taken, ends, strict=True):
            asked.rows = rows[end - len(asked.questions) : end]


_CHECKPOINT = "checkpoint"


def with_known_keys(encoder: Encoder, path: Path) -> Encoder:
    """Give an encoder with the file's keys; the given one if the file is unreadable or another checkpoint made it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            if (file.metadata() or {}).get(_CHECKPOINT) != encoder.checkpoint.checkpoint_id:
                return encoder
            return _KnownKeys(encoder, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (OSError, SafetensorError):  # then the keys are made, which takes longer and gives the same
        return encoder


class KeyRecorder(WrappingEncoder):
    """An encoder that remembers all keys it makes, to be written into a file."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder, encoder.checkpoint)
        self._made: dict[str, NDArray[np.float16]] = {}

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Floats]:
        made = super().encode_documents(documents)
        self._remember(map(_name_of_document, documents), made)
        return made

    def encode_questions(self, questions: Sequence[str]) -> Floats:
        made = super().encode_questions(questions)
        self._remember(map(_name_of_question, questions), made)
        return made

    def write(self, path: Path) -> None:
        """Write the keys as float16, the precision in which a base stores them."""
        from safetensors.numpy import save_file

        save_file(self._made, path, {_CHECKPOINT: self.checkpoint.checkpoint_id})

    def _remember(self, names: Iterable[str], made: Iterable[Floats]) -> None:
        import numpy as np

        self._made |= {
            name: np.ascontiguousarray(keys, np.float16) for name, keys in zip(names, made, strict=True)
        }


class _KnownKeys(WrappingEncoder):
    """An encoder that encodes only what `known` lacks."""

    def __init__(self, encoder: Encoder, known: Mapping[str, NDArray[np.float16]]) -> None:
        super().__init__(encoder, encoder.checkpoint)
        self._known = known

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Floats]:
        return self._known_or_encoded(documents, _name_of_document, self._encoder.encode_documents)

    def encode_questions(self, questions: Sequence[str]) -> Floats:
        import numpy as np

        rows = self._known_or_encoded(
            questions, _name_of_question, lambda others: list(self._encoder.encode_questions(others))
        )
        return np.stack(rows) if rows else self._encoder.encode_questions([])

    def _known_or_encoded(
        self, asked: Sequence[T], name: Callable[[T], str], encode: Callable[[Sequence[T]], list[Floats]]
    ) -> list[Floats]:
        found = [self._known.get(name(one)) for one in asked]
        others = [one for one, keys in zip(asked, found, strict=True) if keys is None]
        made = iter(encode(others) if others else ())
        return [next(made) if keys is None else keys.astype("float32") for keys in found]


def _name_of_document(document: AnnotatedDocument) -> str:
    """Give the name under which a file has the keys of this document: its kind and a digest of its record."""
    return _digest("document", json.dumps(to_record(document), sort_keys=True))


def _name_of_question(question: str) -> str:
    return _digest("question", question)


def _digest(kind: str, made_of: str) -> str:
    return f"{kind} {hashlib.sha256(made_of.encode()).hexdigest()}"
