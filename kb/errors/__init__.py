"""The errors of the knowledge base, as one tree.

KBError
├── SettingsError
├── DatabaseUnavailable
├── StandbyAsked
├── LogHeld
├── LockHeld
├── Collided
├── StatementTooLong
├── StorageFull
├── StorageReadOnly
├── MigrationNeeded
├── NotFound
│   ├── FactNotFound
│   ├── PairNotFound
│   ├── DocumentNotFound
│   ├── ExternalIdNotFound
│   ├── GenerationNotFound
│   ├── CorpusNotFound
│   ├── KeysetNotFound
│   ├── NoSuchChange
│   ├── NoOpenBreak
│   ├── ForgetRunNotFound
│   ├── ApiKeyNotFound
│   ├── ErasureNotFound
│   ├── ErasureRequestNotFound
│   ├── JobNotFound
│   ├── UploadNotFound
│   ├── QuestionSetNotFound
│   ├── QuestionNotFound
│   ├── QuestionRunNotFound
│   ├── MissGroupNotFound
│   ├── WebhookNotFound
│   └── NothingSelected
├── Conflict
│   ├── FactDeleted
│   ├── TextsMissing
│   ├── FolderEmpty
│   ├── FolderOther
│   ├── FactNotDeleted
│   ├── FactErased
│   ├── FactSuppressed
│   ├── AnsweredAlready
│   ├── SpanTaken
│   ├── DocumentReplaced
│   ├── FactChanged
│   ├── NotUndoable
│   ├── NoActiveKeyset
│   ├── KeysetNotReady
│   ├── GateRefused
│   ├── NoFormerKeyset
│   ├── KeysetActive
│   ├── KeysetMismatch
│   ├── NotAnsweredThen
│   ├── DatabaseNotEmpty
│   ├── NewerLogNeeded
│   ├── ForgetRunState
│   ├── JobFinished
│   ├── PlanStale
│   ├── PlanTooLarge
│   ├── PlanUnderWay
│   ├── ApiKeyEnded
│   ├── RequestUnderWay
│   ├── AnswerGone
│   ├── SecondPersonNeeded
│   ├── SamePerson
│   ├── MissGroupState
│   ├── WebhookState
│   └── ErasureRequestState
├── Invalid
│   ├── InvalidValue
│   ├── InvalidSpan
│   ├── InvalidSelector
│   ├── InvalidQuery
│   ├── InvalidQuestions
│   ├── PastTooLarge
│   ├── InvalidSplice
│   ├── InvalidKeys
│   ├── InvalidRelease
│   ├── RequestDiffers
│   ├── AdminKeyNeeded
│   ├── InvalidDecoding
│   ├── PromptRefused       the model cannot read it
│   ├── ContextLengthExceeded  the prompt has more tokens than are read
│   ├── NotHeeded           a parameter means nothing where this is done
│   ├── InvalidWork
│   ├── SignerNeeded
│   ├── WebhookRefused
│   └── UploadTooLarge
├── ReaderUnavailable
├── JobGivenUp
├── SignatureRefused
├── LogRefused
├── BackupRefused
├── CalibrationRefused
├── CandidatesUnavailable
├── CandidatesRefused
├── ClusterUnavailable
├── KeysLeftElsewhere
├── DecoderBusy
├── IndexBehind
├── IndexInvariant
├── SharedSnapshotsUnavailable
└── SnapshotRefused

Each gives the cause and the remedy in one line, and carries the ids it concerns as attributes. The edges, `api` and
`cli`, choose HTTP status and exit code by the class.
"""

from __future__ import annotations

