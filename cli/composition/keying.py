"""Gives facts keys and calibrates their keyset, for commands, jobs and the start of a server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colmlm.cli.composition.bulk.errands import keying_elsewhere
from colmlm.cli.composition.encoders import REGISTERED, EncoderName, SentenceKeys
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.output import count_of
from colmlm.kb.errors import InvalidValue, KBError, KeysetMismatch, NoActiveKeyset
from colmlm.kb.progress import Telling

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from colmlm.kb.keys.calibration import Calibration
    from colmlm.kb.keys.records import AdaptedKeys, Adapting, KeysetHead, KeysetRecord
    from colmlm.kb.keys.rekey import Encoder
    from colmlm.kb.service import KnowledgeBase

DEFAULT_SAMPLE = 300
_BATCH = 32  # questions that are encoded together


def key_everything(
    runtime: Runtime,
    *,
    corpus: str | None = None,
    encoder: Encoder | None = None,
    kinds: str = "context",
    kb: KnowledgeBase | None = None,
    telling: Telling | None = None,
    replace: bool = False,
    named: Path | None = None,
) -> KeysetRecord:
    """Embed sentences, make the keys that facts lack, and calibrate a keyset whose threshold nobody has chosen.

    With `replace` it also makes true keys in place of predicted ones. Once all are true, it calibrates a threshold
    again that was calibrated for the predicted ones.
    If the runtime's settings name Ray for bulk work, its workers make the keys, with the checkpoint at `named` or else
    the registered one.
    `encoder`, `kb` and `telling` are by default the runtime's. A job gives its own `kb`, whose changes are logged for
    the job's actor, and a `telling` that reports its progress.
    """
    from colmlm.kb.lookup.likeness import fill_sentence_vectors

    encoder, kb, telling = encoder or runtime.encoder, kb or runtime.kb, telling or runtime.telling
    with telling.progress("Encoding sentences") as advance:
        fill_sentence_vectors(kb, runtime.sentence_encoder, advance)
    lacking: int | None = None
    while True:  # an edit made meanwhile may leave a fact that was passed by without its key
        with telling.progress("Keying facts") as advance:
            keyset = kb.keysets.rekey(
                encoder,
                corpus=corpus,
                on_facts=advance,
                kinds=kinds.split(","),
                replace=replace,
                elsewhere=keying_elsewhere(runtime, named),
            )
        if corpus is not None or not keyset.num_unkeyed or keyset.num_unkeyed == lacking:
            break
        lacking = keyset.num_unkeyed
    all_true = replace and keyset.calibrated and not keyset.num_predicted
    again = all_true and kb.keysets.outlived_calibration(keyset.keyset_id)
    keyset = calibrate_keyset(kb, encoder, keyset, telling, again=again)
    if keyset.state == "ready":
        number = keyset.keyset_id
        gate = "" if kb.keysets.standing(number).passed else f"colmlm keysets check {number}, then: "
        telling.note(
            f"Another keyset is active. To let this one answer: {gate}colmlm keysets activate {number}"
        )
    return keyset


def calibrate_keyset(
    kb: KnowledgeBase, encoder: Encoder, keyset: KeysetRecord, telling: Telling, *, again: bool = False
) -> KeysetRecord:
    """Calibrate a complete keyset whose threshold nobody has chosen (with `again`, any), and note the outcome."""
    if keyset.num_unkeyed and not keyset.calibrated:
        telling.note(
            f"Not calibrated: {count_of(keyset.num_unkeyed, 'fact', 'lack')} a key. "
            f"Run again: colmlm keysets fill {keyset.keyset_id}"
        )
    if keyset.num_unkeyed or keyset.num_keys < 2:
        return keyset
    if not again and kb.keysets.has_threshold(keyset.keyset_id):
        return keyset
    if _keys_are_questions(encoder):
        telling.note(
            f"Not calibrated: a fact's key is its own question. Its threshold is {keyset.threshold:.3f}."
        )
        return keyset
    try:
        measured = measure(kb, encoder, keyset, None, DEFAULT_SAMPLE, telling)
    except InvalidValue:  # a base without questions can be keyed, but not calibrated
        telling.note(
            "Not calibrated, which takes facts with questions and of two values at least. Lookups by key alone keep "
            f"the threshold {keyset.threshold:.3f}; `colmlm ask` needs none."
        )
        return keyset
    telling.note(describe_calibration(measured))
    return kb.keysets.calibrate(keyset.keyset_id, measured)


def _keys_are_questions(encoder: Encoder) -> bool:
    """Tell whether a fact's key encodes its own question, so that questions cannot calibrate a threshold."""
    return isinstance(encoder, SentenceKeys) and encoder.sentences.keys == "question"


def _load_encoder(runtime: Runtime, path: str | None, elsewhere: Path | None) -> Encoder:
    """Load the encoder at `elsewhere`, else the one that was registered under `path`, else that of the settings."""
    if elsewhere is None and path is not None and path.startswith(REGISTERED):
        return SentenceKeys.of_encoder(EncoderName(path.removeprefix(REGISTERED)))
    found = elsewhere or (Path(path) if path and Path(path).is_dir() else None)
    return runtime.encoder_at(found)


