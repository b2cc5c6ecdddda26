"""The gate of a keyset: the measurements that it must pass before it may answer, each with a figure and a limit.

- `index recall`: the share of the exact nearest keys that the search of a lookup finds; the queries are questions, or
  stored keys with a little noise where facts have no questions. Where it is too low, lookups are made to read as many
  more lists of the index as these queries need, and it is measured again.
- `index ids wrong`: keys in the index that no live fact or tombstone has, and keys that it lacks.
- `facts lost`: live facts without a key, which no lookup could find.
- `tombstones ignored`: forgotten facts whose key no longer makes a lookup abstain.
- `question recall`, `question MRR`: how well questions find a fact of the right value, against the active keyset.
- `share answered`: the share of the same questions that find any fact at or above the keyset's threshold, against the
  active keyset and its own threshold. The others get no match.
- `agreement`: the share of the splices in stored outputs, of values that are still live, that would get the same value
  again. The prefix is encoded as plain text, without the tags that the decoder had around earlier values.
- `recall kept`: where keys are predicted, the share of true keys' recall that their map kept when it was fitted.
- `threshold calibrated`: the threshold was measured for these keys; another keyset's does not fit them.
- `questions right`, `questions wrong`: what kept questions get that the limits name, asked as with this keyset active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.errors import InvalidValue, KeysetMismatch, count_of, refusals
from colmlm.kb.keys import activation, keysets
from colmlm.kb.keys.keysets import Vectors
from colmlm.kb.keys.records import GateLimits, KeysetHead, KeysetRecord
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.questions.asking import AskedSet, ByAnswers, ask_set
from colmlm.kb.switching.measures import (
    Answers,
    Sample,
    Scores,
    ask_sample,
    draw_sample,
    index_recall,
    noisy_keys,
    read_more_lists,
    tombstones_passed_over,
)

OnTexts = Callable[[int, int], None]

_ENCODED_AT_ONCE = 32
_BINS = 40


@dataclass(frozen=True, slots=True)
class Criterion:
    """One measurement of a gate. `figure` is None where nothing could be measured; `note` gives a reason or details."""

    name: str
    passed: bool
    figure: float | None
    limit: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class ScoreDrift:
    """The best score of each question with a fact of the right value (`genuine`), and with any other (`impostor`).

    The fields `active_*` are the same in the active keyset.
    """

    genuine: Scores
    impostor: Scores
    threshold: float
    active_genuine: Scores | None = None
    active_impostor: Scores | None = None
    active_threshold: float | None = None

    @property
    def histograms(self) -> list[dict[str, Any]]:
        """Histograms of the scores on one scale, of the checked keyset and, where that was measured, the active one."""
        asked = [("checked keyset", self.genuine, self.impostor, self.threshold)]
        if self.active_genuine is not None and self.active_impostor is not None:
            asked.append(
                ("active keyset", self.active_genuine, self.active_impostor, self.active_threshold or 0.0)
            )
        finite = [scores[np.isfinite(scores)] for _, *both, _ in asked for scores in both]
        every = np.concatenate(finite)
        if not len(every):
            return []
        low, high = float(every.min()), float(max(every.max(), every.min() + 0.01))
        counts = [np.histogram(scores, bins=_BINS, range=(low, high))[0].tolist() for scores in finite]
        return [
            {
                "title": title,
                "low": low,
                "high": high,
                "threshold": threshold,
                "genuine": right,
                "impostor": wrong,
            }
            for (title, _, _, threshold), right, wrong in zip(asked, counts[::2], counts[1::2], strict=True)
        ]

    @property
    def means(self) -> dict[str, float]:
        """The mean of the finite scores of each field that has some, by the field's name."""
        named = asdict(self)
        finite = {
            name: scores[np.isfinite(scores)]
            for name, scores in named.items()
            if isinstance(scores, np.ndarray)
        }
        return {name: float(scores.mean()) for name, scores in finite.items() if len(scores)}


