"""What Ray's driver reads."""

from __future__ import annotations

import os
import subprocess

from colmlm.kb import interpreter

READING = """
import sys
from colmlm.cli.composition.bulk.driver import rounds
print(ascii(list(rounds(sys.stdin.buffer))))
"""


def test_rows_are_utf_8_whatever_the_locale_says() -> None:
    ran = subprocess.run(
        interpreter.command("-c", READING),
        input='"café"\n"x"\n\n"東"\n\n'.encode(),
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert ran.stdout.decode().strip() == ascii([['"café"', '"x"'], ['"東"']])
