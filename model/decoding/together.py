"""One decoder for the threads of a process: their prompts are decoded in one run, which rows may join and leave.

A thread of its own steps the run. A request that finds no row free waits in a queue, in turns with those of other
tokens, for a bounded time. A full queue makes room for a token that has fewer waiting than another. Who asked for a
row tells the run when nobody waits for it any more, and it leaves.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from queue import Empty, SimpleQueue

from colmlm.model.decoding.config import DecodeConfig, Prompt
from colmlm.model.decoding.decoder import DecodedOutput, Decoder, DecodingRun, OnStep, RowNews, output_of
from colmlm.model.decoding.rows import MIB, PrefixCache, SpliceRecord

Refusal = Callable[[int, int], Exception]  # from how many wait, and the seconds after which to come again
CHECK_SECONDS = 0.05  # how often a thread that waits asks whether its client is still there
IDLE_SECONDS = 1.0  # how long the thread of the run outlasts its last row


class DecoderFull(Exception):
    """No room is left: `waiting` prompts wait, and will be done in `retry_after` seconds."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        self.waiting, self.retry_after = waiting, retry_after
        super().__init__(f"{waiting} prompts wait; come again in {retry_after} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The limits of a decoder: it decodes at most `rows` prompts at once, with `tokens` tokens together.

    At most `waiting` more prompts wait, each for up to `seconds`. `prefix_mb` bounds the cache of prompts' beginnings,
    and `wide_threads` threads compute a step of many tokens.
    """

    rows: int = 64
    tokens: int = 65_536
    waiting: int = 256
    seconds: float = 30.0
    prefix_mb: int = 128
    wide_threads: int | None = None


class DecoderTogether:
    """Decode for many threads at once. Each output is what `Decoder` gives alone.

    `asker` names who asks in the current thread; `refusal` makes the error that refuses a prompt.
    """

    def __init__(
        self,
        decoder: Decoder,
        room: Room | None = None,
        asker: Callable[[], str] = str,
        refusal: Refusal = DecoderFull,
    ) -> None:
        self.decoder, self.room = decoder, room or Room()
        self.asker, self.refusal = asker, refusal
        self.prefixes = PrefixCache(self.room.prefix_mb * MIB)
        self.run = self._new_run()
        self.queue, self._live = TicketQueue(), list[Ticket]()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pace = Pace()

    def _new_run(self) -> DecodingRun:
        return self.decoder.new_run(self.prefixes, self.room.wide_threads)

    def generate(
        self, prompts: Sequence[Prompt], config: DecodeConfig, on_step: OnStep = lambda: None
    ) -> list[DecodedOutput]:
        """Decode prompts as `Decoder.generate` does. Raises the error that `refusal` makes if there is no room."""
        if not prompts:
            return []
        tickets = self._queue_prompts(prompts, config, streams=False)
        try:
            return [output for ticket in tickets for output in self._outputs(ticket, on_step)]
        finally:
            self._mark_as_left(tickets)

    def stream(
        self, prompt: Prompt, config: DecodeConfig, on_step: OnStep = lambda: None
    ) -> Iterator[str | SpliceRecord | DecodedOutput]:
        """Decode a prompt as `Decoder.stream` does. Raises the error that `refusal` makes if there is no room."""
        tickets = self._queue_prompts([prompt], config, streams=True)
        try:
            yield from self._news(tickets[0], on_step)
        finally:
            self._mark_as_left(tickets)

    def _outputs(self, ticket: Ticket, on_step: OnStep) -> Iterator[DecodedOutput]:
        return (news for news in self._news(ticket, on_step) if isinstance(news, DecodedOutput))

    def _news(self, ticket: Ticket, on_step: OnStep) -> Iterator[News]:
        while True:
            on_step()
            try:
                told = ticket.told.get(timeout=CHECK_SECONDS)
            except Empty:
                continue
            if isinstance(told, Exception):
                raise told
            yield told
            if isinstance(told, DecodedOutput):
                return

    def _queue_prompts(
        self, prompts: Sequence[Prompt], config: DecodeConfig, *, streams: bool
    ) -> list[Ticket]:
        """Queue a ticket for each prompt, and start the decoding thread if it does not run."""
        self.decoder.check(config)
        asker, until = self.asker(), time.monotonic() + self.room.seconds
        tickets = [
            Ticket(asker, prompt, config, config.seed + n, self._tokens(prompt, config), streams, until)
            for n, prompt in enumerate(prompts)
        ]
        with self._changed:
            self._make_room(tickets)
            for ticket in tickets:
                self.queue.put(ticket)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="decoding", daemon=True)
                self._thread.start()
            self._changed.notify()
        return tickets

    def _tokens(self, prompt: Prompt, config: DecodeConfig) -> int:
        return len(self.decoder.tokenizer.prompt(prompt)) + config.max_tokens

    def _mark_as_left(self, tickets: Sequence[Ticket]) -> None:
        """Mark these tickets as left, so that the decoding thread drops them."""
        for ticket in tickets:
            ticket.has_left = True

    def _make_room(self, tickets: Sequence[Ticket]) -> None:
        """Refuse the newest tickets of askers with more waiting, until these fit; if they cannot, refuse these."""
        over = len(self.queue) + len(self._live) + len(tickets) - self.room.rows - self.room.waiting
        crowded_out = self.queue.make_room(tickets[0].asker, len(tickets), max(0, over))
        if crowded_out is None:
            raise self._make_refusal(tickets[0])
        for ticket in crowded_out:
            ticket.told.put(self._make_refusal(ticket))

    def _make_refusal(self, ticket: Ticket) -> Exception:
        """Make the error that refuses a ticket, with the seconds until the tickets before it will have begun.

        These are at most `Room.seconds`, since no ticket waits for longer.
        """
        tokens = (
            self.queue.tokens_before(ticket.asker) + ticket.config.max_tokens
        )  # of the row that it then gets
        seconds = min(self._pace.seconds(tokens), self.room.seconds)
        return self.refusal(len(self.queue), max(1, ceil(seconds)))

    def _work(self) -> None:
        """Step the run as long as there are rows, in the decoder's thread."""
        try:
            self._work_off()
        except Exception as error:  # noqa: BLE001 - who waits is told, and the next prompt gets another thread
            with self._changed:
                self._thread = None
                left, self._live = [*self._live, *self.queue.drop(lambda _: True)], []
                self.run = self._new_run()
            for ticket in left:
                ticket.told.put(error)

    def _work_off(self) -> None:
        while True:
            with self._changed:
                joining = self._admit_tickets()
                if not self._live and not self._changed.wait(IDLE_SECONDS) and not len(self.queue):
                    self._thread = None
                    return
            try:
                self._step(joining)
            except Exception as error:  # noqa: BLE001 - every thread that waits is told, and the next run is a new one
                self._fail(error)

    def _admit_tickets(self) -> list[Ticket]:
        """Move tickets for which there is room to the run, give them, and refuse those that waited too long."""
        self.queue.drop(lambda ticket: ticket.has_left)
        joining: list[Ticket] = []
        held = sum(ticket.tokens for ticket in self._live)
        while (ticket := self.queue.next()) is not None:
            others = len(self._live)
            if others and (others >= self.room.rows or held + ticket.tokens > self.room.tokens):
                break
            joining.append(self.queue.take())
            self._live.append(joining[-1])
            held += ticket.tokens
        now = time.monotonic()
        late = self.queue.drop(lambda ticket: ticket.until < now)
        self._live += late  # until they are told, so that none is left waiting where that fails
        for ticket in late:
            ticket.told.put(self._make_refusal(ticket))
        self._live = [ticket for ticket in self._live if ticket not in late]
        return joining

    def _step(self, joining: Sequence[Ticket]) -> None:
        for ticket in joining:
            row = self.run.join(ticket.prompt, ticket.config, ticket.seed)
            ticket.telling = RowNews(row, self.decoder.tokenizer)
        if rows := self.run.live:
            began, before = time.monotonic(), sum(row.content for row in rows)
            self.run.step()
            self._pace.note_step(time.monotonic() - began, sum(row.content for row in rows) - before)
        going_on = [ticket for ticket in self._live if not self._tell_or_leave(ticket)]
        with self._changed:
            self._live = going_on

    def _tell_or_leave(self, ticket: Ticket) -> bool:
        """Send a row's news to its asker, or drop the row if the asker left. Tell whether the row is over."""
        assert ticket.telling is not None
        row = ticket.telling.row
        if ticket.has_left:
            self.run.leave(row)
            return True
        if is_over := ticket.tell():
            self._pace.note_output(row.content, row.config.max_tokens)
        return is_over

    def _fail(self, error: Exception) -> None:
        with self._changed:
            failed, self._live = self._live, []
            self.run = self._new_run()
        for ticket in failed:
            ticket.told.put(error)


# Prompts that wait for a row: whose turn it is, who makes room for whom, and how soon a row is free.

News = str | SpliceRecord | DecodedOutput
KEPT = 0.98  # of what was measured before, at each step: some two seconds count


@dataclass(slots=True, eq=False)
class Ticket:
    """A prompt to decode, and the queue by which its asker gets the row's news, and last the output or the error."""

    asker: str
    prompt: Prompt
    config: DecodeConfig
    seed: int
    tokens: int
    streams: bool
    until: float
    told: SimpleQueue[News | Exception] = field(default_factory=SimpleQueue)
    telling: RowNews | None = None
    has_left: bool = False

    def tell(self) -> bool:
        """Send the news of the row to whoever waits, and tell whether the row is finished."""
        assert self.telling is not None
        row = self.telling.row
        if self.streams and row.failure is None:
            for news in self.telling.news():
                self.told.put(news)
        if row.finish is None:
            return False
        self.told.put(row.failure or output_of(row, self.telling.tokenizer))
        return True


class TicketQueue:
    """The waiting tickets, which are taken from their askers in turn."""

    def __init__(self) -> None:
        self._by_asker: OrderedDict[str, deque[Ticket]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._by_asker.values()))

    def put(self, ticket: Ticket) -> None:
        self._by_asker.setdefault(ticket.asker, deque()).append(ticket)

    def next(self) -> Ticket | None:
        return next(iter(self._by_asker.values()))[0] if self._by_asker else None

    def take(self) -> Ticket:
        """Remove and give the next ticket. If other askers wait, the one after it is another's."""
        asker, tickets = self._by_asker.popitem(last=False)
        ticket = tickets.popleft()
        if tickets:
            self._by_asker[asker] = tickets
        return ticket

    def drop(self, unwanted: Callable[[Ticket], bool]) -> list[Ticket]:
        """Remove the tickets for which `unwanted` is true, and give them."""
        dropped = [ticket for tickets in self._by_asker.values() for ticket in tickets if unwanted(ticket)]
        for asker, tickets in list(self._by_asker.items()):
            if kept := deque(ticket for ticket in tickets if ticket not in dropped):
                self._by_asker[asker] = kept
            else:
                del self._by_asker[asker]
        return dropped

    def make_room(self, asker: str, wanted: int, places: int) -> list[Ticket] | None:
        """Remove and give `places` tickets, the newest of the askers with most, so that `wanted` of this asker's fit.

        Removes nothing and gives None if the others have fewer than `places` beyond what this asker would then have.
        """
        fair = len(self._by_asker.get(asker, ())) + wanted
        if sum(max(0, len(tickets) - fair) for tickets in self._by_asker.values()) < places:
            return None
        return [max(self._by_asker.values(), key=len).pop() for _ in range(places)]

    def tokens_before(self, asker: str) -> int:
        """Sum the `max_tokens` of the tickets that would be taken before a further ticket of this asker."""
        own = len(self._by_asker.get(asker, ()))
        return sum(
            ticket.config.max_tokens
            for other, tickets in self._by_asker.items()
            for ticket in islice(tickets, own if other == asker else own + 1)
        )


class Pace:
    """The measured pace of a run: its tokens a second, and the share of their `max_tokens` that outputs use."""

    def __init__(self) -> None:
        self._seconds = self._tokens = 0.0
        self._written = self._asked_tokens = 0.0

    def note_step(self, seconds: float, tokens: int) -> None:
        self._seconds = KEPT * self._seconds + seconds
        self._tokens = KEPT * self._tokens + tokens

    def note_output(self, written: int, asked: int) -> None:
        """Record that an output got `written` tokens of the `asked` that it could have had."""
        self._written = KEPT * self._written + written
        self._asked_tokens = KEPT * self._asked_tokens + asked

    def seconds(self, tokens: int) -> float:
        """Estimate the seconds that outputs of up to `tokens` tokens take in all; 0 before the first measurement."""
        share = self._written / self._asked_tokens if self._asked_tokens else 1.0
        return tokens * share * self._seconds / self._tokens if self._tokens else 0.0