@dataclass(frozen=True, slots=True)
class GateReport:
    """The result of a gate: whether the keyset passed, as of change `seq`, and each criterion. `questions` is the set
    that was asked, if one was, and `eased_limits` lists the limits that were easier to keep than the usual ones.
    """

    keyset_id: int
    active_keyset_id: int | None
    passed: bool
    seq: int
    at: datetime
    criteria: tuple[Criterion, ...]
    num_questions: int
    num_contexts: int
    mean_scores: dict[str, float]
    questions: str | None
    eased_limits: tuple[str, ...]
    drift: ScoreDrift = field(repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Give the report as it is stored with the keyset, for JSON."""
        kept = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "drift"}
        criteria = [asdict(criterion) for criterion in self.criteria]
        return kept | {"at": self.at.isoformat(), "criteria": criteria, "histograms": self.drift.histograms}

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(criterion.name for criterion in self.criteria if not criterion.passed)


def check_keyset(
    kb: SearchableStore,
    keyset_id: int,
    encoder: Encoder,
    limits: GateLimits | None = None,
    *,
    active_encoder: Encoder | None = None,
    on_texts: OnTexts | None = None,
    reader: Callable[[], JudgedReader] | None = None,
) -> GateReport:
    """Measure a ready or active keyset with its encoder, and store the report with the keyset.

    `active_encoder` asks the active keyset the same questions; without it the figures of the active keyset's own gate
    are used. `on_texts` is called with the number of texts encoded, and of all. The `reader` reads the kept questions
    that the limits name, which are asked first. Raises `KeysetMismatch` where an encoder is of another checkpoint.
    """
    limits = limits or GateLimits()
    with kb.sessions() as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        keyset = activation.count_keys(session, keyset_id)
        if keyset.state not in ("ready", "active"):
            raise refusals.keyset_not_ready(keyset_id, keyset.state)
        sample = draw_sample(session, kb.settings, keyset, limits.sample)
    _require_same(encoder, sample.keyset)
    if active_encoder is not None and sample.active is not None:
        _require_same(active_encoder, sample.active)
    progress = _Progress(sample, active_encoder, on_texts)
    kept = None
    if limits.questions is not None:
        kept = ask_kept_questions(kb, keyset_id, encoder, limits, reader, progress.note_asked)
    report = _report(sample, encoder, active_encoder, limits, progress, kept)
    with kb.sessions.begin() as session:
        if sample.candidates.fit != sample.keyset.index_fit:
            keysets.note_fit(session, keyset_id, sample.candidates.fit)
        keysets.note_gate(session, keyset_id, report.to_json())
    return report


def _require_same(encoder: Encoder, keyset: KeysetHead) -> None:
    if encoder.checkpoint.checkpoint_id != keyset.checkpoint_id:
        raise KeysetMismatch(encoder.checkpoint.checkpoint_id, keyset.checkpoint_id, keyset.keyset_id)


class _Progress:
    """Counts the texts that both encoders have encoded."""

    def __init__(self, sample: Sample, active_encoder: Encoder | None, on_texts: OnTexts | None) -> None:
        both = 2 if active_encoder is not None and sample.active is not None else 1
        self.total = both * len(sample.questions.texts) + len(sample.contexts.texts)
        self.done, self._on_texts = 0, on_texts

    def note_asked(self, done: int, total: int) -> None:
        if self._on_texts is not None:
            self._on_texts(done, total)

    def encode(self, encode: Callable[[Sequence[str]], Vectors], texts: Sequence[str]) -> Vectors:
        pieces = [encode([])]
        for start in range(0, len(texts), _ENCODED_AT_ONCE):
            pieces.append(encode(texts[start : start + _ENCODED_AT_ONCE]))
            self.done += len(pieces[-1])
            if self._on_texts is not None:
                self._on_texts(self.done, self.total)
        return np.concatenate(pieces)


def _report(
    sample: Sample,
    encoder: Encoder,
    active_encoder: Encoder | None,
    limits: GateLimits,
    progress: _Progress,
    kept: AskedSet | None,
) -> GateReport:
    questions_BD = progress.encode(encoder.encode_questions, sample.questions.texts)
    contexts_CD = progress.encode(encoder.encode_contexts, sample.contexts.texts)
    ours = ask_sample(questions_BD, sample.questions, sample.keys)
    theirs = None
    if active_encoder is not None and sample.active_keys is not None:
        asked_BD = progress.encode(active_encoder.encode_questions, sample.questions.texts)
        theirs = ask_sample(asked_BD, sample.questions, sample.active_keys)
    criteria = (
        *_index_recall(sample, questions_BD, limits),
        _index_ids(sample),
        _at_most("facts lost", len(sample.lost), limits.max_facts_lost, _list_facts(sample.lost)),
        _tombstones(sample),
        *_questions(sample, ours, theirs, limits),
        _agreement_with_outputs(sample, contexts_CD, limits),
        *(
            _at_least(name, kept, limits.min_recall_kept, note)
            for name, kept, note in recall_kept(sample.keyset)
        ),
        _threshold_criterion(sample),
        *_question_criteria(kept, limits),
    )
    drift = _drift(sample, ours, theirs)
    return GateReport(
        keyset_id=sample.keyset.keyset_id,
        active_keyset_id=sample.active.keyset_id if sample.active else None,
        passed=all(criterion.passed for criterion in criteria),
        seq=sample.seq,
        at=datetime.now(UTC),
        criteria=criteria,
        num_questions=len(sample.questions.texts),
        num_contexts=len(sample.contexts.texts),
        mean_scores=drift.means,
        questions=limits.questions,
        eased_limits=limits.eased_limits,
        drift=drift,
    )


def _at_least(name: str, figure: float | None, limit: float, note: str = "") -> Criterion:
    return Criterion(name, figure is None or figure >= limit, figure, limit, note)


def _at_most(name: str, figure: float, limit: float, note: str = "") -> Criterion:
    return Criterion(name, figure <= limit, float(figure), float(limit), note)


def _list_facts(fact_ids: Sequence[int]) -> str:
    more = f" and {len(fact_ids) - 5} more" if len(fact_ids) > 5 else ""
    return f"facts {', '.join(map(str, fact_ids[:5]))}{more}" if fact_ids else ""


def _index_recall(sample: Sample, questions_BD: Vectors, limits: GateLimits) -> tuple[Criterion, ...]:
    queries, note = questions_BD, ""
    if not len(queries):
        queries, note = noisy_keys(sample.keys, limits.sample), "stored keys with noise"
    read_more_lists(sample.candidates, sample.keys, queries, limits.min_recall_at_1)
    figures: list[float | None] = [index_recall(sample.candidates, sample.keys, queries, k) for k in (1, 10)]
    if (fit := sample.candidates.fit).lists:
        lists = f"{fit.lists_read} of {count_of(fit.lists, 'list')} read"
        note = f"{note}; {lists}" if note else lists
    if not len(queries):
        figures, note = [None, None], "the keyset has no keys"
    return (
        _at_least("index recall@1", figures[0], limits.min_recall_at_1, note),
        _at_least("index recall@10", figures[1], limits.min_recall_at_10, note),
    )


def _index_ids(sample: Sample) -> Criterion:
    wrong = np.setxor1d(sample.candidates.ids, sample.keys.ids)
    note = f"keys {', '.join(map(str, wrong[:5].tolist()))}" if len(wrong) else ""
    return _at_most("index ids wrong", len(wrong), 0, note)


def _tombstones(sample: Sample) -> Criterion:
    unkeyed = sample.tombstones_unkeyed
    ignored = tombstones_passed_over(sample.candidates, sample.keys) + unkeyed
    return _at_most("tombstones ignored", ignored, 0, f"{unkeyed} have no key" if unkeyed else "")


def _questions(
    sample: Sample, ours: Answers, theirs: Answers | None, limits: GateLimits
) -> tuple[Criterion, ...]:
    names = ("question recall@1", "question MRR", "share answered")
    if not sample.questions.texts:
        return tuple(_at_least(name, None, 0.0, "no keyed fact has a question") for name in names)
    figures = _figures_of(ours, sample.keyset)
    if sample.active is None:
        return tuple(
            _at_least(name, figure, 0.0, "no other keyset is active to compare with")
            for name, figure in zip(names, figures, strict=True)
        )
    before = _active_gate_figures(sample, names) if theirs is None else _figures_of(theirs, sample.active)
    if before is None:
        note = (
            f"keyset {sample.active.keyset_id} was not measured; its encoder is needed, or a gate of its own"
        )
        return tuple(
            Criterion(name, False, figure, 1.0, note) for name, figure in zip(names, figures, strict=True)
        )
    return tuple(
        _at_least(name, figure, max(0.0, active - limits.max_question_loss), f"active keyset: {active:.3f}")
        for name, figure, active in zip(names, figures, before, strict=True)
    )


def _figures_of(answers: Answers, keyset: KeysetHead) -> tuple[float, ...]:
    return answers.recall_at_1, answers.mrr, answers.share_answered(keyset.threshold)


def _active_gate_figures(sample: Sample, names: Sequence[str]) -> tuple[float, ...] | None:
    """Give the figures of these names in the report of the active keyset's own gate; None where one is missing."""
    noted = {c["name"]: c["figure"] for c in (sample.active_gate or {}).get("criteria", ())}
    figures = tuple(figure for name in names if (figure := noted.get(name)) is not None)
    return figures if len(figures) == len(names) else None


def _agreement_with_outputs(sample: Sample, contexts_CD: Vectors, limits: GateLimits) -> Criterion:
    if not sample.contexts.texts:
        return _at_least("agreement@1", None, limits.min_agreement, "no output with lookups by key")
    answers = ask_sample(contexts_CD, sample.contexts, sample.keys)
    return _at_least("agreement@1", answers.recall_at_1, limits.min_agreement)


def _threshold_criterion(sample: Sample) -> Criterion:
    if not sample.has_questions:
        return _at_least("threshold calibrated", None, 1.0, "no fact has a question to calibrate with")
    remedy = (
        "" if sample.keyset.calibrated else f"colmlm keysets threshold --calibrate {sample.keyset.keyset_id}"
    )
    return _at_least("threshold calibrated", float(sample.keyset.calibrated), 1.0, remedy)


def _question_criteria(kept: AskedSet | None, limits: GateLimits) -> tuple[Criterion, ...]:
    """Give the criteria of kept questions; none where no set was asked."""
    if kept is None:
        return ()
    note = f"{count_of(len(kept.items), 'question')} of {limits.questions}"
    return (
        _at_least("questions right", kept.share("right"), limits.share_right, note),
        _at_most("questions wrong", kept.share("wrong"), limits.share_wrong, note),
    )


def _drift(sample: Sample, ours: Answers, theirs: Answers | None) -> ScoreDrift:
    if theirs is None or sample.active is None:
        return ScoreDrift(ours.genuine, ours.impostor, sample.keyset.threshold)
    return ScoreDrift(
        ours.genuine,
        ours.impostor,
        sample.keyset.threshold,
        theirs.genuine,
        theirs.impostor,
        sample.active.threshold,
    )


# What predicted keys of a keyset cost, as its gate says it.


def recall_kept(keyset: KeysetRecord) -> Iterator[tuple[str, float | None, str]]:
    """Yield for each kind of predicted keys the criterion's name, the share of recall kept, and a note."""
    for one in keyset.predictions:
        yield (
            f"recall kept by predicted {one.kind} keys",
            one.kept,
            f"{one.left:,} of {count_of(keyset.num_keys, 'key')} are predicted; "
            f"recall@1 of a sample of {count_of(one.sample, 'fact')}: {_figure(one.recall_at_1)}, by true keys "
            f"{_figure(one.recall_at_1_true)}, by keyset {one.from_keyset_id}'s as they are "
            f"{_figure(one.recall_at_1_old)}",
        )


def _figure(share: float | None) -> str:
    return "not measured" if share is None else f"{share:.3f}"


# Asks a set of kept questions in a keyset that is to be measured, as the base would with that keyset active.


def ask_kept_questions(
    kb: SearchableStore,
    keyset_id: int,
    encoder: Encoder,
    limits: GateLimits,
    reader: Callable[[], JudgedReader] | None,
    on_asked: Callable[[int, int], None],
) -> AskedSet:
    """Ask the set that the limits name. Raises `QuestionSetNotFound`, or `InvalidValue` without limit or reader."""
    if limits.questions is None or (limits.min_right is None and limits.max_wrong is None):
        raise InvalidValue(
            "gate",
            "a set of questions needs a limit, and a limit needs a set. Pass both --question-set and --min-right",
        )
    if reader is None:
        raise InvalidValue(
            "gate",
            "its questions need a reader, but this server has none. Set COLMLM_READER, or leave the questions out",
        )
    answering = Answering(kb, Questions(kb, [encoder], keyset_id), reader())
    return ask_set(
        kb, limits.questions, ByAnswers(answering), lambda done, total: on_asked(done, total or done)
    )
