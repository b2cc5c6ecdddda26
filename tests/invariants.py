"""Break the invariants of the architecture one by one in a copy, and see whether tests fail.

    python -m tests.invariants


Each mutation is a piece of the program's text, with another in its place that breaks one invariant and still runs, and
the fast tests that are to see it. The copy is removed at the end, and the project itself is only read. Before anything
is broken, the tests have to pass in the copy, and what they import has to be the copy's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from colmlm.kb import interpreter
from tests.places import ROOT


@dataclass(frozen=True, slots=True)
class Mutation:
    """An invariant by its name, with its number in docs/explanation/architecture.md if it has one, and what breaks it.

    `old` is in the `file` once; `new` takes its place. `tests` are files or node ids.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "1: an index that this database's log does not bear out is built anew",
        "kb/lookup/replica.py",
        'if noted != {"seq": applied_seq, "hash": audit.change_hash_or_genesis(session, applied_seq)}:',
        "if noted is None:",
        ("tests/kb/test_service.py::test_a_snapshot_of_a_history_that_was_rolled_back_is_refused",),
    ),
    Mutation(
        "2: a delete takes effect at commit, however far an index lags",
        "kb/lookup/searcher.py",
        "WHERE fact_id = k.fact_id AND to_seq IS NULL LIMIT 1",
        "WHERE fact_id = k.fact_id ORDER BY version DESC LIMIT 1",
        ("tests/kb/test_service.py::test_deleted_fact_is_gone_before_the_index_catches_up",),
    ),
    Mutation(
        "3: a trigger refuses to rewrite the log",
        "migrations/baseline/facts.sql",
        "BEFORE UPDATE OR DELETE OR TRUNCATE ON change",
        "BEFORE DELETE OR TRUNCATE ON change",
        ("tests/kb/store/test_database.py::test_the_change_log_cannot_be_rewritten",),
    ),
    Mutation(
        "3: the hash of a change covers all of it",
        "kb/log/audit.py",
        '"reason": change.reason,',
        '"reason": "",',
        ("tests/kb/log/test_changes.py::test_a_rewritten_entry_is_found",),
    ),
    Mutation(
        "4: a lookup with min_seq waits for that change",
        "kb/lookup/searcher.py",
        "if replica.applied_seq >= min_seq:",
        "if replica.applied_seq >= 0:",
        ("tests/kb/lookup/test_lookup.py::test_a_seq_that_nobody_made_is_not_waited_for",),
    ),
    Mutation(
        "5: the threshold is compared with the exact inner product",
        "kb/lookup/ranking.py",
        "keys_ND = keys.reshape(-1, queries_BD.shape[1]).astype(np.float32)",
        "keys_ND = keys.reshape(-1, queries_BD.shape[1]).astype(np.float32).round(1)",
        ("tests/kb/lookup/test_lookup.py::test_scores_are_exact_products_with_the_stored_keys",),
    ),
    Mutation(
        "6: queries of another checkpoint are refused",
        "kb/lookup/searcher.py",
        "raise KeysetMismatch(checkpoint_id, str(decision.checkpoint_id), self.keyset_id)\n        return found, dec",
        "checkpoint_id = str(decision.checkpoint_id)\n        return found, dec",
        ("tests/kb/lookup/test_keyset_lookup.py",),
    ),
    Mutation(
        "6: activating flips one row, and going back is activating the old one",
        "kb/keys/activation.py",
        'update(KeysetRow).where(KeysetRow.state == "active").values(state="ready")',
        'update(KeysetRow).where(KeysetRow.state == "active").values(state="retired")',
        ("tests/kb/test_service.py::test_activation_flips_every_process_and_back",),
    ),
    Mutation(
        "7: a span says its value, word for word",
        "kb/corpus/format.py",
        "return end - start == len(value) and text.startswith(value, start)",
        "return end - start == len(value)",
        ("tests/kb/corpus/test_corpus.py::test_a_span_that_does_not_hold_is_refused_and_its_document_taken",),
    ),
    Mutation(
        "8: a splice is recorded where it stands in the output, in code points",
        "model/decoding/rows.py",
        "output_start=start, output_end=start + len(value)",
        "output_start=start, output_end=start + len(value.encode())",
        (
            "tests/model/decoding/test_decoder_scripted.py::test_a_value_stands_in_the_output_exactly_where_its_record_says",
        ),
    ),
    Mutation(
        "8: an output records the last change that its lookups had seen",
        "model/decoding/decoder.py",
        "row.seq = max(row.seq or 0, found.seq)",
        "row.seq = row.seq or found.seq",
        (
            "tests/model/decoding/test_decoder_scripted.py::test_the_sequence_number_is_the_last_that_a_lookup_saw",
        ),
    ),
    Mutation(
        "9: no edit is acknowledged before its commit",
        "kb/store/store.py",
        "            self._pass_on(group)\n        group.wait()",
        "            self._pass_on(group)",
        (
            "tests/kb/store/test_group_commit.py::test_none_of_a_group_is_told_that_it_is_stored_where_its_commit_fails",
        ),
    ),
    Mutation(
        "10: nothing is found by a word that is not said",
        "migrations/baseline/facts.sql",
        "AFTER UPDATE OF text, title, replaced_seq ON document",
        "AFTER UPDATE OF title, replaced_seq ON document",
        ("tests/kb/facts/test_sentences.py::test_no_statement_at_all_leaves_words_that_are_not_said",),
    ),
    Mutation(
        "11: an erasure says which level it reached",
        "kb/removal/purge.py",
        'return Level(level, NAMES[level - 1], "left", _LEFT[level], f"Run: {_AGAIN}")',
        'return Level(level, NAMES[level - 1], "reached", _LEFT[level])',
        ("tests/kb/removal/test_erasure.py::test_level_two_takes_the_key_out_of_every_snapshot",),
    ),
    Mutation(
        "What was erased does not come back unasked",
        "kb/facts/suppression.py",
        "self._erased = frozenset(session.scalars(select(SuppressionRow.digest)))",
        "self._erased = frozenset[bytes]()",
        ("tests/kb/facts/test_sentences.py::test_what_was_erased_comes_back_only_where_that_is_allowed",),
    ),
    Mutation(
        "An edit is all or nothing",
        "kb/facts/edits.py",
        "if len(ended) < len(set(fact_ids)):",
        "if not ended:",
        ("tests/kb/facts/test_facts.py::test_a_refused_edit_names_every_id_and_does_nothing",),
    ),
    Mutation(
        "A key is not stored where what it was made of was edited meanwhile",
        "kb/keys/rekey.py",
        " if tuple(row[1:]) == keys.made_of[row[0]]}",
        "}",
        ("tests/kb/facts/test_versions.py::test_a_key_that_was_read_before_an_edit_is_not_stored_after_it",),
    ),
    Mutation(
        "A lookup as of a change gives the values of then",
        "kb/lookup/lookups.py",
        "WHERE v.fact_id = ANY(:fact_ids) AND v.from_seq <= :seq AND (v.to_seq IS NULL OR v.to_seq > :seq)",
        "WHERE v.fact_id = ANY(:fact_ids) ORDER BY v.version",
        ("tests/kb/lookup/test_history.py::test_as_of_any_change_answers_as_a_replay_of_the_edits",),
    ),
    Mutation(
        "A keyset is not activated against its gate",
        "kb/keys/activation.py",
        "raise refusals.gate_refused(keyset_id, refusal)",
        'evidence |= {"refusal": refusal}',
        ("tests/kb/switching/test_gate.py::test_activation_needs_a_gate_that_passed_lately_or_force",),
    ),
    Mutation(
        "A restore repeats the erasures of the newer log",
        "kb/backup/restore.py",
        "repeated = tuple(repeat_erasures(session, newer, actor)) if newer else ()",
        "repeated: tuple[Repeated, ...] = ()",
        ("tests/kb/backup/test_backup.py::test_what_was_erased_after_the_backup_stays_erased",),
    ),
    Mutation(
        "A backup is sealed by a checksum of all its bytes",
        "kb/backup/write.py",
        "if said != _SEAL + _digest(stream, end).encode():",
        "if not said.startswith(_SEAL):",
        ("tests/kb/backup/test_backup.py::test_any_flipped_bit_and_any_missing_end_is_refused",),
    ),
    Mutation(
        "The past is withheld from a role without the right to audit",
        "kb/evidence/shown.py",
        "return value if value == self.now else MARK * len(value)",
        "return value",
        ("tests/api/test_withholding.py::test_offsets_and_all_else_stay_where_the_past_is_withheld",),
    ),
    Mutation(
        "A route that names no right is the admins'",
        "api/middleware/auth.py",
        "handler.opt.get(_OPT, Right.admin)",
        "handler.opt.get(_OPT, Right.read)",
        ("tests/api/middleware/test_auth.py::test_route_that_names_no_right_is_the_admins",),
    ),
    Mutation(
        "An edit that is sent twice under one name is carried out once",
        "api/middleware/idempotency.py",
        "if name is None or not is_edit(scope) or not _may_edit(token, scope):",
        "if name is None or is_edit(scope) or not _may_edit(token, scope):",
        (
            "tests/api/middleware/test_idempotency.py::test_same_request_again_gives_the_stored_answer_and_edits_nothing",
        ),
    ),
)

