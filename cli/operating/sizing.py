"""`colmlm db sizing`: estimates the resources for a number of facts, before there is a machine for them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from colmlm.cli.options import examples, wants_json
from colmlm.cli.output import count_of, note, print_json, print_table, say
from colmlm.kb.errors import InvalidValue
from colmlm.kb.lookup.specs import FLAT_SPEC, bits_code_bytes, default_spec

EXAMPLES = examples(
    "colmlm db sizing --facts 1000000",
    "colmlm db sizing --facts 2200000000 --dim 960 --code-bytes 96 --json",
)
MOST = 10**12
_KEYS = re.compile(r"([1-9][0-9]?)(?:x([1-9]))?")


def sizing(
    facts: Annotated[int, typer.Option("--facts", min=1, max=MOST, help="How many facts.")],
    dim: Annotated[int, typer.Option("--dim", min=1, max=16_384, help="Width of a key.")] = 576,
    keys_per_fact: Annotated[
        str,
        typer.Option(
            "--keys-per-fact",
            metavar="KEYS[xKEYSETS]",
            help="2 with question keys; 2x2 beside a retraining, with two keysets open at once.",
        ),
    ] = "1",
    text_bytes: Annotated[
        int,
        typer.Option(
            "--text-bytes", min=0, max=10**6, help="A fact's share of its document, value and question."
        ),
    ] = 300,
    code_bytes: Annotated[
        int | None,
        typer.Option(
            "--code-bytes",
            min=1,
            max=16_384,
            help="Of a key in the index. Default: an eighth of dim, and 8, from width 256 on; else a quarter.",
        ),
    ] = None,
) -> None:
    """Say what so many facts take: database, index, memory, disk, lookups a second.

    Fitted to one machine at a million facts and computed beyond that: an order of magnitude, not a promise.
    """
    if not (said := _KEYS.fullmatch(keys_per_fact)):
        raise typer.BadParameter("it is no number like 2, or 2x2; give one.", param_hint="--keys-per-fact")
    load = Load(
        facts=facts,
        dim=dim,
        keys_per_fact=int(said[1]),
        text_bytes=text_bytes,
        code_bytes=code_bytes,
        keysets=int(said[2] or 1),
    )
    found = sizes(load)
    if load.is_flat and code_bytes is not None:
        note(
            f"An index of {count_of(load.keys, 'key')} is exact, without codes: --code-bytes changes nothing."
        )
    if wants_json():
        print_json({"load": asdict(load), "sizes": asdict(found)})
        return
    say(f"{count_of(facts, 'fact')} of width {dim}, {found.index_spec}")
    rows = [
        ("database", format_bytes(found.database), "texts, facts, versions, keys, log"),
        ("index", format_bytes(found.index_memory), "in the memory of every process that looks up"),
        ("index training", format_bytes(found.index_training_memory), "in memory while one is built"),
        ("snapshots", format_bytes(found.snapshots), "on disk, the old one and the new one"),
        ("disk", format_bytes(found.disk), "with the write-ahead log and room for vacuum"),
        (
            "memory",
            format_bytes(found.memory),
            "index and training; the database's cache and the model come on top",
        ),
        ("one lookup", f"{found.lookup_ms:,.2f} ms", f"of it {found.search_ms:,.2f} ms in the index"),
        ("lookups", f"{found.lookups_per_second_and_core:,.1f} /s", "a core, in batches of 64"),
    ]
    print_table(("what", "size", ""), rows)


def format_bytes(size: float) -> str:
    """Write a number of bytes in units of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if size >= 100 or unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.2f} TB"


# The formulas of docs/explanation/sizing.md.

PAGE, PAGE_USABLE = 8192, 8168
KEY_ROW = 76  # header, ids, kind and item pointer of a key's row
TOAST_FROM = 2032  # bytes; PostgreSQL stores the key of a longer row apart, in pieces
KEY_INDEXES = 90  # three B-tree entries for each key
SENTENCES = 3.5  # the rows of sentences and the index on their words, for each byte of text
FACT_ROWS = 330  # a fact, its version, their indexes, and its share of the document's row and of the log
INDEX_KEY = (
    105  # bytes besides the code: id in its list, id in the direct map, id among those present, room to grow
)
FLAT_KEY = 64  # bytes besides the vector: two ids and the map between them
SNAPSHOT_KEY = 24  # bytes besides the code: the id and its entry of the direct map
HEADROOM = 1.5  # factor on disk for the write-ahead log, dead rows before vacuum, a retired keyset until it is dropped

