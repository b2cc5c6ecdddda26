"""`colmlm webhooks`: who is sent the changes of the log, and whether that works. A worker delivers them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import MAX_BIGINT, DryRun, Yes, examples, require_somebody, wants_json
from colmlm.cli.output import count_of, note, print_json, print_table, say

if TYPE_CHECKING:
    from colmlm.kb.webhooks.records import Webhook

app = typer.Typer(
    help="Send the changes of the log to other programs: signed, in order, at least once.",
    epilog=examples("colmlm webhooks add https://example.org/hook --kind delete", "colmlm webhooks list"),
)


class MessageForm(StrEnum):
    """The forms of `kb.webhooks.records.FORMATS`, as choices of an option."""

    standard = "standard"
    cloudevents = "cloudevents"


WebhookId = Annotated[
    int, typer.Argument(metavar="WEBHOOK_ID", min=1, max=MAX_BIGINT, help="See `colmlm webhooks list`.")
]
Url = Annotated[str, typer.Argument(metavar="URL", help="Where to send them: https, at a public address.")]


@app.command(
    epilog=examples(
        "colmlm webhooks add https://example.org/hook",
        "colmlm webhooks add https://example.org/hook --kind delete --kind forget --after 0",
        "colmlm webhooks add https://broker.example.org/in --format cloudevents --json",
    )
)
@anywhere
def add(
    base: Base,
    url: Url,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", help="Only changes of this kind, such as delete; may be repeated."),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            "--after", min=0, max=MAX_BIGINT, help="Begin after this change; 0 is all. Default: from now on."
        ),
    ] = None,
    form: Annotated[
        MessageForm, typer.Option("--format", help="As Standard Webhooks has messages, or as CloudEvents.")
    ] = MessageForm.standard,
    dry_run: DryRun = False,
) -> None:
    """Add a webhook and print the secret that its messages are signed with, this once.

    Messages hold what `colmlm log list` shows, so no fact's text. An address that is not public is refused, unless
    COLMLM_WEBHOOK_NETWORKS names its network; plain http is for this machine alone.
    """
    secret, made = base.webhooks.add(
        url, kinds=kinds or (), form=form.value, since=since, actor=base.actor(None), dry_run=dry_run
    )
    if dry_run:
        print_json({"dry_run": True, "webhook": made}) if wants_json() else say(
            f"Would send changes to {made.url}."
        )
        return
    if wants_json():
        print_json({"webhook": made, "secret": secret})
        return
    say(secret)
    note(f"Webhook {made.webhook_id}. This secret is not shown again.")
    note(f"Whether its receiver knows it: colmlm webhooks test {made.webhook_id}")


@app.command("list", epilog=examples("colmlm webhooks list", "colmlm webhooks list --json"))
@anywhere
def list_webhooks(base: Base) -> None:
    """List webhooks, how far each was told, and what went wrong last; never a secret."""
    found = base.webhooks.all()
    if wants_json():
        print_json({"webhooks": found})
        return
    columns = ("webhook", "url", "kinds", "corpora", "format", "state", "told up to", "delivered last")
    print_table(columns, map(_row, found), "No webhooks. Add one: colmlm webhooks add URL")
    for webhook in found:
        if webhook.last_error is not None:
            note(_describe_failures(webhook))


@app.command(
    epilog=examples(
        "colmlm webhooks edit 3 --pause",
        "colmlm webhooks edit 3 --resume --json",
        "colmlm webhooks edit 3 --replay-from 12",
    )
)
@anywhere
def edit(
    base: Base,
    webhook_id: WebhookId,
    pauses: Annotated[
        bool | None,
        typer.Option(
            "--pause/--resume",
            help="Send nothing more; or go on after what was delivered, also where it failed.",
        ),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(
            "--replay-from", min=1, max=MAX_BIGINT, help="The change to send next, with what follows."
        ),
    ] = None,
) -> None:
    """Pause a webhook, resume it, or replay the changes from one on.

    While it is paused nothing is lost. Changes are sent again as the same messages, and those before a later change
    are passed over.
    """
    if (pauses is None) == (first is None):
        cause = "nothing to do is named" if pauses is None else "replaying goes without --pause and --resume"
        raise typer.BadParameter(f"{cause}; give one of --pause, --resume and --replay-from.")
    actor = base.actor(None)
    if first is None:
        change = base.webhooks.pause if pauses else base.webhooks.resume
        _tell(change(webhook_id, actor=actor))
        return
    found = base.webhooks.replay(webhook_id, first, actor=actor)
    _tell(found)
    if found.state != "active":
        note(f"It is {found.state}; to go on: colmlm webhooks edit {webhook_id} --resume")


@app.command(epilog=examples("colmlm webhooks test 3", "colmlm webhooks test 3 --json"))
@anywhere
def test(base: Base, webhook_id: WebhookId) -> None:
    """Send a signed message that is about no change, now. The exit code is 1 where it is not taken."""
    done = base.webhooks.test(webhook_id)
    if wants_json():
        print_json(done)
    else:
        say(f"taken, {done.status}" if done.ok else f"not taken: {done.error}")
    if not done.ok:
        raise typer.Exit(CHECK_FAILED)


@app.command(epilog=examples("colmlm webhooks remove 3 --dry-run", "colmlm webhooks remove 3 --yes"))
@anywhere
def remove(base: Base, webhook_id: WebhookId, dry_run: DryRun = False, yes: Yes = False) -> None:
    """End a webhook for good. To have it wait, pause it."""
    require_somebody(yes or dry_run, "remove")
    if not (dry_run or yes):
        url = base.webhooks.show(webhook_id).url
        typer.confirm(f"Send nothing more to {url}?", abort=True, err=True)
    removed = base.webhooks.remove(webhook_id, actor=base.actor(None), dry_run=dry_run)
    if wants_json():
        print_json({"dry_run": dry_run, "webhook": removed})
    else:
        say(f"{'Would remove' if dry_run else 'Removed'} webhook {webhook_id} to {removed.url}.")


def _tell(webhook: Webhook) -> None:
    if wants_json():
        print_json(webhook)
    else:
        say(f"Webhook {webhook.webhook_id} is {webhook.state}, told up to change {webhook.delivered_seq}.")


def _row(webhook: Webhook) -> tuple[object, ...]:
    return (
        webhook.webhook_id,
        webhook.url,
        ", ".join(webhook.kinds) or "all",
        ", ".join(webhook.corpora or ()) or "all",
        webhook.format,
        webhook.state,
        webhook.delivered_seq,
        _moment(webhook.delivered_at),
    )


def _describe_failures(webhook: Webhook) -> str:
    said = (
        f"Webhook {webhook.webhook_id}: {count_of(webhook.attempts, 'time')} in a row: {webhook.last_error}."
    )
    if webhook.state == "failed":
        return (
            f"{said} It was given up; once that is mended: colmlm webhooks edit {webhook.webhook_id} --resume"
        )
    return f"{said} The next attempt is at {_moment(webhook.next_attempt_at)} UTC."


def _moment(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}" if time else ""