def encoder_of(runtime: Runtime, keyset_id: int, named: Path | None = None) -> Encoder:
    """Load the encoder that made a keyset's keys: from `named`, else from its registered path, else the settings'.

    Raises `KeysetMismatch` if another checkpoint is found there.
    """
    known = runtime.kb.keysets.checkpoint(keyset_id)
    encoder = _load_encoder(runtime, known.path, named)
    if encoder.checkpoint.checkpoint_id != known.checkpoint_id:
        raise KeysetMismatch(encoder.checkpoint.checkpoint_id, known.checkpoint_id, keyset_id)
    return encoder


def active_encoder_of(runtime: Runtime, keyset_id: int, named: Path | None = None) -> Encoder | None:
    """Load the active keyset's encoder; give None if that is `keyset_id`, none is active, or loading fails."""
    from colmlm.model.lm.config import BaseNotFound, CheckpointError

    try:
        active = runtime.kb.keysets.active()
        return None if active.keyset_id == keyset_id else encoder_of(runtime, active.keyset_id, named)
    except NoActiveKeyset:
        return None
    except (KBError, CheckpointError, BaseNotFound, OSError) as error:
        if named is not None:
            raise
        runtime.telling.note(
            f"The active keyset's encoder cannot be loaded, its own gate is compared with. {error}"
        )
        return None


def measure(
    kb: KnowledgeBase,
    encoder: Encoder,
    keyset: KeysetHead,
    false_accept_rate: float | None,
    sample: int,
    telling: Telling,
) -> Calibration:
    """Measure a threshold on up to `sample` questions. Raises `InvalidValue` without questions or different values."""
    from colmlm.kb.keys.activation import measure_threshold

    def encode(questions: Sequence[str]) -> NDArray[np.float32]:
        return _encode(encoder, questions, telling)

    return measure_threshold(kb, keyset, encode, sample, false_accept_rate=false_accept_rate)


def _encode(encoder: Encoder, questions: Sequence[str], telling: Telling) -> NDArray[np.float32]:
    import numpy as np

    pieces = [encoder.encode_questions([])]
    with telling.progress("Calibrating") as advance:
        for start in range(0, len(questions), _BATCH):
            pieces.append(encoder.encode_questions(list(questions[start : start + _BATCH])))
            advance(min(start + _BATCH, len(questions)), len(questions))
    return np.concatenate(pieces)


def describe_calibration(measured: Calibration) -> str:
    """Describe a measured threshold and its error rates on questions, with advice if their sum is above 0.75."""
    told = (
        f"Threshold {measured.threshold:.3f}, tried with {count_of(measured.num_questions, 'question')}. Where the "
        f"fact is here, it answers {1 - measured.false_reject_rate:.1%} of them. Where the fact is missing, it stays "
        f"silent on {1 - measured.false_accept_rate:.1%}."
    )
    if measured.false_reject_rate + measured.false_accept_rate <= 0.75:
        return told
    return (
        f"{told} No threshold is much better: many of these questions find another fact as near as their own. To have "
        "more answers or fewer wrong ones, run `colmlm keysets threshold ID --calibrate --false-accept-rate RATE`."
    )


def adapt(
    kb: KnowledgeBase, encoder: Encoder, telling: Telling, corpus: str | None, how: Adapting
) -> dict[str, Any]:
    """Fill the keyset of the encoder's checkpoint with predicted keys and calibrate it.

    Give a dict for JSON: `keyset` is its record, and `pairs` lists the figures of the predicted keys of each kind.
    """
    with telling.progress("Adapting keys") as advance:
        keyset, adapted = kb.keysets.adapt(encoder, corpus=corpus, on_facts=advance, **how)
    keyset = calibrate_keyset(kb, encoder, keyset, telling)
    keyset_id = keyset.keyset_id
    telling.note(
        f"{keyset.num_predicted:,} of {count_of(keyset.num_keys, 'key')} of keyset {keyset_id} are predicted. "
        f"To let it answer: colmlm keysets check {keyset_id}, then: colmlm keysets activate {keyset_id}. "
        f"To make its keys true, those that are asked for first: colmlm keysets fill {keyset_id}"
    )
    return {"pairs": [describe_adapted_keys(one) for one in adapted], "keyset": asdict(keyset)}


def describe_adapted_keys(adapted: AdaptedKeys) -> dict[str, Any]:
    """Give the figures of the predicted keys of one kind as a flat dict for JSON: counts, recall, seconds."""
    prediction = asdict(adapted.prediction)
    figures = {name: value for name, value in prediction.items() if name.startswith("recall")}
    return {
        "from": adapted.from_checkpoint,
        "to": adapted.to_checkpoint,
        "kind": prediction["kind"],
        "facts": adapted.facts,
        "predicted": adapted.predicted,
        "sample": prediction["sample"],
        "method": prediction["method"],
        **figures,
        "seconds": adapted.seconds,
        "seconds_true": adapted.seconds_true,
    }
