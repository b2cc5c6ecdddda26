"""Expect errors of the knowledge base and of the API by their code."""

from typing import Any

import pytest

from colmlm.kb.errors import KBError


def raises_code(*codes: str, **given: Any) -> pytest.RaisesExc[KBError]:
    """Expect an error with one of these codes; `given` goes to `pytest.raises`."""
    return pytest.raises(KBError, check=lambda error: error.code in codes, **given)


def code_of(error: KBError | None) -> str | None:
    """Give the code of an error, and None for none."""
    return None if error is None else error.code
