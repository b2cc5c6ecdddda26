"""A newcomer's first hour: three own documents, ten questions, a fact's question edited, calibrate, duplicates.

`python -m tests.acceptance.newcomer_run` does it in a home of its own, with the released annotators, checkpoint and
reader, prints what came of it as JSON, and ends with 1 where something is not as a newcomer expects it.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from colmlm import connect
from colmlm.kb.evidence.generation import GenerationRequest

Run = Callable[..., Any]

TEXTS = Path(__file__).with_name("newcomer")
WHO_SUPPLIED = "Who supplied the {part}?"
PARTS = (
    "inlet pump", "outlet pump", "heat exchanger", "gear box", "main valve", "relief valve", "pressure gauge",
    "level sensor", "oil cooler", "drive belt", "flywheel", "governor", "control cabinet", "fuse board",
    "spare battery", "air filter", "oil filter", "water filter", "feed hopper", "mixing drum", "conveyor",
    "loading door", "drain cock", "grease nipple", "bearing block", "coupling", "brake disc", "starter motor",
    "alternator", "exhaust flap", "silencer", "smoke probe", "emergency lamp", "service hatch", "ladder",
)  # fmt: skip
MAKERS = (
    "Aalto Works",
    "Bergmann",
    "Castell Brothers",
    "Dorado",
    "Eklund",
    "Gotland Castings",
    "Hallmark Tools",
)
COLOURS = ("red", "blue", "green", "yellow", "white", "black")
# What the documents answer, and what none of them does though it sounds so.
QUESTIONS = {
    "Who founded the Alder Street Library?": "Marta Lindqvist",
    "Who designed the building of the library?": "Ole Brandt",
    "When was the canteen opened?": "1987",
    "Who must approve flights within the country?": "Dag Solberg",
    "Who insures rented cars?": "Northern Mutual",
    "Who built the Halvorsen mill?": "Karl Halvorsen",
    "When was the library of Millbrook opened?": None,
    "Who designed the reading room?": None,
    "Who is the director of the reading room?": None,
    "Who approves hotel bookings?": None,
}
NEW_QUESTION = "Which person do we thank for the very first shelf?"


def manual() -> str:
    """Write a long technical manual as a page: more sentences than a lookup gives facts for."""
    said = [
        "<h1>Manual of the Halvorsen mill</h1><p>The Halvorsen mill was built by Karl Halvorsen in 1968.</p>"
    ]
    for n, part in enumerate(PARTS):
        said.append(
            f"<h2>The {part}</h2><p>The {part} has the part number {100 + 7 * n}. It was supplied by {MAKERS[n % 7]}. "
            f"The {part} weighs {3 + n * 11 % 47} kilograms. Its cover is painted {COLOURS[n % 6]}. It must be "
            f"inspected every {2 + n % 9} months. A new {part} was introduced in {1970 + n}.</p>"
        )
    return "\n".join(said)


def fill(folder: Path) -> None:
    """Write three documents of different kinds: a handbook, a policy and a manual."""
    for text in TEXTS.iterdir():
        (folder / text.name).write_bytes(text.read_bytes())
    (folder / "mill.html").write_text(manual(), encoding="utf-8")


def write_questions(file: Path, wanted: int) -> Path:
    """Write questions about parts of the manual, with their answers, for a calibration."""
    with file.open("w", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow(("question", "value"))
        rows.writerows(
            (WHO_SUPPLIED.format(part=part), MAKERS[n % 7]) for n, part in enumerate(PARTS[:wanted])
        )
    return file


def chat(question: str) -> GenerationRequest:
    """Write a question as chats are written for the model."""
    return GenerationRequest(prompt=f"Question: {question}\nAnswer:", mode="forced")


def rehearse(run: Run, place: Path) -> dict[str, Any]:
    """Do all of it, and tell what came of each step."""
    folder = place / "mine"
    folder.mkdir()
    fill(folder)
    told: dict[str, Any] = {"added": run("corpus", "add", folder, "--corpus", "mine")}
    with connect() as kb:  # one process, so that the model is loaded once for all questions
        told["answers"] = {question: kb.lookups.answer(question) for question in QUESTIONS}
        told["chats"] = {question: kb.decoder.generate(chat(question)) for question in QUESTIONS}
        first = next(fact for fact in kb.facts.find(text="Marta Lindqvist"))
    told["fact"] = first.fact_id
    told["edited"] = run("facts", "edit", first.fact_id, "--question", NEW_QUESTION, "--reason", "asked so")
    told["found"] = run("lookup", NEW_QUESTION, "-k", "1", "--json").json
    told["too few"] = run(
        "questions", "threshold", "--calibrate", "--file", write_questions(place / "few.csv", 7)
    )
    told["calibrated"] = run(
        "questions", "threshold", "--calibrate", "--file", write_questions(place / "asked.csv", 35)
    )
    told["duplicates"] = run("facts", "compare", "duplicates", "--json")
    return told


def faults(told: dict[str, Any]) -> Iterator[str]:
    """Name what is not as a newcomer expects it."""
    for question, value in QUESTIONS.items():
        answer, chat = told["answers"][question], told["chats"][question]
        cited = [splice.value for splice in chat.splices if splice.outcome == "hit"]
        if answer.answer != value:
            yield f"{question} {answer.answer} instead of {value}"
        if cited and answer.abstained:
            yield f"{question} is answered by a chat alone, with {', '.join(cited)}"
        if value is not None and cited[:1] != [value]:
            yield f"{question} is answered by a chat with {cited}"
    if [hit["fact_id"] for hit in told["found"]["hits"]] != [told["fact"]]:
        yield "the question of an edit does not find its fact"
    if "Try:" in told["added"].out and "?" not in told["added"].out.partition("Try:")[2].splitlines()[0]:
        yield "what is to be tried is no question"
    if told["too few"].code != 1 or "Add 25 or more" not in told["too few"].err:
        yield f"too few questions: {told['too few'].err}"
    for step in ("edited", "calibrated", "duplicates"):
        if told[step].code:
            yield f"{step}: {told[step].err}"
    if any("file:" in repr(one) for one in (*told["answers"].values(), *told["chats"].values())):
        yield "a citation names a path of this machine"


def main() -> int:
    from tests.cli.conftest import invoke

    with tempfile.TemporaryDirectory() as place:
        os.environ["COLMLM_HOME"] = str(Path(place) / "home")
        told = rehearse(invoke, Path(place))
        invoke("db", "down")
    found = list(faults(told))
    answers = {question: answer.answer for question, answer in told["answers"].items()}
    print(json.dumps({"answers": answers, "calibrated": told["calibrated"].out, "faults": found}, indent=1))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
