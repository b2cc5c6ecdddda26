"""Builds the demo corpus: `python -m colmlm.lab.demo_corpus` turns the structured facts beside it into corpus.jsonl.

`python -m colmlm.lab.demo_corpus keys` makes the keys that come with it, in some minutes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from colmlm.kb.demo import DEMO_CORPUS, DEMO_KEYS

SOURCES = ("nature.json", "places.json", "people.json")
MIN_DOCUMENTS, MIN_FACTS, MIN_RESTATED = 150, 1500, 100
MARK = re.compile(r"\{([^{}|]+)\|([^{}|]+)\}")


@dataclass(frozen=True)
class Fact:
    """One annotated span: text[start:end] is the value of the fact, and `question` what it answers."""

    start: int
    end: int
    value: str
    question: str
    answer: str


@dataclass(frozen=True)
class Document:
    """One corpus line, fields in the order they are written."""

    id: str
    title: str
    uri: str
    licence: str
    revision: str
    text: str
    facts: list[Fact]


def digest(*parts: str) -> int:
    """Give a number that depends only on the parts, so that every build makes the same choices."""
    return int.from_bytes(hashlib.sha256("\x1f".join(parts).encode()).digest()[:8], "big")


def pick(options: list[str], *key: str) -> str:
    """Choose one of the options by the key."""
    return options[digest(*key) % len(options)]


def capitalise_first(sentence: str) -> str:
    """Give the sentence with its first letter in upper case."""
    return sentence[:1].upper() + sentence[1:]


def compose(doc_id: str, title: str, sentences: Iterable[str]) -> Document:
    """Join marked sentences to a document, and turn their marks into facts."""
    text, facts = "", list[Fact]()
    for sentence in sentences:
        text += " " if text else ""
        last = 0
        marked = capitalise_first(sentence)
        for mark in MARK.finditer(marked):
            text += marked[last : mark.start()]
            value, question = mark[1], mark[2]
            facts.append(Fact(len(text), len(text) + len(value), value, question, value))
            text += value
            last = mark.end()
        text += marked[last:]
    return Document(
        doc_id, title[0].upper() + title[1:], f"colmlm:demo/{doc_id}", "Apache-2.0", "1", text, facts
    )


def fill(template: str, entity: dict[str, Any]) -> str:
    """Fill a template with the entity's subject and its name in running text (by default its title)."""
    name: str = entity.get("name", entity["title"])
    return template.replace("{title}", name).replace("{subject}", entity["subject"])


def attribute_sentence(entity: dict[str, Any], name: str, attribute: dict[str, Any], first: bool) -> str:
    """Give one marked sentence for one attribute. The first of a document always names the title."""
    named = [variant for variant in attribute["sentences"] if "{title}" in variant]
    template = pick(named if first else attribute["sentences"], entity["id"], name, "variant")
    if template.count("{value}") != 1:
        raise ValueError(f"{entity['id']}/{name}: a sentence needs {{value}} exactly once: {template}")
    mark = "{" + entity["facts"][name] + "|" + attribute["question"] + "}"
    return fill(template.replace("{value}", mark), entity)


def entity_document(entity: dict[str, Any], kinds: dict[str, Any]) -> Document:
    """Compose the document of one entity: its attributes in an order of its own, then its extra sentences."""
    attributes: dict[str, Any] = kinds[entity["kind"]]["attributes"]
    unknown = set(entity["facts"]) - set(attributes)
    if unknown:
        raise ValueError(f"{entity['id']}: no such attributes: {sorted(unknown)}")
    names = sorted(entity["facts"], key=lambda name: digest(entity["id"], name, "order"))
    titled = [n for n in names if any("{title}" in variant for variant in attributes[n]["sentences"])]
    names.sort(key=lambda name: name != titled[0])
    sentences = [attribute_sentence(entity, n, attributes[n], n == names[0]) for n in names]
    sentences += [fill(sentence, entity) for sentence in entity.get("extra", [])]
    return compose(entity["id"], entity["title"], sentences)


def load_documents(folder: Path) -> list[Document]:
    """Compose the documents of every source file: entities first, then overviews, file by file."""
    documents: list[Document] = []
    for path in (folder / name for name in SOURCES):
        if path.exists():
            source: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            documents += [entity_document(entity, source["kinds"]) for entity in source["entities"]]
            documents += [compose(o["id"], o["title"], o["sentences"]) for o in source["overviews"]]
    return documents


