"""Every name of ours that a test takes from a module exists, also in the programs that a test hands to a process."""

from __future__ import annotations

import ast
import importlib
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from tests.invariants import MUTATIONS
from tests.places import ROOT

OURS = {"colmlm", "tests"}
HOLE = "_hole_"  # what a formatted string has in place of each value
FILES = [
    str(file.relative_to(ROOT)) for room in ("tests", "lab") for file in sorted((ROOT / room).rglob("*.py"))
]

PACKAGES = ("kb", "api", "cli", "model", "lab")
BARE = (
    "[a-z]+ed|said|told|gone|held|known|drawn|made|found|sent|kept|shown|given|against|with|without|at|then|there"
    "|done|taken|left|seen|written|heard|paid|sought|begun|unset"
)
BARE_NAME = re.compile(f"_(?:{BARE})")

# Public names that stay though they are a participle alone; the set may only shrink.
PUBLIC_NAMES = {
    "api/errors.py: Refused",
    "api/openai/fields.py: Unsupported",
    "api/routes/changes.py: Held",
    "api/routes/changes.py: Witnessed",
    "api/routes/corpora.py: Ingested",
    "api/routes/facts.py: Corrected",
    "api/wire.py: Decided",
    "api/wire.py: Deleted",
    "api/client/operating.py: listed",
    "api/openai/models.py: embed",
    "api/watch/metrics.py: timed",
    "api/watch/operations.py: timed",
    "cli/bases/local_lookups.py: listed",
    "model/decoding/config.py: abstained",
    "model/decoding/rows.py: feed",
    "model/lm/language_model.py: feed",
    "model/lm/llama.py: feed",
    "model/lm/past.py: feed",
    "kb/answers/records.py: abstained",  # fields of records
    "kb/answers/records.py: unreviewed",
    "kb/keys/records.py: kept",
    "kb/switching/gate.py: failed",
    "kb/corpus/format.py: Parsed",
    "kb/errors/__init__.py: Waited",  # a kind of errors
    "kb/errors/__init__.py: coded",
    "kb/errors/refusals.py: collided",  # named by its code
    "kb/log/chain.py: Sealed",  # names of records in the API's description
    "kb/removal/records.py: Erased",
    "kb/lookup/records.py: timed",  # of a protocol that the API implements
}

# Programs that are written to be refused: their names do not exist on purpose.
WRONG_ON_PURPOSE = {"tests/test_names.py", "tests/test_patches.py", "tests/test_structure.py"}


@pytest.mark.parametrize(
    "room", ["tests/api", "tests/cli", "tests/kb", "tests/lab", "tests/model", "tests", "lab"]
)
def test_every_name_that_is_taken_from_a_module_of_ours_exists(room: str) -> None:
    files = [file for file in FILES if room_of(file) == room and file not in WRONG_ON_PURPOSE]
    assert files
    missing = [
        f"{file}: {name}"
        for file in files
        for program in programs((ROOT / file).read_text(encoding="utf-8"))
        for name in missing_names(program)
    ]
    assert missing == []


def test_a_name_that_does_not_exist_is_found() -> None:
    program = '''
from colmlm.kb.store import database, nothing_here
from colmlm.kb import errors as faults
import tests.places

database.connect_database, faults.no_fault, tests.places.ROOT, tests.places.NOWHERE
PROGRAM = f"""
    from colmlm.kb.store import database
    database.connect({1})
"""
def run(database):
    return database.anything
'''
    found = [name for one in programs(program) for name in missing_names(one)]
    assert found == [
        "colmlm.kb.store.nothing_here",
        "colmlm.kb.errors.no_fault",
        "tests.places.NOWHERE",
        "colmlm.kb.store.database.connect",
    ]


_QUOTED_PATH = re.compile(r"(?<!`)`(?:colmlm\.)?((?:kb|model|api|cli|lab)(?:\.\w+)+)`(?!`)")


def quoted_paths(source: str) -> list[str]:
    """Give the dotted names of modules of ours, and of what is in them, that comments and docstrings quote."""
    prose = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and '"""' in token.string[:4])
    ]
    return [path for text in prose for path in _QUOTED_PATH.findall(text)]