OF_THE_COPY = "tests/test_of_the_copy.py"
COPY_IS_IMPORTED = """
import subprocess
from pathlib import Path
import colmlm.kb
from colmlm.kb import interpreter
from tests.places import ROOT


def test_the_copy_is_imported_here_and_in_processes_that_tests_start():
    assert Path(colmlm.kb.__file__).is_relative_to(ROOT)
    command = interpreter.command("-c", "import colmlm.kb; print(colmlm.kb.__file__)")
    started = subprocess.run(command, capture_output=True, text=True, check=True)
    assert started.stdout.strip() == colmlm.kb.__file__
"""
_FAILED = re.compile(r"^FAILED (.+?)(?: - (.*))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold what became of a mutation: the first test that failed (None: none did) and why, or what was wrong."""

    mutation: Mutation
    seconds: float
    seen_by: str | None = None
    why: str = ""
    error: str | None = None

    @property
    def verdict(self) -> str:
        return "ERROR" if self.error is not None else self.seen_by or "MISSED"


def check_texts(root: Path, mutations: Sequence[Mutation]) -> None:
    """Exit where a text that is to be replaced is not in its file exactly once."""
    counts = {m.name: (root / m.file).read_text(encoding="utf-8").count(m.old) for m in mutations}
    if wrong := [f"{name}: found {count} times" for name, count in counts.items() if count != 1]:
        sys.exit("\n".join(["The text to replace has to be in its file once.", *wrong]))


def copy_project(copy: Path) -> None:
    """Copy what git keeps or would keep, as it stands, with links as links; and add the test of the copy."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in sorted(set(filter(None, listed.split("\0")))):
        if os.path.lexists(ROOT / name):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    (copy / OF_THE_COPY).write_text(COPY_IS_IMPORTED, encoding="utf-8")


@contextmanager
def broken(copy: Path, mutation: Mutation) -> Iterator[None]:
    """Break the invariant in the block."""
    file = copy / mutation.file
    sound = file.read_text(encoding="utf-8")
    file.write_text(sound.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(sound, encoding="utf-8")


def run_tests(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run these tests in the copy up to the first that fails; give pytest's exit code and what it said."""
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (copy / "src", copy))), "COLUMNS": "200"}
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **paths}
    flags = ["-xq", "-n0", "-p", "no:cacheprovider", "-m", "not slow"]
    command = interpreter.command("-m", "pytest", *flags, *tests)
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def look(copy: Path, mutation: Mutation) -> Outcome:
    """Break one invariant and run its tests. A test that fails in a fixture is an error: it has seen nothing."""
    begun = time.monotonic()
    with broken(copy, mutation):
        code, said = run_tests(copy, mutation.tests)
    seconds = time.monotonic() - begun
    if code == 0:
        return Outcome(mutation, seconds)
    if code == 1 and (failed := _FAILED.search(said)) is not None:
        return Outcome(mutation, seconds, seen_by=failed[1], why=failed[2] or "")
    return Outcome(mutation, seconds, error=f"{said[-2000:]}\npytest ended with code {code}")


