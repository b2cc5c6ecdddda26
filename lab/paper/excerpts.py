"""Write parts of the evaluation data as files that `colmlm` reads.

`python -m colmlm.lab.paper.excerpts PART DATA OUT [--rows N]`; `lab/paper/Makefile` calls it, and the scripts for a
rented accelerator name the same parts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import ByteLevelBPETokenizer

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, read_annotated, to_record
from colmlm.kb.corpus.squad import read_squad, squad_identity
from colmlm.model.text.markup import read_triplets
from colmlm.model.text.tokens import END_OF_TEXT
from colmlm.model.training.steps import quiz_documents

Record = dict[str, Any]


def lines(source: Path, rows: int | None) -> Iterator[Record]:
    """Yield the first records of JSON Lines, gzipped or not."""
    with gzip.open(source) if source.suffix == ".gz" else source.open("rb") as file:
        yield from (json.loads(line) for line in islice(file, rows) if line.strip())


def spread(source: Path, rows: int | None) -> list[Record]:
    """Give records of JSON Lines at even distances. Neighbours are alike, so this samples every part."""
    return _evenly(list(lines(source, None)), rows)


def covered_articles(source: Path, rows: int | None, *, by: Path) -> list[Record]:
    """Give articles whose subjects have a lead among the vital articles, which says some of it in other words."""
    titles = {lead["title"].casefold() for lead in leads(by, None)}
    return [article for article in lines(source, None) if article["title"].casefold() in titles][:rows]


def questions(source: Path, rows: int | None) -> Iterator[Record]:
    """Yield questions of PopQA's rows with passages, at even distances, since the rows are sorted by relation."""
    for row in _rows(source, rows):
        yield {name: row[name] for name in ("question", "possible_answers", "s_pop")}


def passages(source: Path, rows: int | None) -> Iterator[Record]:
    """Yield, as documents, the passages of the rows that `questions` takes, each once."""
    seen = set()
    for row in _rows(source, rows):
        for passage in row["paragraphs"]:
            name = sha256(f"{passage['title']}\n{passage['text']}".encode()).hexdigest()[:16]
            if name not in seen and passage["text"].strip():
                seen.add(name)
                yield {"id": name, "title": passage["title"], "text": passage["text"]}


def paragraphs(source: Path, rows: int | None) -> Iterator[Record]:
    """Yield the bare paragraphs of the rows of SQuAD that `spread` takes, as documents."""
    yield from map(_bare_paragraph, spread(source, rows))


def _bare_paragraph(row: Record) -> Record:
    title = row["title"] and row["title"].replace("_", " ")
    return {"id": squad_identity(title, row["context"]), "title": title, "text": row["context"]}


def leave_out(records: Iterable[Record], left_out: Iterable[Record], rows: int | None) -> Iterator[Record]:
    """Yield the first records that are not left out."""
    dropped = {json.dumps(record) for record in left_out}
    return islice((record for record in records if json.dumps(record) not in dropped), rows)


def leads(source: Path, rows: int | None) -> Iterator[Record]:
    """Yield the leads of the vital articles, which are stored by title, as documents."""
    articles = json.loads(source.read_text(encoding="utf-8")).items()
    for name, article in islice(articles, rows):
        if article["extract"].strip():
            yield {"id": name, "title": article["title"], "text": article["extract"]}


def leads_of(source: Path, rows: int | None, *, articles: Path) -> list[Record]:
    """Give the leads of the articles that `covered` gives."""
    titles = {article["title"].casefold() for article in covered_articles(articles, rows, by=source)}
    return [lead for lead in leads(source, None) if lead["title"].casefold() in titles]


RARE_VIEWS = 100


def rare_questions(source: Path, rows: int | None) -> Iterator[Record]:
    """Yield PopQA's questions about subjects with fewer than a hundred views, the paper's long tail."""
    rare = [row for row in _rows(source, None) if int(row["s_pop"]) < RARE_VIEWS]
    for row in _evenly(rare, rows):
        yield {"question": row["question"], "possible_answers": row["possible_answers"]}


