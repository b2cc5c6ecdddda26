"""One decoder for the threads of a process: their prompts are decoded in one run, which rows may join and leave.

A thread of its own steps the run. A request that finds no row free waits in a queue, in turns with those of other
tokens, for a bounded time. Who asked for a row tells the run when nobody waits for it any more, and it leaves.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from queue import Empty, SimpleQueue

from colmlm.model.decoding.config import DecodeConfig, Prompt
from colmlm.model.decoding.decoder import DecodedOutput, Decoder, OnStep, RowNews, output_of
from colmlm.model.decoding.prefixes import MIB, Prefixes
from colmlm.model.decoding.rows import SpliceRecord

Refusal = Callable[[int, int], Exception]  # from how many wait, and the seconds after which to come again
News = str | SpliceRecord | DecodedOutput
CHECK_SECONDS = 0.05  # how often a thread that waits asks whether its client is still there
IDLE_SECONDS = 1.0  # how long the thread of the run outlasts its last row


class DecoderFull(Exception):
    """No room is left: `waiting` prompts wait, and will be done in `retry_after` seconds."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        self.waiting, self.retry_after = waiting, retry_after
        super().__init__(f"{waiting} prompts wait; come again in {retry_after} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many `rows` are decoded at once, holding `tokens` together, how many prompts `waiting` for how many
    `seconds`, and the memory of beginnings that repeat.
    """

    rows: int = 64
    tokens: int = 65_536
    waiting: int = 256
    seconds: float = 30.0
    prefix_mb: int = 128


@dataclass(slots=True, eq=False)
class Ticket:
    """A prompt that somebody wants decoded, and what is told them: news, then the output or the error."""

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
        """Tells what is new; tells whether that was all."""
        assert self.telling is not None
        row = self.telling.row
        if self.streams and row.failure is None:
            for news in self.telling.news():
                self.told.put(news)
        if row.finish is None:
            return False
        self.told.put(row.failure or output_of(row, self.telling.tokenizer))
        return True


class Queue:
    """The tickets that wait, taken in turns from those who ask."""

    def __init__(self) -> None:
        self._by_asker: OrderedDict[str, deque[Ticket]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._by_asker.values()))

    def put(self, asker: str, ticket: Ticket) -> None:
        self._by_asker.setdefault(asker, deque()).append(ticket)

    def next(self) -> Ticket | None:
        return next(iter(self._by_asker.values()))[0] if self._by_asker else None

    def take(self) -> Ticket:
        """Takes the next ticket; the next one is then another asker's, where others wait."""
        asker, tickets = self._by_asker.popitem(last=False)
        ticket = tickets.popleft()
        if tickets:
            self._by_asker[asker] = tickets
        return ticket

    def drop(self, unwanted: Callable[[Ticket], bool]) -> list[Ticket]:
        """Takes out and gives the tickets that are unwanted."""
        dropped = [ticket for tickets in self._by_asker.values() for ticket in tickets if unwanted(ticket)]
        for asker, tickets in list(self._by_asker.items()):
            if kept := deque(ticket for ticket in tickets if ticket not in dropped):
                self._by_asker[asker] = kept
            else:
                del self._by_asker[asker]
        return dropped


class DecoderTogether:
    """Decodes for many threads at once. Each output is what `Decoder` gives alone.

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
        self.prefixes = Prefixes(self.room.prefix_mb * MIB)
        self.run = decoder.new_run(self.prefixes)
        self._queue, self._live = Queue(), list[Ticket]()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pace, self._last = 0.0, 0.0  # seconds from one output's end to the next, smoothed

    def generate(
        self, prompts: Sequence[Prompt], config: DecodeConfig, on_step: OnStep = lambda: None
    ) -> list[DecodedOutput]:
        """Decodes as `Decoder.generate`. Raises what `refusal` gives."""
        tickets = self._asked(prompts, config, streams=False)
        try:
            return [output for ticket in tickets for output in self._outputs(ticket, on_step)]
        finally:
            self._let_go(tickets)

    def stream(
        self, prompt: Prompt, config: DecodeConfig, on_step: OnStep = lambda: None
    ) -> Iterator[str | SpliceRecord | DecodedOutput]:
        """Decodes as `Decoder.stream`. Raises what `refusal` gives."""
        tickets = self._asked([prompt], config, streams=True)
        try:
            yield from self._news(tickets[0], on_step)
        finally:
            self._let_go(tickets)

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

    def _asked(self, prompts: Sequence[Prompt], config: DecodeConfig, *, streams: bool) -> list[Ticket]:
        """Queues prompts, and sees that a thread works on them."""
        self.decoder.check(config)
        asker, until = self.asker(), time.monotonic() + self.room.seconds
        tickets = [
            Ticket(prompt, config, config.seed + n, self._tokens(prompt, config), streams, until)
            for n, prompt in enumerate(prompts)
        ]
        with self._changed:
            if len(self._queue) + len(self._live) + len(tickets) > self.room.rows + self.room.waiting:
                raise self._busy()
            for ticket in tickets:
                self._queue.put(asker, ticket)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="decoding", daemon=True)
                self._thread.start()
            self._changed.notify()
        return tickets

    def _tokens(self, prompt: Prompt, config: DecodeConfig) -> int:
        return len(self.decoder.tokenizer.prompt(prompt)) + config.max_tokens

    def _let_go(self, tickets: Sequence[Ticket]) -> None:
        """Marks these as left; they leave before the next step."""
        for ticket in tickets:
            ticket.has_left = True

    def _busy(self) -> Exception:
        """Makes the refusal, with the seconds in which those who wait now will be done at the present pace."""
        return self.refusal(len(self._queue), max(1, ceil(len(self._queue) * self._pace)))

    def _work(self) -> None:
        """Steps the run as long as there are rows, in the decoder's thread."""
        while True:
            with self._changed:
                joining = self._admitted()
                is_idle = not joining and not self._live
                if is_idle and not self._changed.wait(IDLE_SECONDS) and not len(self._queue):
                    self._thread = None
                    return
                self._live += joining
            try:
                self._step(joining)
            except Exception as error:  # noqa: BLE001 - every thread that waits is told, and the next run is a new one
                self._fail(error)

    def _admitted(self) -> list[Ticket]:
        """Takes those out of the queue that have a row now, and refuses those that have waited too long."""
        self._queue.drop(lambda ticket: ticket.has_left)
        joining: list[Ticket] = []
        held = sum(ticket.tokens for ticket in self._live)
        while (ticket := self._queue.next()) is not None:
            others = len(self._live) + len(joining)
            if others and (others >= self.room.rows or held + ticket.tokens > self.room.tokens):
                break
            joining.append(self._queue.take())
            held += ticket.tokens
        now = time.monotonic()
        for late in self._queue.drop(lambda ticket: ticket.until < now):
            late.told.put(self._busy())
        return joining

    def _step(self, joining: Sequence[Ticket]) -> None:
        for ticket in joining:
            row = self.run.join(ticket.prompt, ticket.config, ticket.seed)
            ticket.telling = RowNews(row, self.decoder.tokenizer)
        if self.run.live:
            self.run.step()
        going_on = [ticket for ticket in self._live if not self._is_over(ticket)]
        with self._changed:
            ended, self._live = len(self._live) - len(going_on), going_on
            self._measure(ended)

    def _is_over(self, ticket: Ticket) -> bool:
        """Tells what is new to who asked, or takes the row out where nobody waits; tells whether that was all."""
        if not ticket.has_left or ticket.telling is None:
            return ticket.tell()
        self.run.leave(ticket.telling.row)
        return True

    def _measure(self, ended: int) -> None:
        """Notes the pace at which outputs end, while others wait."""
        now, before = time.monotonic(), self._last
        if not ended:
            return
        self._last = now
        took = (now - before) / ended
        if len(self._queue):
            self._pace = took if not self._pace else 0.8 * self._pace + 0.2 * took

    def _fail(self, error: Exception) -> None:
        with self._changed:
            failed, self._live = self._live, []
            self.run = self.decoder.new_run(self.prefixes)
        for ticket in failed:
            ticket.told.put(error)
