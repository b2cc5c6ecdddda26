"""Checkpoints on the Hugging Face hub: exported ones go there, and come back checked.

The address and the token are those of the hub's own programs (``HF_ENDPOINT``, ``HF_TOKEN`` or ``hf auth login``).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from colmlm.model.lm.checkpoint import config_of
from colmlm.model.lm.config import CONFIG_FILE, CheckpointError

# What an export has; nothing else is fetched, above all no pickle and no code.
FETCHED = ("*.json", "*.safetensors", "*.jinja", "README.md", "LICENSE")
MOST_SAID = 200  # characters
_FAILURES = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError)


@dataclass(frozen=True, slots=True)
class HubCommit:
    """What was pushed: the address of the commit, and its id."""

    url: str
    commit: str


def push(folder: Path, repo: str, *, private: bool) -> HubCommit:
    """Pushes an exported checkpoint as one commit, and makes the repository where there is none.

    Raises `CheckpointError` where the hub refuses, or is not reached.
    """
    hub = HfApi()
    try:
        hub.create_repo(repo, private=private, exist_ok=True)
        done = hub.upload_folder(
            repo_id=repo, folder_path=folder, commit_message=f"{config_of(folder).name}, exported by colmlm"
        )
    except _FAILURES as error:
        raise CheckpointError(
            f"{repo}: the hub did not take it ({_said(error)}); "
            "it wants a token that may write, from HF_TOKEN or `hf auth login`"
        ) from error
    return HubCommit(done.commit_url, done.oid)


def pull(repo: str, target: Path, *, revision: str | None = None) -> None:
    """Fetches a checkpoint into a new folder, and checks its files against their digests.

    Raises `CheckpointError` where it cannot be fetched or is no checkpoint; then nothing is left in the folder.
    """
    try:
        snapshot_download(repo, revision=revision, local_dir=target, allow_patterns=list(FETCHED))
        shutil.rmtree(target / ".cache", ignore_errors=True)  # the hub's own notes
        _require_checkpoint(repo, target)
    except _FAILURES as error:
        shutil.rmtree(target, ignore_errors=True)
        raise CheckpointError(
            f"{repo}: cannot be fetched ({_said(error)}); a private one takes a token, from HF_TOKEN or `hf auth login`"
        ) from error
    except CheckpointError:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _require_checkpoint(repo: str, target: Path) -> None:
    if (target / CONFIG_FILE).is_file():
        config_of(target)
    elif not (target / "config.json").is_file():
        raise CheckpointError(
            f"{repo}: neither {CONFIG_FILE} nor config.json is there, so it is no checkpoint"
        )


def _said(error: Exception) -> str:
    """Gives what the hub said in one line."""
    return " ".join(str(error).split())[:MOST_SAID]