def statements_covered(folder: Path, rows: int | None, *, by: Path) -> list[Record]:
    """Give rows of T-REx whose subject has a lead among the vital articles that says the object."""
    texts = {lead["title"]: lead["text"] for lead in leads(by, None)}
    found = [
        {"relation": file.stem, "sub_label": row["sub_label"], "obj_label": row["obj_label"]}
        for file in sorted(folder.glob("*.jsonl"))
        for row in lines(file, None)
        if re.search(rf"\b{re.escape(row['obj_label'])}\b", texts.get(row["sub_label"], ""))
    ]
    return _evenly(found, rows)


def leads_of_statements(folder: Path, rows: int | None, *, by: Path) -> list[Record]:
    """Give the leads of the subjects of the rows that `statements_covered` gives."""
    subjects = {row["sub_label"] for row in statements_covered(folder, rows, by=by)}
    return [lead for lead in leads(by, None) if lead["title"] in subjects]


# Facts that a knowledge base can say: those of articles whose value is a fact of the same subject in its lead.


def answerable(folder: Path, rows: int | None) -> Iterator[Record]:
    """Yield the documents of articles.jsonl with those facts alone whose value leads.jsonl has for the same title."""
    known: dict[str, set[str]] = defaultdict(set)
    for lead in lines(folder / "leads.jsonl", None):
        known[lead["title"].casefold()] |= {fact["value"].casefold() for fact in lead["facts"]}
    for article in lines(folder / "articles.jsonl", rows):
        said = known[article["title"].casefold()]
        facts = [fact for fact in article["facts"] if fact["value"].casefold() in said]
        if facts:
            yield article | {"facts": facts}


# Texts to train from random weights on, with few facts that nothing measures.

SHORT, TOKENS = 900, 8192  # characters of a text, and tokens of a vocabulary that is learnt from them


def short_texts(data: Path, rows: int | None) -> list[Record]:
    """Give short paragraphs of SQuAD with people's questions, and as many short articles, mixed."""
    parsed = (one.document for one in read_squad(data / "squad" / PARAGRAPHS))
    asked = [to_record(one) for one in parsed if one is not None and len(one.text) <= SHORT]
    measured = {article["title"] for article in lines(data / "simplewiki" / "eval_1k.jsonl.gz", None)}
    articles = lines(data / "simplewiki" / "articles_20k.jsonl.gz", None)
    short = [one for one in articles if len(one["text"]) <= SHORT and one["title"] not in measured]
    named = [article | {"id": str(article["id"])} for article in _evenly(short, rows)]
    mixed = [*_evenly(asked, rows), *named]
    random.Random(0).shuffle(mixed)
    return mixed


def facts_and_marks(folder: Path, rows: int | None) -> Iterator[Record]:
    """Yield the documents of texts.jsonl with their facts, and the marks of texts.marked.jsonl that touch none."""
    marked = {str(row["id"]): row["facts"] for row in lines(folder / "texts.marked.jsonl", None)}
    for row in lines(folder / "texts.jsonl", rows):
        own = row.get("facts", [])
        free = [
            mark
            for mark in marked[str(row["id"])]
            if all(mark["end"] <= fact["start"] or fact["end"] <= mark["start"] for fact in own)
        ]
        yield row | {"facts": sorted((*own, *free), key=lambda fact: fact["start"])}


def vocabulary(folder: Path, rows: int | None) -> list[Record]:
    """Give a tokenizer of bytes whose vocabulary is learnt from texts.jsonl."""
    learnt = ByteLevelBPETokenizer()
    texts = (row["text"] for row in lines(folder / "texts.jsonl", rows))
    learnt.train_from_iterator(texts, vocab_size=TOKENS, special_tokens=[END_OF_TEXT], show_progress=False)
    return [json.loads(learnt.to_str())]


