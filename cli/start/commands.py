"""The tables of all commands of `colmlm` and of their verbs: the module of each, and its line in a list.

A command's module is imported only when the command is called or its options are completed, so that help and the
completion of names are fast. The verbs are written here a second time; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple


class Lazy(NamedTuple):
    """A command that is imported when it is called. `where` is its module, and its function or Typer app there.

    `help` is its line in a list of commands; `examples` is the name of a function's examples in that module.
    """

    where: str
    help: str
    examples: str | None = None

    def command(self, name: str) -> Any:
        """Import the module and give its command, under this name."""
        return _import_command(self, name)


@cache
def _import_command(lazy: Lazy, name: str) -> Any:
    from importlib import import_module

    import typer

    from colmlm.cli.start.command import Command

    module_name, _, attribute = lazy.where.partition(":")
    module = import_module(module_name)
    app = getattr(module, attribute)
    if not isinstance(app, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(name, epilog=getattr(module, lazy.examples) if lazy.examples else None)(app)
        app = alone
    for group in (app, *(nested.typer_instance for nested in app.registered_groups if nested.typer_instance)):
        for registered in group.registered_commands:
            registered.cls = Command
    command = typer.main.get_command(app)
    command.name = name
    return command


COMMANDS: Mapping[str, Lazy] = MappingProxyType(
    {
        "up": Lazy(
            "colmlm.cli.operating.serving:up",
            "Start everything: database, demo corpus, keys, a token, and the API and console.",
            examples="UP_EXAMPLES",
        ),
        "serve": Lazy(
            "colmlm.cli.operating.serving:serve",
            "Serve the API and the console on a knowledge base that is there already.",
            examples="SERVE_EXAMPLES",
        ),
        "mcp": Lazy(
            "colmlm.cli.operating.mcp:mcp",
            "Serve the Model Context Protocol: lookups, answers and edits as tools of assistants.",
            examples="EXAMPLES",
        ),
        "demo": Lazy(
            "colmlm.cli.contents.demo:demo",
            "Ask for facts, delete them, ask again, restore them, ask a third time. Run `colmlm up` first.",
            examples="EXAMPLES",
        ),
        "generate": Lazy(
            "colmlm.cli.contents.answers:generate",
            "Decode a prompt with lookups, and store the output with the evidence for every spliced span.",
            examples="GENERATE_EXAMPLES",
        ),
        "lookup": Lazy(
            "colmlm.cli.contents.answers:lookup",
            "Find the facts nearest to a question, without decoding. No match is a normal result.",
            examples="LOOKUP_EXAMPLES",
        ),
        "ask": Lazy(
            "colmlm.cli.contents.answers:ask",
            "Answer a question from the documents, with the place that says it.",
            examples="ASK_EXAMPLES",
        ),
        "questions": Lazy(
            "colmlm.cli.contents.questions:app",
            "Keep questions with the values they should get, ask them, and compare runs.",
        ),
        "facts": Lazy(
            "colmlm.cli.contents.facts:app",
            "List, show, add, edit, delete and restore facts, undo that, and compare them.",
        ),
        "review": Lazy(
            "colmlm.cli.contents.review:app",
            "Review facts that a machine marked: list, settle, and say where only accepted ones answer.",
        ),
        "erase": Lazy(
            "colmlm.cli.removal.erase:app",
            "Erase facts for good, live or deleted, all of them or none. Nothing brings them back.",
        ),
        "person": Lazy(
            "colmlm.cli.auditing.trace:person_app",
            "Find a person in everything that is stored, and plan what to erase.",
        ),
        "hold": Lazy(
            "colmlm.cli.removal.holds:app",
            "Hold facts, documents or corpora, so that nothing deletes them by a rule or erases them.",
        ),
        "forget": Lazy(
            "colmlm.cli.removal.forget:app", "Forget sets of facts: plan, apply, verify, undo, certify."
        ),
        "corpus": Lazy(
            "colmlm.cli.contents.corpus:app",
            "Add, sync, annotate, export, retain, delete and list corpora.",
        ),
        "misses": Lazy(
            "colmlm.cli.contents.misses:app",
            "What was asked and found nothing, as a work list: list, settle.",
        ),
        "trace": Lazy(
            "colmlm.cli.auditing.trace:app",
            "Trace outputs to facts and facts to outputs, and mend what is wrong.",
        ),
        "log": Lazy(
            "colmlm.cli.auditing.log:app",
            "Read, verify, export and seal the change log, and compare two points in time.",
        ),
        "backup": Lazy(
            "colmlm.cli.operating.backup:app",
            "Write a knowledge base to one file, check the file, restore it.",
        ),
        "keysets": Lazy("colmlm.cli.keysets.keysets:app", "Make, fill, check, activate and retire keysets."),
        "checkpoint": Lazy("colmlm.cli.keysets.checkpoint:app", "Describe and export checkpoints."),
        "db": Lazy(
            "colmlm.cli.operating.database:app",
            "Start, stop, migrate, describe and size the database.",
        ),
        "tokens": Lazy(
            "colmlm.cli.operating.tokens:app",
            "Make, list, rotate and revoke tokens, by which the API knows who calls it.",
        ),
        "webhooks": Lazy(
            "colmlm.cli.operating.webhooks:app",
            "Send the changes of the log to other programs: signed, in order, at least once.",
        ),
        "jobs": Lazy("colmlm.cli.operating.jobs:app", "Start, list and cancel long work."),
        "worker": Lazy(
            "colmlm.cli.operating.jobs:worker",
            "Do the long work that the server, the console and `colmlm jobs start` queue.",
            examples="WORKER_EXAMPLES",
        ),
        "weights": Lazy(
            "colmlm.cli.operating.serving:weights",
            "Install the weights that the released models stand on, where they are missing.",
            examples="WEIGHTS_EXAMPLES",
        ),
        "doctor": Lazy(
            "colmlm.cli.operating.doctor:doctor",
            "Check this installation and change nothing: packages, settings, home, disk, database, keys, index, model.",
            examples="EXAMPLES",
        ),
        "reader": Lazy(
            "colmlm.cli.training.tuning:app",
            "Measure the reader, which finds the answer to a question in passages.",
        ),
        "train": Lazy("colmlm.cli.training.train:app", "Train a checkpoint on annotated corpora."),
    }
)


VERBS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "questions": {
            "add": "Add questions to a set, with the values that count as right.",
            "list": "List the sets of questions, or show one: its questions with their values, or its runs.",
            "run": "Ask all questions of a set, and say which are right, wrong and abstained, and why.",
            "compare": "Compare two runs of a set: which questions came out otherwise, and what was changed between.",
            "remove": "Remove questions of a set, or the whole set with its runs.",
            "threshold": "Show or calibrate the score from which answers are given, and what speaks against it by now.",
        },
        "facts": {
            "list": "Search and list live facts, with how many there are.",
            "show": "Show a fact, live or deleted, and where it comes from.",
            "add": "Add a fact: by question and value, or one that a document says.",
            "edit": "Give a fact another value or question, or move it within its document.",
            "undo": "Undo an add, edit, move, delete, restore, note or verdict, all of that change.",
            "delete": "Delete facts: all of them in one change, or none.",
            "restore": "Bring deleted facts back with the value they had last: all of them in one change, or none.",
            "verify": "Read the document's file or address again, and say whether it still says a fact.",
            "compare": "List live facts that contradict each other, say the same, or are behind their document's text.",
        },
        "review": {
            "list": "List proposed facts, those first where most is at stake: cited, doubted, contradicting, others.",
            "settle": "Accept facts, reject or propose them again; or carry out the verdicts of a file.",
            "limit": "Let only accepted facts answer, of a corpus or in a keyset, or proposed ones too.",
        },
        "erase": {
            "facts": "Erase facts for good, live or deleted, all of them or none.",
            "scan": "Search the files of server, index and home for erased texts and keys.",
            "settle": "Approve a request to erase facts, which are then gone for good; withdraw it; or list requests.",
            "certificate": "Give the signed certificate of an erasure as of now, as JSON on stdout or as a file.",
        },
        "person": {
            "find": "Find every place that names a person, and plan to erase what is sure.",
        },
        "hold": {
            "place": "Place a hold on facts, documents or whole corpora, or approve one that was asked for.",
            "list": "List holds, oldest first, or show one: what it keeps, who placed it, and why.",
            "release": "End a hold, so that what it kept may go again.",
        },
        "forget": {
            "plan": "Choose facts (they must match every option) and show what forgetting them would do.",
            "apply": "Forget the facts of a plan: all of them in one change, or none.",
            "undo": "Undo an applied run: all its facts are restored in one change, as they were.",
            "verify": "Ask for the forgotten facts with every check there is.",
            "list": "List forget runs, oldest first, or show one: its plan, its state now, and its last verification.",
            "certificate": "Give the signed certificate of a verified run, as JSON on stdout or as a file.",
        },
        "corpus": {
            "add": "Read documents, annotate their facts, ingest them and give the facts keys.",
            "annotate": "Mark the facts of raw documents, with a question for each.",
            "sync": "Follow a folder: add its new and changed files to a corpus, "
            "and take out the documents of files that are gone.",
            "export": "Write a corpus in a form that `colmlm corpus add` reads.",
            "delete": "Delete every live fact of a corpus, or of some of its documents, in one change.",
            "retain": "Show or set after how many days the documents of a corpus go, what would go now.",
            "list": "List the corpora, or one: documents, live facts, deleted facts, characters.",
            "documents": "List documents in the order of their ids, or show one: its text as it was ingested.",
        },
        "misses": {
            "list": "List groups of questions that found nothing, or show one, with the facts near each.",
            "settle": "Dismiss groups, reopen them, or solve one by a fact that is there or is added now.",
        },
        "trace": {
            "output": "Show a stored output with the fact, document and offsets behind every spliced span.",
            "outputs": "List stored outputs, newest first.",
            "fact": "Show a fact's source sentence, its versions, who changed it and why.",
            "feedback": "Say whether an output is right: thumb up or down.",
        },
        "log": {
            "list": "Show who changed what, when and why, newest first.",
            "verify": "Check the hash of every change.",
            "seal": "Acknowledge breaks of the log that are known, such as a row that somebody inserted by hand.",
            "export": "Write the head of the change log, signed by the key of this installation.",
            "denials": "Show requests to the API that were refused for who made them or how often, newest first.",
            "diff": "Compare the facts as of two changes: show those that differ, with both values, by their ids.",
        },
        "backup": {
            "create": "Write everything to one file, from one snapshot, while edits and lookups go on.",
            "verify": "Read a backup to its last byte and compare every checksum; needs no database.",
            "restore": "Fill an empty, migrated database from a backup: everything, or nothing.",
        },
        "keysets": {
            "check": "Measure a keyset before it answers, and store the report.",
            "activate": "Make this keyset the one that answers, in every process.",
            "rollback": "Activate again, at once, the keyset that was active before this one.",
            "threshold": "Show, set or calibrate a keyset's threshold.",
            "list": "List the keysets: their checkpoints, which one is active, how many facts lack a key.",
            "create": "Make a keyset of a checkpoint, or take the one it has, and give every live fact a key in it.",
            "fill": "Make the keys that a keyset lacks.",
            "retire": "Drop a keyset's keys for good; only a rekey brings them back.",
        },
        "checkpoint": {
            "info": "Show which checkpoint this is, the dimension of its keys and how it was trained.",
            "export": "Write the checkpoint as a plain model for other programs.",
            "push": "Export the checkpoint and push it to the Hugging Face hub, as one commit.",
            "pull": "Fetch a checkpoint from the Hugging Face hub, and check its files.",
        },
        "db": {
            "up": "Start the embedded database, migrate it and leave it running until `colmlm db down`.",
            "down": "Stop the embedded database, also where a program still uses it.",
            "migrate": "Bring the schema to what this program needs.",
            "status": "Say whether the database runs, where it is and whether it needs a migration.",
            "sizing": "Say what so many facts take: database, index, memory, disk, lookups a second.",
        },
        "tokens": {
            "create": "Make a token and print its secret, this once: only a digest of it is kept.",
            "list": "List every token, the ended ones too; never a secret.",
            "rotate": "Give a token a new secret, printed this once.",
            "revoke": "End a token and all its secrets for good, at once and in every process.",
        },
        "webhooks": {
            "add": "Add a webhook and print the secret that its messages are signed with, this once.",
            "list": "List webhooks, how far each was told, and what went wrong last; never a secret.",
            "edit": "Pause a webhook, resume it, or replay the changes from one on.",
            "test": "Send a signed message that is about no change, now. The exit code is 1 where it is not taken.",
            "remove": "End a webhook for good. To have it wait, pause it.",
        },
        "jobs": {
            "start": "Queue a job.",
            "list": "List jobs, newest first, or show one: its arguments, how far it is, and its result.",
            "cancel": "Cancel a job: one that waits at once, one that runs before its next piece of work.",
        },
        "reader": {
            "evaluate": "Measure the reader: answers in passages that hold them, and how well it tells others.",
        },
        "train": {
            "shards": "Tokenise files once, for runs that read them while they train.",
            "spans": "Train the span annotator.",
            "questions": "Train the question generator on the questions of annotated documents.",
            "reader": "Train the reader on the questions of SQuAD files.",
            "release": "Write a run's trained weights in half precision, with the config and without optimiser state.",
        },
    }
)