def check_all(mutations: Sequence[Mutation]) -> list[Outcome]:
    """Try these mutations in one copy, and tell each on stderr. Exit where the tests fail without any."""
    check_texts(ROOT, mutations)
    with tempfile.TemporaryDirectory(prefix="colmlm-invariants-") as folder:
        copy, outcomes = Path(folder).resolve(), list[Outcome]()
        copy_project(copy)
        tests = dict.fromkeys(test for mutation in mutations for test in mutation.tests)
        print(f"{len(mutations)} mutations; first their tests as they are", file=sys.stderr)
        code, said = run_tests(copy, [OF_THE_COPY, *tests])
        if code != 0:
            sys.exit(f"{said[-2000:]}\nThe tests fail where nothing is broken.")
        for number, mutation in enumerate(mutations, start=1):
            outcomes.append(outcome := look(copy, mutation))
            told = f"{mutation.name}\n    {outcome.verdict}  {outcome.why}"
            print(f"[{number}/{len(mutations)}] {outcome.seconds:.0f} s {told}", file=sys.stderr, flush=True)
        check_texts(copy, mutations)
    return outcomes


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Write the outcomes in Markdown."""
    yield "| invariant | broken in | seen by | seconds |\n|---|---|---|---|"
    for one in outcomes:
        yield f"| {one.mutation.name} | `{one.mutation.file}` | `{one.verdict}` | {one.seconds:.1f} |"
    yield f"\n{sum(one.seen_by is not None for one in outcomes)} of {len(outcomes)} are seen."


def main() -> int:
    """Say which of the broken invariants are seen; give 0 where all are."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options.add_argument("--only", default="", metavar="PART", help="those with this in their name or file")
    given = options.parse_args()
    outcomes = check_all([m for m in MUTATIONS if given.only in f"{m.name} {m.file}"])
    seen = [one for one in outcomes if one.seen_by is not None]
    errors = [{"name": one.mutation.name, "error": one.error} for one in outcomes if one.error is not None]
    missed = [one.mutation.name for one in outcomes if one.seen_by is None and one.error is None]
    found = {"mutations": len(outcomes), "seen": len(seen), "missed": missed, "errors": errors}
    print(json.dumps(found) if given.json else "\n".join(table(outcomes)))
    for error in errors:
        print(f"\n{error['name']}\n{error['error']}", file=sys.stderr)
    return 0 if outcomes and len(seen) == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
