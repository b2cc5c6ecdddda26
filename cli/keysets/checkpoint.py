"""`colmlm checkpoint`: describes a checkpoint, exports it for other programs, and makes a small one to release."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, DryRun, NewDirectory, examples, require_empty, wants_json
from colmlm.cli.output import count_of, print_json, print_table, say, say_values
from colmlm.kb.corpus.training_record import RECORD_FILE, find_record
from colmlm.kb.errors import KBError


class ExportForm(StrEnum):
    """The programs for which an export is made."""

    TRANSFORMERS = "transformers"
    GGUF = "gguf"


class WeightType(StrEnum):
    """The type of exported weights."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


app = typer.Typer(help="Describe and export checkpoints.", epilog=examples("colmlm checkpoint info"))


@app.command(
    epilog=examples("colmlm checkpoint info", "colmlm checkpoint info --checkpoint runs/mine --json")
)
def info(checkpoint: CheckpointPath = None) -> None:
    """Show which checkpoint this is, the dimension of its keys and how it was trained."""
    from colmlm.cli.composition.encoders import describe

    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        with suppress(KBError):  # without a knowledge base no keyset is active
            runtime.open()
        loaded = runtime.checkpoint
    described = describe(loaded)
    found = None if loaded.path is None else find_record(loaded.path)
    record = None if found is None else found.record
    unknown = "it has no record" if found is None else found.fault
    if wants_json():
        trained = {
            "documents": record and record.count,
            "bases": record and record.bases,
            "unknown": unknown or None,
        }
        about = {n: getattr(described, n) for n in described.__slots__}
        print_json({**about, "record": trained, "training": loaded.config.training})
        return
    say(
        f"{described.name}: checkpoint {described.checkpoint_id}, keys of {count_of(described.dim, 'number')}"
    )
    say(f"in {described.path}, over {loaded.config.base or 'no base'}, {loaded.config.kind}")
    if record is not None:
        say(f"trained on {count_of(record.count, 'document')}, by the record in {RECORD_FILE}")
    if unknown:
        say(f"not known of its training: {unknown}")
    say_values(loaded.config.training)


@app.command(
    epilog=examples(
        "colmlm checkpoint export exported/",
        "colmlm checkpoint export exported/ --dtype fp32",
        "colmlm checkpoint export exported/ --form gguf",
    )
)
def export(
    target: NewDirectory,
    form: Annotated[
        ExportForm, typer.Option("--form", help="What transformers loads, or one file for llama.cpp.")
    ] = ExportForm.TRANSFORMERS,
    dtype: Annotated[
        WeightType | None,
        typer.Option("--dtype", help="Of the weights. Default: as this machine computes with them."),
    ] = None,
    checkpoint: CheckpointPath = None,
) -> None:
    """Write the checkpoint as a plain model for other programs, with the three added tokens at the end."""
    require_empty(target)
    from colmlm.model.lm.export import export_gguf, export_plain

    write = export_gguf if form is ExportForm.GGUF else export_plain
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        write(runtime.checkpoint, target, dtype=dtype.value if dtype else None)
        exported = {"path": str(target.absolute()), "checkpoint_id": runtime.checkpoint.checkpoint_id}
    print_json(exported) if wants_json() else say(f"Exported to {exported['path']}")


@app.command(
    epilog=examples(
        "colmlm checkpoint push me/mine --checkpoint runs/mine --dry-run",
        "colmlm checkpoint push me/mine --public",
    )
)
def push(
    repo: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="A repository of the hub; made if it is new.")
    ],
    public: Annotated[
        bool, typer.Option("--public", help="Let everybody read a repository that is new.")
    ] = False,
    dtype: Annotated[WeightType | None, typer.Option("--dtype", help="As for export.")] = None,
    checkpoint: CheckpointPath = None,
    dry_run: DryRun = False,
) -> None:
    """Export the checkpoint and push it to the Hugging Face hub, as one commit.

    HF_TOKEN is the token, HF_ENDPOINT another hub.
    """
    from colmlm.model.lm.export import export_plain, push_checkpoint

    with (
        TemporaryDirectory(prefix="colmlm-push-") as folder,
        Runtime.from_environment(checkpoint=checkpoint) as runtime,
    ):
        target = Path(folder)
        export_plain(runtime.checkpoint, target, dtype=dtype.value if dtype else None)
        files = {file.name: file.stat().st_size for file in sorted(target.iterdir())}
        told = {"repo": repo, "checkpoint_id": runtime.checkpoint.checkpoint_id, "files": files}
        done = None if dry_run else push_checkpoint(target, repo, private=not public)
    if wants_json():
        print_json({**told, "dry_run": dry_run, "url": done and done.url, "commit": done and done.commit})
        return
    print_table(("file", "bytes"), [(name, f"{size:,}") for name, size in files.items()])
    say(f"Nothing was pushed to {repo}." if done is None else f"Pushed: {done.url}")


@app.command(
    epilog=examples(
        "colmlm checkpoint pull me/mine mine/", "colmlm checkpoint pull me/mine mine/ --revision v2"
    )
)
def pull(
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="A repository of the hub.")],
    target: NewDirectory,
    revision: Annotated[
        str | None, typer.Option("--revision", help="A branch, tag or commit. Default: main.")
    ] = None,
) -> None:
    """Fetch a checkpoint from the Hugging Face hub, and check its files. No code and no pickle is fetched."""
    require_empty(target)
    from colmlm.model.lm.export import pull_checkpoint

    pull_checkpoint(repo, target, revision=revision)
    pulled = {
        "path": str(target.absolute()),
        "repo": repo,
        "files": sorted(file.name for file in target.iterdir()),
    }
    print_json(pulled) if wants_json() else say(
        f"Pulled to {pulled['path']}. Next: colmlm keysets fill --checkpoint {target}"
    )