def document_faults(document: Document) -> list[str]:
    """List the faults within one document."""
    faults, last = list[str](), 0
    if re.search(r"[{}|]", document.text) or not document.facts:
        faults.append("markup left in the text, or no facts")
    for fact in document.facts:
        if document.text[fact.start : fact.end] != fact.value or fact.value != fact.value.strip():
            faults.append(f"span is not its value: {fact}")
        if fact.start < max(last, 1):
            faults.append(f"span overlaps another or opens the text: {fact}")
        if re.search(rf"(?<!\w){re.escape(fact.answer)}(?!\w)", fact.question, re.IGNORECASE):
            faults.append(f"answer inside its question: {fact.answer!r} in {fact.question!r}")
        last = fact.end
    repeated = [q for q, n in Counter(fact.question for fact in document.facts).items() if n > 1]
    faults += [f"question asked twice in one document: {question}" for question in repeated]
    return [f"{document.id}: {fault}" for fault in faults]


def corpus_faults(documents: list[Document], counts: dict[str, int]) -> list[str]:
    """List the faults of the whole corpus: repeated ids, contradicting answers, and sizes below the aim."""
    ids = Counter(document.id for document in documents)
    faults = [f"id used {n} times: {doc_id}" for doc_id, n in ids.items() if n > 1]
    answers: defaultdict[str, set[str]] = defaultdict(set)
    for document in documents:
        for fact in document.facts:
            answers[fact.question].add(fact.answer)
    faults += [f"different answers: {q} {sorted(found)}" for q, found in answers.items() if len(found) > 1]
    least = {"documents": MIN_DOCUMENTS, "facts": MIN_FACTS, "restated": MIN_RESTATED}
    return faults + [f"{counts[k]} {k}, fewer than {n}" for k, n in least.items() if counts[k] < n]


def count(documents: list[Document]) -> dict[str, int]:
    """Count documents, facts, facts restated in other documents, and spans whose value occurred earlier."""
    pairs = Counter(pair for d in documents for pair in {(fact.question, fact.value) for fact in d.facts})
    copied = sum(
        re.search(rf"(?<!\w){re.escape(f.value)}(?!\w)", d.text[: f.start]) is not None
        for d in documents
        for f in d.facts
    )
    return {
        "documents": len(documents),
        "facts": sum(len(document.facts) for document in documents),
        "restated": sum(n > 1 for n in pairs.values()),
        "value seen earlier in its text": copied,
    }


def main(folder: Path = DEMO_CORPUS.parent) -> int:
    """Write the corpus beside its sources and print its counts. Gives 1, with reasons on stderr, if a check fails."""
    documents = load_documents(folder)
    lines = [json.dumps(asdict(document), ensure_ascii=False) + "\n" for document in documents]
    (folder / DEMO_CORPUS.name).write_text("".join(lines), encoding="utf-8")
    counts = count(documents)
    print(", ".join(f"{name}: {n}" for name, n in counts.items()))
    faults = [fault for document in documents for fault in document_faults(document)]
    faults += corpus_faults(documents, counts)
    print("".join(f"fault: {fault}\n" for fault in faults), end="", file=sys.stderr)
    return 1 if faults else 0


def write_keys(path: Path = DEMO_KEYS) -> int:
    """Key a base with the released checkpoint as the first start does, and write its keys to a file."""
    from colmlm.cli.composition.encoders import KeyRecorder, ModelEncoder
    from colmlm.cli.composition.keying import key_everything
    from colmlm.cli.composition.runtime import Runtime, released_checkpoint
    from colmlm.kb.corpus.format import read_annotated
    from colmlm.lab.bench.machine import ACTOR, REASON, empty_base
    from colmlm.model.lm.checkpoint import load

    runtime = Runtime.from_environment()
    encoder = KeyRecorder(ModelEncoder(load(released_checkpoint(), runtime.settings.home / "models")))
    with empty_base() as kb:
        kb.corpora.ingest(read_annotated(DEMO_CORPUS), "demo", actor=ACTOR, reason=REASON)
        key_everything(runtime, encoder=encoder, kb=kb)
    encoder.write(path)
    path.chmod(0o644)
    return 0


if __name__ == "__main__":
    sys.exit(write_keys() if sys.argv[1:] == ["keys"] else main())
