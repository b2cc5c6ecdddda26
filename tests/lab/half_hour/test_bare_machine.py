"""The steps need nothing that a bare machine with torch and transformers does not have, but what travels along."""

from __future__ import annotations

import subprocess

import pytest

from colmlm.kb import interpreter

MISSING = (
    "alembic bm25s cryptography faiss gguf litestar msgspec procrastinate psycopg psycopg_pool sqlalchemy spacy"
    " structlog"
)
TRAVELS = "bm25s"
PROGRAM = """
import sys

class Bare:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(name)

missing = set(sys.argv[1].split())
sys.meta_path.insert(0, Bare)
import colmlm.lab.half_hour.__main__
assert not {"torch", "transformers"} & set(sys.modules), "parcels are received without them"
import colmlm.lab.half_hour.measuring
import colmlm.lab.half_hour.writing
missing.discard(sys.argv[2])
import colmlm.lab.half_hour.training
"""


@pytest.mark.slow(reason="runs an experiment to its end")
def test_the_steps_import_nothing_that_is_not_there():
    ran = subprocess.run(
        interpreter.command("-c", PROGRAM, MISSING, TRAVELS), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
