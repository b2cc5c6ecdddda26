"""Makes the keys of the demo corpus that come with the program: `python -m colmlm.lab.demo_keys`, some minutes.

It keys and calibrates the corpus in a base of its own, as the first start does, and keeps every key made meanwhile.
"""

from __future__ import annotations

from pathlib import Path

from colmlm.cli.composition.keying import key_everything
from colmlm.cli.composition.known_keys import Remembering
from colmlm.cli.composition.model_encoder import ModelEncoder
from colmlm.cli.composition.runtime import Runtime, released_checkpoint
from colmlm.kb.corpus.format import read_annotated
from colmlm.kb.demo import DEMO_CORPUS, DEMO_KEYS
from colmlm.lab.bench.machine import ACTOR, REASON, empty_base


def main(path: Path = DEMO_KEYS) -> None:
    """Writes the keys by the released checkpoint."""
    from colmlm.model.lm.checkpoint import load

    runtime = Runtime.from_environment()
    encoder = Remembering(ModelEncoder(load(released_checkpoint(), runtime.settings.home / "models")))
    with empty_base() as kb:
        kb.corpora.ingest(read_annotated(DEMO_CORPUS), "demo", actor=ACTOR, reason=REASON)
        key_everything(runtime, encoder=encoder, kb=kb)
    encoder.write(path)
    path.chmod(0o644)


if __name__ == "__main__":
    main()