def is_defined(path: str) -> bool:
    """Say whether `path` is a module of ours or leads to what one defines."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:length])
        file = base.with_suffix(".py") if not base.is_dir() else base / "__init__.py"
        if not file.is_file() and not base.is_dir():
            continue
        rest = parts[length:]
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        return all(re.search(rf"\b(?:def|class) {name}\b|^\s*{name}\b\s*[:=]", text, re.M) for name in rest)
    return False


def test_every_module_that_prose_in_the_code_names_exists() -> None:
    assert quoted_paths('# as `kb.store.nothing.Here` does\n"""See `colmlm.kb.store`."""\n') == [
        "kb.store.nothing.Here",
        "kb.store",
    ]
    assert is_defined("kb.store.store.Store") and not is_defined("kb.store.store.Nothing")
    gone = [
        f"{file}: {path}"
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
        for path in quoted_paths(file.read_text(encoding="utf-8"))
        if not is_defined(path)
    ]
    assert gone == []


def test_nothing_is_defined_behind_the_call_of_a_main_function() -> None:
    """A module that is run as a program ends where it calls `main`; what stands behind would not be there yet."""
    rooms = ("kb", "model", "api", "cli", "lab", "migrations", "tests")
    behind = [
        str(file.relative_to(ROOT))
        for room in rooms
        for file in sorted((ROOT / room).rglob("*.py"))
        if any(map(is_main_block, ast.parse(file.read_text(encoding="utf-8")).body[:-1]))
    ]
    assert behind == []


def test_every_invariant_that_is_broken_in_a_copy_stands_once_in_the_program() -> None:
    """The copy is broken by replacing a text; where that is no more, nothing would be broken."""
    lost = [
        one.name for one in MUTATIONS if (ROOT / one.file).read_text(encoding="utf-8").count(one.old) != 1
    ]
    assert lost == []


def is_main_block(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


def room_of(file: str) -> str:
    """Gives the folder of FILES' rooms that a file belongs to."""
    parts = Path(file).parts
    return (
        "/".join(parts[:2])
        if parts[0] == "tests" and parts[1] in {"api", "cli", "kb", "lab", "model"}
        else parts[0]
    )


def programs(source: str) -> Iterator[ast.Module]:
    """Yields a module, and each program that stands in one of its strings and imports something of ours."""
    module = ast.parse(source)
    yield module
    parts = {id(part) for node in ast.walk(module) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(module):
        if id(node) in parts:
            continue
        text = text_of(node)
        if text and "import" in text and any(name in text for name in OURS):
            try:
                yield ast.parse(textwrap.dedent(text))
            except (SyntaxError, ValueError):
                continue


def text_of(node: ast.AST) -> str | None:
    """Gives the text of a string, with a name in place of each value that is formatted into it."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(str(one.value) if isinstance(one, ast.Constant) else HOLE for one in values)
    return None


def missing_names(program: ast.Module) -> Iterator[str]:
    """Yields the dotted names of ours which a program imports, or reads from a module, and which do not exist."""
    aliases = {}
    for node in ast.walk(program):
        if isinstance(node, ast.ImportFrom) and not node.level and is_ours(node.module):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if HOLE not in name and alias.name != "*" and not exists(name):
                    yield name
                aliases[alias.asname or alias.name] = name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if is_ours(alias.name):
                    if HOLE not in alias.name and not exists(alias.name):
                        yield alias.name
                    package = alias.name.partition(".")[0]
                    aliases[alias.asname or package] = alias.name if alias.asname else package
    bound = bound_names(program)
    for node in ast.walk(program):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and (name := dotted(node)):
            first, _, rest = name.partition(".")
            if (
                first in aliases
                and first not in bound
                and HOLE not in name
                and not exists(f"{aliases[first]}.{rest}")
            ):
                yield f"{aliases[first]}.{rest}"


def bound_names(program: ast.Module) -> set[str]:
    """Gives the names that a program binds anew: parameters and targets, which hide an imported module."""
    return {node.arg for node in ast.walk(program) if isinstance(node, ast.arg)} | {
        node.id
        for node in ast.walk(program)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def test_a_private_function_is_named_after_its_object() -> None:
    """A participle or a preposition alone, such as `_kept` or `_with`, does not say of what."""
    found = {f"{file}: {name}" for file, name in defined_names(PACKAGES) if BARE_NAME.fullmatch(name)}
    assert found == set()


def test_a_public_name_says_its_object() -> None:
    """`Kept` is read as badly as `_kept`; a class of more words, such as `KeptAnswer`, has its object."""
    found = {
        f"{file}: {name}"
        for file, name in defined_names(PACKAGES)
        if re.fullmatch(BARE, name[0].lower() + name[1:])
    }
    assert found == PUBLIC_NAMES


NOUNS = (
    "answers|bytes|cells|changes|characters|documents|edits|examples|facts|fields|files|groups|items|jobs|keys|lines"
    "|lists|misses|outputs|pages|prompts|queries|questions|requests|rows|runs|scores|shards|spans|steps|texts|times"
    "|tokens|uses|warnings|words|workers"
)
PLURAL = re.compile(f" (?:(?!of |has |the )[a-z-]+ )?(?:{NOUNS})\\b")
# Values before such a noun that are no number, or never 1: limits that were exceeded, or that nobody sets so low.
NOT_COUNTED = {
    "answering",
    "expected",
    "fewest",
    "format_list(fact_ids)",
    "k",
    "len(body)",
    "len(document.text)",
    "len(question)",
    "len(said)",
    "len(text)",
    "len(value)",
    "metrics.tokens_per_second",
    "most",
    "one.kind",
    "self.characters",
    "self.count",
    "self.most_held",
    "size",
}


def test_a_noun_agrees_with_its_number() -> None:
    """`count_of` writes "1 fact" and "2 facts"; a noun that stands behind a number in a text is one or the other."""
    files = [file for room in ("api", "cli", "kb") for file in sorted((ROOT / room).rglob("*.py"))]
    found = [one for file in files for one in fixed_plurals(file.read_text(encoding="utf-8"))]
    assert {one for one, _ in found} - NOT_COUNTED == set(), found
    assert {one for one, _ in found} >= NOT_COUNTED, "shorten the list"
    assert list(fixed_plurals('f"{len(a)} live facts in {of(b)} texts, {c:,} of {D}"')) == [
        ("len(a)", " live facts"),
        ("of(b)", " texts"),
    ]
    assert list(fixed_plurals("""f"{count_of(n, 'key')} facts {MOST} facts {n} told\"""")) == []


