"""Files and arguments that nobody means: each is refused with its cause, without a traceback, and nothing is done."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run

WHY = ("--reason", "a test")
TOO_LONG = "x" * 200_000
FILES = {
    "empty.csv": b"",
    "blank.csv": b"\n\n  \n",
    "bytes.csv": b"fact_id,verdict,question,value\n\xff\xfe\x00,\x80,\xff,\xfe\n",
    "nul.csv": b"fact_id,verdict,value,question\n1\x00,accept\x00,va\x00lue,q\x00?\n",
    "long.csv": f"fact_id,verdict,value,question\n1,accept,{TOO_LONG},{TOO_LONG}\n".encode(),
    "quote.csv": b'fact_id,verdict,value,question\n1,"accept,"x"y,"\n',
    "wide.csv": b"fact_id,verdict,question,value\n1,accept,q,v,more,and more\n",
    "twice.csv": b"fact_id,fact_id,question,question\n1,2,a,b\n",
    "empty.jsonl": b"",
    "nothing.jsonl": b"null\n",
    "list.jsonl": b"[1, 2]\n",
    "open.jsonl": b'{"fact_id": 1, "verdict": \n',
    "deep.jsonl": b'{"fact_id": ' + b"[" * 100_000 + b"\n",
    "big.jsonl": b'{"fact_id": ' + b"9" * 5_000 + b', "verdict": "accept", "question": "q", "value": "v"}\n',
    "types.jsonl": b'{"fact_id": {}, "verdict": ["accept"], "question": ["q"], "value": {"v": 1}}\n',
    "verdict.jsonl": b'{"fact_id": 1, "verdict": ["accept"]}\n{"fact_id": 1, "verdict": {}}\n',
    "review.jsonl": b'{"fact_id": 1, "verdict": "accept", "review": ["proposed"], "version": [1]}\n',
    "values.jsonl": b'{"fact_id": 1, "value": ["v"], "question": "q"}\n{"question": "q", "value": [["v"]]}\n',
    "float.jsonl": b'{"fact_id": 1.5, "verdict": "accept", "question": 1.5, "value": 1e999}\n',
    "surrogate.jsonl": b'{"fact_id": 1, "verdict": "\\ud800", "question": "\\ud800", "value": "\\udc00"}\n',
    "said.jsonl": b'{"fact_id": 1, "verdict": "accept", "\\ud800": 1, "question": "q", "value": "\\udc00"}\n',
}
COMMANDS = {
    "verdicts": ("review", "settle", *WHY, "--file"),
    "edits": ("facts", "edit", *WHY, "--file"),
    "questions": ("questions", "add", "s", "--file"),
}


def test_no_bad_file_is_used(run: Run, keyed: list[int], tmp_path: Path) -> None:
    before = run("facts", "list", "--json").json, run("log", "list", "--json").json
    for name, said in FILES.items():
        file = tmp_path / name
        file.write_bytes(said)
        for what, command in COMMANDS.items():
            done = run(*command, file)
            is_empty = what == "edits" and not said  # which edits nothing
            assert done.code in ({0} if is_empty else {2, 3}), (what, name, done)
            assert len(done.err) < 2_000, (what, name)
    assert (run("facts", "list", "--json").json, run("log", "list", "--json").json) == before
    assert run("questions", "list", "--json").json == {"sets": []}


def test_what_does_not_go_together_is_refused(run: Run, keyed: list[int], tmp_path: Path) -> None:
    file = tmp_path / "file.csv"
    file.write_text("fact_id,verdict\n1,accept\n")
    before = run("log", "list", "--json").json
    for words in (
        ("review", "settle", *WHY),
        ("review", "settle", "accept", *WHY),
        ("review", "settle", "accept", 1, "--file", file, *WHY),
        ("misses", "settle", "dismiss", 1, "--fact", 1, *WHY),
        ("misses", "settle", "solve", 1, 2, "--fact", 1, *WHY),
        ("erase", "settle", "withdraw", 1, "--now", "--yes"),
        ("facts", "edit", 1, "--text", "x", "--value", "y", *WHY),
        ("facts", "edit", 1, "--value", "y", "--allow-erased", *WHY),
        ("facts", "edit", "--file", file, "--start", 1, *WHY),
        ("facts", "compare", "duplicates", "--held"),
        ("questions", "threshold", "--wrong", 0.1),
        ("questions", "threshold", "--calibrate", "--shipped"),
        ("keysets", "activate"),
        ("trace", "fact", 1, "--impact", "--format", "prov"),
        ("log", "verify", "--offline"),
        ("log", "verify", file, "--against", file),
        ("corpus", "list", "atlas", "--stats"),
        ("webhooks", "edit", 1),
        ("webhooks", "edit", 1, "--pause", "--replay-from", 1),
        ("db", "status", "--show-password"),
        ("jobs", "list", 1, "--timeout", 1),
    ):
        assert run(*words).code == 2, words
    assert run("log", "list", "--json").json == before