# The paragraphs of SQuAD that Rel-LMLM's authors annotated, as each method reads them.
#
# An id begins with "asked" where the paragraph is also in the SQuAD file here, whose people's questions can be asked,
# and with "read" where it is not. Their annotator changed a letter here and there, so one end of a paragraph suffices.
# The texts begin with a title, which the calls name as their entity.

CALLED, PARAGRAPHS = "squad-train1k_annotated.json", "train.jsonl"
_END = 60  # letters and digits by which a paragraph is known


@dataclass(frozen=True, slots=True)
class CalledParagraph:
    """A document with its calls, its plain title and text, and the row of SQuAD that asks about it, if one does."""

    document: AnnotatedDocument
    title: str
    text: str
    row: Record | None


def called_paragraphs(data: Path) -> Iterator[CalledParagraph]:
    """Yield the paragraphs with calls, from the folder of the evaluation data."""
    file = data / "rel_lmlm" / CALLED
    known = {end: row for row in lines(data / "squad" / PARAGRAPHS, None) for end in _ends(row["context"])}
    plain = [example["text"] for example in json.loads(file.read_text(encoding="utf-8"))["examples"]]
    for parsed, text in zip(read_triplets(file), plain, strict=True):
        title, _, said = text.partition(": ")
        if parsed.document is not None:
            row = next((known[end] for end in _ends(said) if end in known), None)
            name = f"{'read' if row is None else 'asked'}-{parsed.document.external_id}"
            document = replace(parsed.document, external_id=name)
            yield CalledParagraph(document, title.replace("_", " "), said, row)


def _ends(text: str) -> tuple[str, str]:
    bare = "".join(filter(str.isalnum, text.casefold()))
    return bare[:_END], bare[-_END:]


def calls(data: Path, rows: int | None, *, asked: bool) -> Iterator[Record]:
    """Yield the documents with calls as Rel-LMLM reads them: a fact's question is its entity and relation.

    With `asked` these are the ones that people ask about, otherwise the others.
    """
    found = (one.document for one in called_paragraphs(data) if (one.row is not None) == asked)
    yield from map(to_record, islice(found, rows))


def plain_of_calls(data: Path, rows: int | None) -> Iterator[Record]:
    """Yield the plain paragraphs."""
    for one in islice(called_paragraphs(data), rows):
        yield {"id": one.document.external_id, "title": one.title, "text": one.text}


def spans_of_calls(data: Path, rows: int | None) -> Iterator[Record]:
    """Yield the plain paragraphs with a fact where the text itself says the value of a call behind it, once.

    Calls whose value the text says in other words are left out.
    """
    for one in islice(called_paragraphs(data), rows):
        facts: list[FactSpan] = []
        for span in one.document.facts:
            said_value = re.compile(rf"(?<!\w){re.escape(span.value)}(?!\w)")
            found = said_value.search(one.text, facts[-1].end if facts else 0)
            if found:
                facts.append(FactSpan(*found.span(), span.value, span.question))
        yield to_record(AnnotatedDocument(one.document.external_id, one.text, tuple(facts), title=one.title))


def questions_of_calls(data: Path, rows: int | None) -> Iterator[Record]:
    """Yield the rows of the SQuAD file, with people's questions, whose paragraphs have calls."""
    yield from islice((one.row for one in called_paragraphs(data) if one.row is not None), rows)


def quiz_of_calls(folder: Path, rows: int | None) -> Iterator[Record]:
    """Yield documents that ask a question and answer it by a call, from spans.jsonl and the same facts in asked.jsonl.

    The questions of asked.jsonl are in words, those of spans.jsonl an entity and a relation.
    """
    called = {
        (row["id"], fact["start"]): fact["question"]
        for row in lines(folder / "spans.jsonl", None)
        for fact in row["facts"]
    }
    asked = (parsed.document for parsed in read_annotated(folder / "asked.jsonl"))
    for document in islice((one for one in asked if one is not None), rows):
        for quiz, span in zip(
            quiz_documents([document]), [one for one in document.facts if one.question], strict=True
        ):
            (answered,) = quiz.facts
            triplet = called[document.external_id, span.start]
            yield to_record(replace(quiz, facts=(replace(answered, question=triplet),)))