def fixed_plurals(source: str) -> Iterator[tuple[str, str]]:
    """Yields each value that a plural follows in a formatted string, other than a constant, with that plural."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            for value, after in pairwise(node.values):
                if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                    said, plural = ast.unparse(value.value), PLURAL.match(str(after.value))
                    if plural and "count_of" not in said and not said.rpartition(".")[2].strip("_").isupper():
                        yield said, plural[0]


NO_VERB = re.compile(
    "an?|all|any|both|by|each|every(thing)?|how|if|in|of|one|some|that|the|there|these|this|what|when|where|whether"
    "|which|who|whom|whose|why|with|within|`.*"
)
# Verbs that end like the third person.
ENDS_IN_S = frozenset(
    {"address", "bypass", "compress", "discuss", "dismiss", "express", "guess", "pass", "process"}
)


def has_wrong_start(docstring: str) -> bool:
    """Say whether a docstring begins with no verb, or with one in the third person: "Gives", but not "Give"."""
    first = re.split(r"[^\w`-]", docstring.strip(), maxsplit=1)[0].lower()
    return NO_VERB.fullmatch(first) is not None or (first.endswith("s") and first not in ENDS_IN_S)


def wrong_docstrings(source: str) -> Iterator[str]:
    """Yield the names of functions whose docstring begins with no imperative verb, and of classes with a question.

    A property is an attribute, and a class is a thing: each may be named by a noun.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            docstring = ast.get_docstring(node) or "Do"
            if isinstance(node, ast.ClassDef):
                question = re.match("(?:how|what|when|where|whether|which|who|whom|why) ", docstring, re.I)
                wrong = question is not None
            else:
                is_property = any("property" in ast.unparse(one) for one in node.decorator_list)
                wrong = not is_property and has_wrong_start(docstring)
            if wrong:
                yield node.name


def test_a_docstring_begins_with_an_imperative_verb() -> None:
    files = [file for room in (*PACKAGES, "migrations") for file in sorted((ROOT / room).rglob("*.py"))]
    files.append(ROOT / "tests" / "kb" / "backup" / "test_sealing.py")
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name in wrong_docstrings(file.read_text(encoding="utf-8"))
        if not name.startswith("test_")
    ]
    assert found == []
    program = """
def right(): "Pass it on."
def whole(): "The whole."
def gives(): "Gives it."
class Thing: "A thing."
class Question: "What a thing is."
class Property:
    @property
    def size(self): "The number of things."
"""
    assert list(wrong_docstrings(program)) == ["whole", "gives", "Question"]


def defined_names(packages: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """Yields the name of each function and class of these packages, with its file."""
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield file.relative_to(ROOT), node.name


def dotted(node: ast.expr) -> str | None:
    """Writes an expression that is a chain of attributes as a dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else None
    return None


def is_ours(name: str | None) -> bool:
    return (name or "").partition(".")[0] in OURS


def exists(name: str) -> bool:
    """Tells whether a dotted name leads to a module, or to an attribute of one."""
    module, rest = imported(name)
    return not rest or (module is not None and hasattr(module, rest[0]))


def imported(name: str) -> tuple[ModuleType | None, list[str]]:
    """Imports the longest part of a dotted name that is a module, and gives it with the attributes that remain.

    A module that needs a library which is not installed gives None: nothing is known of it.
    """
    parts, rest = name.split("."), list[str]()
    while parts:
        try:
            return importlib.import_module(".".join(parts)), rest
        except ModuleNotFoundError as error:
            if not is_ours(error.name):
                return None, []
            rest.insert(0, parts.pop())
    return None, rest
