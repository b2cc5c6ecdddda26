"""Tests work with the real parts: none replaces what the program does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.places import ROOT

PATCHES = {"setattr", "delattr", "setitem", "delitem"}
OURS = {"colmlm", "tests"}

# The files that replace something of ours all the same, each with the reason why no real part can take its place.
JUSTIFIED = {
    "tests/lab/faults/sabotage.py": "it breaks the program on purpose, and the laboratory has to find each fault",
}


def test_no_test_replaces_anything_of_ours() -> None:
    found = [
        f"{name}:{line}"
        for name in (str(file.relative_to(ROOT)) for file in sorted((ROOT / "tests").rglob("*.py")))
        if name not in JUSTIFIED
        for line in replaced(parsed(name))
    ]
    assert found == []


def test_a_file_that_may_replace_something_does() -> None:
    assert all(list(replaced(parsed(name))) for name in JUSTIFIED)


def test_what_is_replaced_is_found() -> None:
    ours = """
import sys, unittest.mock
import colmlm.kb.service as service
from colmlm.kb.lookup import replica
from tests.fakes import FakeEncoder
monkeypatch.setattr("colmlm.kb.lookup.replica.rebuild", None)
monkeypatch.setattr(replica, "rebuild", None)
monkeypatch.setattr(replica.time, "monotonic", None)
monkeypatch.setattr(type(replica.Replica), "catch_up", None)
patch.setattr(opened.searcher, "catch_up", None)
monkeypatch.setitem(replica.KINDS, "one", None)
monkeypatch.setattr(FakeEncoder, "vector", None)
setattr(service, "KnowledgeBase", None)
service.KnowledgeBase.open = None
"""
    assert sorted(replaced(ast.parse(ours))) == [2, *range(6, 15)]
    theirs = """
import sys
from huggingface_hub import constants
monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
monkeypatch.setattr("importlib.util.find_spec", None)
monkeypatch.setitem(sys.modules, "tensorboard", None)
monkeypatch.setenv("COLMLM_HOME", "x")
kb.settings = None
"""
    assert list(replaced(ast.parse(theirs))) == []


def parsed(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"))


def replaced(module: ast.Module) -> Iterator[int]:
    """Yields the lines that replace an attribute or an item which is ours, or may be, and those that import mocks."""
    theirs, ours = imported(module)
    for node in ast.walk(module):
        match node:
            case ast.Import() | ast.ImportFrom():
                if any("mock" in name.split(".") for name in modules(node)):
                    yield node.lineno
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[target, *_]):
                if name in PATCHES and not is_theirs(target, theirs):
                    yield node.lineno
            case ast.Assign(targets=targets):
                if any(isinstance(one, ast.Attribute) and root(one) in ours for one in targets):
                    yield node.lineno


def is_theirs(target: ast.expr, theirs: set[str | None]) -> bool:
    """Tells whether what is patched is surely somebody else's: a name as text, or a value that was imported."""
    if isinstance(target, ast.Constant):
        return str(target.value).partition(".")[0] not in OURS
    return root(target) in theirs


def root(target: ast.expr) -> str | None:
    """Gives the name that an expression begins with."""
    match target:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(args=[inner, *_]):
            return root(inner)
    return None


def imported(module: ast.Module) -> tuple[set[str | None], set[str | None]]:
    """Gives the names that a module imports from others, and those that it imports from us."""
    theirs: set[str | None] = set()
    ours: set[str | None] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            is_ours = any(name.partition(".")[0] in OURS for name in modules(node))
            names = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            (ours if is_ours else theirs).update(names)
    return theirs, ours


def modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Gives the modules that are imported, or imported from."""
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
