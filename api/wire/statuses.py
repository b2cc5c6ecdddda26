"""The HTTP status of each error of the knowledge base."""

from __future__ import annotations

from colmlm.kb import errors
from colmlm.kb.errors import KBError

_STATUSES: dict[type[KBError], int] = {
    errors.ContextLengthExceeded: 400,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.UploadTooLarge: 413,
    errors.BackupRefused: 422,
    errors.CalibrationRefused: 422,
    errors.Invalid: 422,
    errors.LogRefused: 422,
    errors.SignatureRefused: 422,
    errors.KBError: 500,
    errors.CandidatesRefused: 503,
    errors.CandidatesUnavailable: 503,
    errors.ClusterUnavailable: 503,
    errors.KeysLeftElsewhere: 503,
    errors.SharedSnapshotsUnavailable: 503,
    errors.Collided: 503,
    errors.DatabaseUnavailable: 503,
    errors.DecoderBusy: 503,
    errors.IndexBehind: 503,
    errors.LockHeld: 503,
    errors.LogHeld: 503,
    errors.MigrationNeeded: 503,
    errors.StandbyAsked: 503,
    errors.StatementTooLong: 503,
    errors.StorageFull: 507,
    errors.StorageReadOnly: 507,
}


def status_of(error: KBError) -> int:
    """Gives the status of the nearest class of the error that has one; an error of the API itself names its own."""
    own: int | None = getattr(error, "status", None)
    return own or next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)