# Seconds on one core.
PER_CENTROID_NUMBER = 1.43e-10
PER_CODE_BYTE = 6.4e-10  # of a code that is looked up in tables
PER_BITS_BYTE = 1.4e-10  # of a code of bits
PER_FLAT_NUMBER = 1.5e-10
# How many codes a search compares, so that it finds 0.98 of the nearest keys: a power of their number.
READ_OF_ONE, READ_POWER = 3.5, 0.73
AROUND_ONE = 1.32e-3  # a single lookup: the deciding statement, exact scores, Python
AROUND_EACH_OF_MANY = 0.29e-3  # the same in batches of 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The contents to estimate for. `text_bytes` is a fact's share of its document, with its value and its question.

    `code_bytes` is the length of a key's code in the index (None: as `kb.lookup.specs` chooses); an exact index has
    none. `keysets` counts those whose index is open at once: two during a retraining, else one.
    """

    facts: int
    dim: int = 576
    keys_per_fact: int = 1
    text_bytes: int = 300
    code_bytes: int | None = None
    keysets: int = 1

    def __post_init__(self) -> None:
        for name in ("facts", "dim", "keys_per_fact", "keysets"):
            if getattr(self, name) < 1:
                raise InvalidValue(name, f"{getattr(self, name)} is not at least 1")
        if self.code_bytes is not None and not 1 <= self.code_bytes <= self.dim:
            raise InvalidValue(
                "code_bytes", f"it must be from 1 to {self.dim}, a byte for each number of a key"
            )

    @property
    def keys(self) -> int:
        return self.facts * self.keys_per_fact

    @property
    def is_flat(self) -> bool:
        return default_spec(self.keys, self.dim) == FLAT_SPEC

    @property
    def is_bits(self) -> bool:
        """Tell whether the index is taken to store a key as one bit for each of its dimensions (RaBitQ)."""
        return self.code_bytes is None and default_spec(self.keys, self.dim).endswith("RaBitQ")

    @property
    def nlist(self) -> int:
        return int(default_spec(self.keys, self.dim).partition("IVF")[2].partition(",")[0] or 0)

    @property
    def code(self) -> int:
        """The length of a key in the index, in bytes: its code, or its float32 numbers in an exact index."""
        if self.is_flat:
            return 4 * self.dim
        return self.code_bytes or (bits_code_bytes(self.dim) if self.is_bits else self.dim // 4)


@dataclass(frozen=True, slots=True)
class LoadSizes:
    """The sizes of a load, in bytes except where the name says otherwise."""

    index_spec: str
    database: int
    index_memory: int
    index_training_memory: int
    snapshots: int
    disk: int
    memory: int
    search_ms: float
    lookup_ms: float
    lookups_per_second_and_core: float


def sizes(load: Load) -> LoadSizes:
    """Estimate the sizes of a load, by the formulas of docs/explanation/sizing.md."""
    database, snapshot = database_bytes(load), snapshot_bytes(load)
    index, training = index_bytes(load), training_bytes(load)
    search = search_seconds(load)
    return LoadSizes(
        index_spec=_spec(load),
        database=database,
        index_memory=index,
        index_training_memory=training,
        snapshots=2 * load.keysets * snapshot,  # a new one is written before the old one is removed
        disk=int(HEADROOM * database) + 2 * load.keysets * snapshot,
        memory=load.keysets * index + training,
        search_ms=round(1000 * search, 3),
        lookup_ms=round(1000 * (search + AROUND_ONE), 3),
        lookups_per_second_and_core=round(1 / (search + AROUND_EACH_OF_MANY), 2),
    )


def database_bytes(load: Load) -> int:
    """Estimate the database: facts, versions, texts, their sentences, and the keys of every keyset that is kept."""
    texts = (1 + SENTENCES) * load.text_bytes
    key = key_row_bytes(load.dim) + KEY_INDEXES
    return int(load.facts * (FACT_ROWS + texts + load.keysets * load.keys_per_fact * key))


def key_row_bytes(dim: int) -> float:
    """Estimate the row of a key: its share of a page, which holds whole rows. A long key is stored apart."""
    row = 2 * dim + KEY_ROW
    return PAGE / (PAGE_USABLE // row) if row <= TOAST_FROM else 1.05 * row + 100


def index_bytes(load: Load) -> int:
    """Estimate one index in memory."""
    return load.keys * (load.code + (FLAT_KEY if load.is_flat else INDEX_KEY)) + _centroids(load)


def snapshot_bytes(load: Load) -> int:
    return load.keys * (load.code + (8 if load.is_flat else SNAPSHOT_KEY)) + _centroids(load)


def training_bytes(load: Load) -> int:
    """Estimate the memory while an index is trained: its sample as read from the database, as floats, and rotated."""
    from colmlm.kb.lookup.index import TRAINED_PER_LIST  # imports NumPy, which help does not need

    sample = 0 if load.is_flat else TRAINED_PER_LIST * load.nlist
    return sample * (10 * load.dim + 100)


def search_seconds(load: Load) -> float:
    """Estimate one search on one core: it scores every centroid, then the codes of the lists that it reads."""
    if load.is_flat:
        return PER_FLAT_NUMBER * load.keys * load.dim
    per_byte = PER_BITS_BYTE if load.is_bits else PER_CODE_BYTE
    read: float = min(load.keys, READ_OF_ONE * load.keys**READ_POWER)
    return PER_CENTROID_NUMBER * load.nlist * load.dim + per_byte * read * load.code


def _centroids(load: Load) -> int:
    return 4 * load.nlist * load.dim


def _spec(load: Load) -> str:
    spec = default_spec(load.keys, load.dim)
    if load.is_flat or load.code_bytes is None:
        return spec
    width = load.dim // load.code_bytes * load.code_bytes
    return f"OPQ{load.code_bytes}_{width},IVF{load.nlist},PQ{load.code_bytes}"