def _rows(source: Path, rows: int | None) -> list[Record]:
    return _evenly(json.loads(source.read_text(encoding="utf-8")), rows)


def _evenly(found: list[Record], rows: int | None) -> list[Record]:
    if rows is None or rows >= len(found):
        return found
    return [found[number * len(found) // rows] for number in range(rows)]


# Items of the sets of understanding, as `colmlm-lab evaluate choices` reads them.
#
# Exemplars come from another split where the folder has one (HellaSwag's), otherwise from a hundred items that are
# drawn once and not scored; the paper drew them from the sets' training splits, which are not there.

EXEMPLARS = 100


def items_of(folder: Path, name: str, number: int, rows: int | None) -> list[Record]:
    """Give the first items of a set (0), or what its exemplars are drawn from (1)."""
    return CHOICES[name](folder)[number][:rows]


def csqa(folder: Path) -> tuple[list[Record], list[Record]]:
    lines = (folder / "csqa_dev.jsonl").read_text(encoding="utf-8").splitlines()
    return set_exemplars_apart([csqa_item(json.loads(line)) for line in lines])


def csqa_item(record: Record) -> Record:
    choices = record["choices"]
    return {
        "context": f"Question: {record['question']}\nAnswer:",
        "choices": choices["text"],
        "answer": choices["label"].index(record["answerKey"]),
    }


def hellaswag(folder: Path) -> tuple[list[Record], list[Record]]:
    splits = json.loads((folder / "hellaswag.json").read_text(encoding="utf-8"))
    items, shots = ([hellaswag_item(record) for record in splits[name]] for name in ("test", "dev"))
    return items, shots


def hellaswag_item(record: Record) -> Record:
    letters = sorted(record["choices"])
    return {
        "context": leave_signs_out(record["question"]),
        "choices": [leave_signs_out(record["choices"][letter]) for letter in letters],
        "answer": letters.index(record["answer"]),
    }


def leave_signs_out(text: str) -> str:
    """Read as lm_eval does: leave the signs of WikiHow out, and let a title end what stands before it."""
    bare = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return bare.replace("  ", " ").strip()


def piqa(folder: Path) -> tuple[list[Record], list[Record]]:
    return set_exemplars_apart(read_instructions(folder / "piqa_test.json", "Solution"))


def siqa(folder: Path) -> tuple[list[Record], list[Record]]:
    return set_exemplars_apart(read_instructions(folder / "siqa_test.json", "Answer"))


def arc_easy(folder: Path) -> tuple[list[Record], list[Record]]:
    return set_exemplars_apart(read_instructions(folder / "arc_easy_test.json", "Answer"))


def read_instructions(file: Path, word: str) -> list[Record]:
    """Read items that were written as instructions, with choices `word`1, `word`2 and so on."""
    return [instruction_item(record, word) for record in json.loads(file.read_text(encoding="utf-8"))]


def instruction_item(record: Record, word: str) -> Record:
    asked, _, names = record["instruction"].rpartition("\n\nAnswer format: ")
    text = asked.partition(" to the question: ")[2]
    choices: list[str] = []
    for number in range(len(names.split("/")), 0, -1):  # from the last: a question may hold the words too
        text, _, choice = text.rpartition(f"{word}{number}: ")
        choices.insert(0, choice.strip())
    if not (question := text.strip()) or not all(choices):
        raise ValueError(f"an item of another form: {record['instruction']!r}")
    return {
        "context": f"Question: {question}\nAnswer:",
        "choices": choices,
        "answer": names.split("/").index(record["answer"]),
    }


def set_exemplars_apart(items: list[Record]) -> tuple[list[Record], list[Record]]:
    """Give the items, and those that exemplars are drawn from instead."""
    drawn = set(random.Random(0).sample(range(len(items)), EXEMPLARS))
    return (
        [item for n, item in enumerate(items) if n not in drawn],
        [item for n, item in enumerate(items) if n in drawn],
    )


CHOICES: dict[str, Callable[[Path], tuple[list[Record], list[Record]]]] = {
    "csqa": csqa,
    "hellaswag": hellaswag,
    "piqa": piqa,
    "siqa": siqa,
    "arc_easy": arc_easy,
}


def _parts(data: Path) -> dict[str, Callable[[int | None], Iterable[Record]]]:
    """Give what makes each part of the data in this folder, from a number of rows (None: all)."""
    popqa = data / "popqa" / "popqa_with_passages_500.json"
    vital = data / "vital_articles" / "summaries_en-us.json"
    articles = data / "simplewiki" / "eval_1k.jsonl.gz"
    train = data / "squad" / "train.jsonl"
    choices: dict[str, Callable[[int | None], Iterable[Record]]] = {
        f"{name}{kind}": partial(items_of, data / "nlu", name, number)
        for name in CHOICES
        for number, kind in enumerate(("", "-shots"))
    }
    return choices | {
        "popqa-rare-questions": lambda rows: rare_questions(popqa, rows),
        "trex": lambda rows: statements_covered(data / "lama_trex", rows, by=vital),
        "trex-leads": lambda rows: leads_of_statements(data / "lama_trex", rows, by=vital),
        "answerable": lambda rows: answerable(data, rows),
        "short-texts": lambda rows: short_texts(data, rows),
        "facts-and-marks": lambda rows: facts_and_marks(data, rows),
        "vocabulary": lambda rows: vocabulary(data, rows),
        "calls-plain": lambda rows: plain_of_calls(data, rows),
        "calls-spans": lambda rows: spans_of_calls(data, rows),
        "calls-quiz": lambda rows: quiz_of_calls(data, rows),
        "squad": lambda rows: spread(data / "squad" / "dev.jsonl", rows),
        "squad-train-texts": lambda rows: map(_bare_paragraph, lines(train, rows)),
        "squad-texts": lambda rows: paragraphs(data / "squad" / "dev.jsonl", rows),
        "squad-uncalled": lambda rows: leave_out(lines(train, None), questions_of_calls(data, None), rows),
        "called": lambda rows: questions_of_calls(data, rows),
        "called-texts": lambda rows: map(_bare_paragraph, questions_of_calls(data, rows)),
        "calls": lambda rows: calls(data, rows, asked=False),
        "called-calls": lambda rows: calls(data, rows, asked=True),
        "popqa-passages": lambda rows: passages(popqa, rows),
        "popqa-questions": lambda rows: questions(popqa, rows),
        "vital": lambda rows: leads(vital, rows),
        "leads": lambda rows: leads_of(vital, rows, articles=articles),
        "covered": lambda rows: covered_articles(articles, rows, by=vital),
        "articles": lambda rows: lines(articles, rows),
    }


def excerpt_lines(part: str, data: Path, rows: int | None) -> Iterator[bytes]:
    """Give a part of the evaluation data in this folder as lines of JSON."""
    if part not in (parts := _parts(data)):
        raise ValueError(f"no part {part!r} of the data; there are {', '.join(sorted(parts))}")
    return (f"{json.dumps(record, ensure_ascii=False)}\n".encode() for record in parts[part](rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=sorted(_parts(Path())))
    parser.add_argument("data", type=Path, help="the folder of the evaluation data")
    parser.add_argument("out", type=Path, help="the JSON Lines file to write")
    parser.add_argument("--rows", type=int, help="take this many rows; default: all")
    asked = parser.parse_args()
    try:
        text = b"".join(excerpt_lines(asked.part, asked.data, asked.rows))
    except FileNotFoundError as error:
        parser.error(f"{error.filename} is missing; name the folder of the evaluation data")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_bytes(text)


if __name__ == "__main__":
    main()
