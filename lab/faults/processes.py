"""Lets one process edit or switch keysets while another looks up, which follows the log as a server does.

`edits`: once an edit is acknowledged, the old answer must never be given again. After each commit the writer sends the
reader, over a pipe, the answer that the fact must now give, and edits other facts at once. The reader looks that fact
up without waiting for anything else from the writer.

`switch`: no request fails while the active keyset is switched back and forth, and facts that nobody asks for are
edited. Of each answer the key must belong to the keyset of the asking checkpoint, and have the score of such a key.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np
from sqlalchemy import select

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.keys.calibration import Calibration
from colmlm.kb.lookup.follower import Follower
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.lookup.specs import TORCH_SPEC
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import MilvusAddress, Settings
from colmlm.kb.switching.keysets import Keysets
from colmlm.kb.tables import FactKeyRow
from colmlm.lab.bench.machine import milliseconds
from colmlm.lab.bench.synthetic import DIM, ENCODERS, HashEncoder, documents, synthetic_keys
from colmlm.lab.faults.harness import Figures, fill_base, soundness, spawn_work
from colmlm.lab.faults.target import WHO

IN_FLIGHT = 16  # edited and not yet confirmed facts, by which the writer may be ahead
EDITED_FACTS = 200
WIDTH = 576  # of keys where facts stand beside those that are edited


def edits(
    settings: Settings,
    *,
    operations: int = 10_000,
    seed: int = 0,
    backend: str | None = None,
    beside: int = 0,
) -> Figures:
    """Edit in one process and look up in another, half of the operations each, and count wrong answers.

    So many facts stand `beside` those that are edited. The `backend` that searches the keys is torch, or a Milvus
    server at this address. None: Faiss.
    """
    encoder = HashEncoder(0, WIDTH if beside else DIM)
    spec = backend
    if backend is not None and backend != TORCH_SPEC:
        settings, spec = replace(settings, milvus=MilvusAddress(uri=backend)), "milvus:faults"
    with KnowledgeBase.open(settings) as kb:
        ids = fill_base(kb, EDITED_FACTS)
        keyset = kb.keysets.create(encoder.checkpoint, spec)
        store_beside(kb, keyset.keyset_id, beside, seed)
        kb.keysets.rekey(encoder)
        with spawn_work(_look_up, settings, encoder) as pipe:
            started = time.monotonic()
            kinds = _write(kb, pipe, ids, operations // 2, random.Random(seed))
            wrong, seconds = pipe.recv()
        took = time.monotonic() - started
        return {
            "operations": 2 * len(seconds),
            **{f"{kind}s": kinds[kind] for kind in ("delete", "restore", "update")},
            "wrong": wrong,
            **soundness(kb),
            "seconds": round(took, 2),
            "lookup_p50_ms": round(milliseconds(seconds, 50), 2),
            "lookup_p99_ms": round(milliseconds(seconds, 99), 2),
        }


def store_beside(kb: KnowledgeBase, keyset_id: int, number: int, seed: int) -> None:
    """Store so many other facts, with keys at random."""
    if number:
        kb.corpora.ingest([Parsed(document) for document in documents(number)], "beside", **WHO)
        ids = np.arange(EDITED_FACTS + 1, EDITED_FACTS + 1 + number)
        kb.keysets.store_keys(keyset_id, ids, synthetic_keys(number, WIDTH, seed=seed), **WHO)


def _write(
    kb: KnowledgeBase, pipe: Connection, ids: dict[int, int], operations: int, choose: random.Random
) -> Counter[str]:
    """Edit, tell the reader and collect confirmations; give the kinds of the edits."""
    live: dict[int, str] = {number: f"value {number}" for number in ids}
    last = dict(live)
    unconfirmed: set[int] = set()
    kinds: Counter[str] = Counter()
    for n in range(operations):
        while len(unconfirmed) == IN_FLIGHT or (unconfirmed and pipe.poll()):
            unconfirmed.discard(pipe.recv())
        number = choose.choice([one for one in ids if one not in unconfirmed])
        if number not in live:
            edit = kb.facts.restore([ids[number]], **WHO)
            live[number] = last[number]
        elif choose.random() < 0.5:
            edit = kb.facts.delete([ids[number]], **WHO, abstain=choose.random() < 0.3)
            del live[number]
        else:
            edit = kb.facts.edit(ids[number], f"edited {n}", **WHO)
            live[number] = last[number] = f"edited {n}"
        kinds[edit.kind] += 1
        unconfirmed.add(number)
        pipe.send((number, live.get(number)))
    while unconfirmed:
        unconfirmed.discard(pipe.recv())
    pipe.send(None)
    return kinds


def _look_up(settings: Settings, encoder: HashEncoder, pipe: Connection) -> None:
    """Look up each fact that this process is told, and report wrong answers and times at the end."""
    wrong, seconds = 0, []
    with KnowledgeBase.open(settings) as kb, Follower(kb):
        while (told := pipe.recv()) is not None:
            number, expected = told
            started = time.perf_counter()
            value = answer_of(kb, encoder, f"Question {number}?")
            seconds.append(time.perf_counter() - started)
            if value != expected:
                wrong += 1
                sys.stderr.write(f"fact {number}: {value!r} instead of {expected!r}\n")
            pipe.send(number)
    pipe.send((wrong, seconds))


def answer_of(kb: KnowledgeBase, encoder: HashEncoder, question: str) -> str | None:
    """Look a question up and give the value of the best hit, or None for no match."""
    queries = encoder.encode_questions([question])
    (lookup,) = kb.lookups.find(queries, checkpoint_id=encoder.checkpoint.checkpoint_id)
    return lookup.hits[0].value if lookup.hits else None


# Switches of the active keyset under load.

FACTS, ASKED, THREADS = 400, 300, 3
OLD, NEW = ENCODERS
MEASURED = Calibration(0.9, 0.0, 0.0, 1.0, 2)


def switch(settings: Settings, *, seconds: float = 20.0, backend: str | None = None) -> Figures:
    """Switch the active keyset back and forth under lookups and edits, none of which may fail or be mixed.

    The `backend` that searches the keys is torch; None: Faiss.
    """
    with KnowledgeBase.open(settings) as kb, KnowledgeBase.open(settings) as editing:
        ids = fill_base(kb, FACTS)
        for encoder in ENCODERS:
            kb.keysets.create(encoder.checkpoint, backend)
        keysets = {
            encoder.checkpoint.checkpoint_id: kb.keysets.calibrate(
                kb.keysets.rekey(encoder).keyset_id, MEASURED
            ).keyset_id
            for encoder in ENCODERS
        }
        new = keysets[NEW.checkpoint.checkpoint_id]
        assert kb.keysets.check(new, NEW, active_encoder=OLD).passed
        stop = threading.Event()
        with spawn_work(_ask_until_told, settings, keysets) as pipe:
            assert pipe.recv() == "asking"
            with ThreadPoolExecutor(max_workers=1) as editor:
                edited = [fact_id for number, fact_id in ids.items() if number >= ASKED]
                editor_at_work, started = editor.submit(_edit, editing, edited, stop), time.monotonic()
                switches = _switch(kb.keysets, new, started + seconds)
                stop.set()
                num_edits = editor_at_work.result()
            took = time.monotonic() - started
            pipe.send("stop")
            counts, slowest = pipe.recv()
        names = ("requests", "failed", "mixed", "wrong", "answered_by_new")
        return {
            **{name: counts[name] for name in names},
            "activations": switches,
            "rollbacks": switches,
            "edits": num_edits,
            **soundness(kb),
            "seconds": round(took, 1),
            "slowest_ms": round(1000 * slowest, 1),
        }


def _switch(keysets: Keysets, new: int, until: float) -> int:
    """Activate and roll back until the time is over, at least twice; give how often."""
    switches = 0
    while time.monotonic() < until or switches < 2:
        keysets.activate(new, max_edits=10**6)
        time.sleep(0.2)
        keysets.rollback()
        time.sleep(0.2)
        switches += 1
    return switches


def _edit(kb: KnowledgeBase, facts: list[int], stop: threading.Event) -> int:
    """Delete, restore and correct the facts that nobody asks for; give the number of edits."""
    edits = 0
    while not stop.is_set():
        fact_id = facts[edits % len(facts)]
        kb.facts.delete([fact_id], **WHO)
        kb.facts.restore([fact_id], **WHO)
        kb.facts.edit(fact_id, f"edited {edits}", **WHO)
        edits += 3
    return edits


def _ask_until_told(settings: Settings, keysets: dict[str, int], pipe: Connection) -> None:
    """Ask from several threads until this process is told to stop."""
    stop = threading.Event()
    with KnowledgeBase.open(settings) as kb, Follower(kb):
        with kb.sessions() as session:
            key_ids = {
                name: set(session.scalars(select(FactKeyRow.id).where(FactKeyRow.keyset_id == keyset_id)))
                for name, keyset_id in keysets.items()
            }
        questions = Questions(kb, ENCODERS)
        questions.ask(["Question 0?"])
        pipe.send("asking")
        with ThreadPoolExecutor(max_workers=THREADS) as threads:
            asking = [threads.submit(_ask, questions, key_ids, stop, n) for n in range(THREADS)]
            pipe.recv()
            stop.set()
            found = [one.result() for one in asking]
    pipe.send((sum((counts for counts, _ in found), Counter[str]()), max(slowest for _, slowest in found)))


def _ask(
    questions: Questions, key_ids: dict[str, set[int]], stop: threading.Event, number: int
) -> tuple[Counter[str], float]:
    """Ask again and again; give counts, and the seconds of the slowest answer."""
    counts, slowest = Counter[str](), 0.0
    while not stop.is_set():
        number = (number + 7) % ASKED
        started = time.perf_counter()
        counts["requests"] += 1
        try:
            checkpoint_id, (lookup,) = questions.ask([f"Question {number}?"])
        except Exception as error:  # noqa: BLE001 # whatever it is, it is counted
            counts["failed"] += 1
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            continue
        slowest = max(slowest, time.perf_counter() - started)
        counts["answered_by_new"] += checkpoint_id == NEW.checkpoint.checkpoint_id
        best = lookup.hits[0] if lookup.hits else None
        counts["wrong"] += best is None or best.value != f"value {number}"
        counts["mixed"] += best is None or best.key_id not in key_ids[checkpoint_id] or best.score < 0.99
    return counts, slowest
