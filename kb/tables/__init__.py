"""The tables as the migrations build them; nothing is created from here, and `alembic check` compares the two.

Liveness is one row: a fact is live while it has a `fact_version` with `to_seq IS NULL`. Delete closes that
row and restore opens the next, so "what was true at change n" is one range test and never a join with the log.
"""

from __future__ import annotations

from colmlm.kb.tables.declarative import TableRow
from colmlm.kb.tables.facts import (
    IS_SAID,
    ChangeRow,
    CorpusReviewRow,
    DocumentRow,
    ErasedTextRow,
    FactPastRow,
    FactRow,
    FactVersionRow,
    ForgetRunRow,
    SecretRow,
    SentenceRow,
    SuppressionRow,
    TombstoneRow,
    forget_policies,
    forget_states,
    review_states,
)
from colmlm.kb.tables.keys import (
    KEY_IDS,
    AttributionRow,
    CheckpointRow,
    FactKeyRow,
    GenerationRow,
    KeysetRow,
    answer_modes,
    key_kinds,
    keyset_states,
)
from colmlm.kb.tables.questions import (
    QuestionOutcomeRow,
    QuestionRow,
    QuestionRunRow,
    QuestionSetRow,
    question_outcomes,
    ways_to_ask,
)
from colmlm.kb.tables.misses import FeedbackRow, MissGroupRow, MissRow, miss_states, thumbs
from colmlm.kb.tables.service import (
    AnswerCalibrationRow,
    ApiKeyRow,
    BrowserSessionRow,
    DenialRow,
    ErasureRequestRow,
    IdempotencyRow,
    JobRow,
    erasure_states,
    job_states,
    roles,
)

__all__ = [
    "IS_SAID",
    "KEY_IDS",
    "AnswerCalibrationRow",
    "ApiKeyRow",
    "AttributionRow",
    "BrowserSessionRow",
    "ChangeRow",
    "CheckpointRow",
    "CorpusReviewRow",
    "DenialRow",
    "DocumentRow",
    "ErasedTextRow",
    "ErasureRequestRow",
    "FactKeyRow",
    "FactPastRow",
    "FactRow",
    "FactVersionRow",
    "FeedbackRow",
    "ForgetRunRow",
    "GenerationRow",
    "IdempotencyRow",
    "JobRow",
    "KeysetRow",
    "QuestionOutcomeRow",
    "QuestionRow",
    "QuestionRunRow",
    "QuestionSetRow",
    "MissGroupRow",
    "MissRow",
    "SecretRow",
    "SentenceRow",
    "SuppressionRow",
    "TableRow",
    "TombstoneRow",
    "answer_modes",
    "erasure_states",
    "forget_policies",
    "forget_states",
    "job_states",
    "key_kinds",
    "keyset_states",
    "miss_states",
    "question_outcomes",
    "review_states",
    "roles",
    "thumbs",
    "ways_to_ask",
]