from colmlm.kb.errors.conflicts import (
    AnsweredAlready,
    AnswerGone,
    ApiKeyEnded,
    DatabaseNotEmpty,
    DocumentReplaced,
    ErasureRequestState,
    FactChanged,
    FactDeleted,
    FactErased,
    FactNotDeleted,
    FactSuppressed,
    FolderEmpty,
    FolderOther,
    ForgetRunState,
    GateRefused,
    JobFinished,
    KeysetActive,
    KeysetMismatch,
    KeysetNotReady,
    MissGroupState,
    NewerLogNeeded,
    NoActiveKeyset,
    NoFormerKeyset,
    NotAnsweredThen,
    NotUndoable,
    PlanStale,
    PlanTooLarge,
    PlanUnderWay,
    RequestUnderWay,
    SamePerson,
    SecondPersonNeeded,
    SpanTaken,
    TextsMissing,
    WebhookState,
)
from colmlm.kb.errors.failures import (
    BackupRefused,
    CalibrationRefused,
    CandidatesRefused,
    CandidatesUnavailable,
    ClusterUnavailable,
    Collided,
    DatabaseUnavailable,
    DecoderBusy,
    IndexBehind,
    IndexInvariant,
    JobGivenUp,
    KeysLeftElsewhere,
    LockHeld,
    LogHeld,
    LogRefused,
    MigrationNeeded,
    ReaderUnavailable,
    SettingsError,
    SharedSnapshotsUnavailable,
    SignatureRefused,
    SnapshotRefused,
    StandbyAsked,
    StatementTooLong,
    StorageFull,
    StorageReadOnly,
)
from colmlm.kb.errors.invalid import (
    AdminKeyNeeded,
    ContextLengthExceeded,
    InvalidDecoding,
    InvalidKeys,
    InvalidQuery,
    InvalidQuestions,
    InvalidRelease,
    InvalidSelector,
    InvalidSpan,
    InvalidSplice,
    InvalidValue,
    InvalidWork,
    NotHeeded,
    PastTooLarge,
    PromptRefused,
    RequestDiffers,
    SignerNeeded,
    UploadTooLarge,
    WebhookRefused,
)
from colmlm.kb.errors.missing import (
    ApiKeyNotFound,
    CorpusNotFound,
    DocumentNotFound,
    ErasureNotFound,
    ErasureRequestNotFound,
    ExternalIdNotFound,
    FactNotFound,
    ForgetRunNotFound,
    GenerationNotFound,
    JobNotFound,
    KeysetNotFound,
    MissGroupNotFound,
    NoOpenBreak,
    NoSuchChange,
    NothingSelected,
    PairNotFound,
    QuestionNotFound,
    QuestionRunNotFound,
    QuestionSetNotFound,
    UploadNotFound,
    WebhookNotFound,
)
from colmlm.kb.errors.root import Conflict, Invalid, KBError, NotFound

__all__ = [
    "AdminKeyNeeded",
    "AnswerGone",
    "AnsweredAlready",
    "ApiKeyEnded",
    "ApiKeyNotFound",
    "BackupRefused",
    "CalibrationRefused",
    "CandidatesRefused",
    "CandidatesUnavailable",
    "ClusterUnavailable",
    "Collided",
    "Conflict",
    "ContextLengthExceeded",
    "CorpusNotFound",
    "DatabaseNotEmpty",
    "DatabaseUnavailable",
    "DecoderBusy",
    "DocumentNotFound",
    "DocumentReplaced",
    "ErasureNotFound",
    "ErasureRequestNotFound",
    "ErasureRequestState",
    "ExternalIdNotFound",
    "FactChanged",
    "FactDeleted",
    "FactErased",
    "FactNotDeleted",
    "FactNotFound",
    "FactSuppressed",
    "FolderEmpty",
    "FolderOther",
    "ForgetRunNotFound",
    "ForgetRunState",
    "GateRefused",
    "GenerationNotFound",
    "IndexBehind",
    "IndexInvariant",
    "Invalid",
    "InvalidDecoding",
    "InvalidKeys",
    "InvalidQuery",
    "InvalidQuestions",
    "InvalidRelease",
    "InvalidSelector",
    "InvalidSpan",
    "InvalidSplice",
    "InvalidValue",
    "InvalidWork",
    "JobFinished",
    "JobGivenUp",
    "JobNotFound",
    "KBError",
    "KeysLeftElsewhere",
    "KeysetActive",
    "KeysetMismatch",
    "KeysetNotFound",
    "KeysetNotReady",
    "LockHeld",
    "LogHeld",
    "LogRefused",
    "MigrationNeeded",
    "MissGroupNotFound",
    "MissGroupState",
    "NewerLogNeeded",
    "NoActiveKeyset",
    "NoFormerKeyset",
    "NoOpenBreak",
    "NoSuchChange",
    "NotAnsweredThen",
    "NotFound",
    "NotHeeded",
    "NotUndoable",
    "NothingSelected",
    "PairNotFound",
    "PastTooLarge",
    "PlanStale",
    "PlanTooLarge",
    "PlanUnderWay",
    "PromptRefused",
    "QuestionNotFound",
    "QuestionRunNotFound",
    "QuestionSetNotFound",
    "ReaderUnavailable",
    "RequestDiffers",
    "RequestUnderWay",
    "SamePerson",
    "SecondPersonNeeded",
    "SettingsError",
    "SharedSnapshotsUnavailable",
    "SignatureRefused",
    "SignerNeeded",
    "SnapshotRefused",
    "SpanTaken",
    "StandbyAsked",
    "StatementTooLong",
    "StorageFull",
    "StorageReadOnly",
    "TextsMissing",
    "UploadNotFound",
    "UploadTooLarge",
    "WebhookNotFound",
    "WebhookRefused",
    "WebhookState",
]
