"""Prompts that wait for a row: whose turn it is, who makes room for whom, and how soon a row is free."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from queue import SimpleQueue

from colmlm.model.decoding.config import DecodeConfig, Prompt
from colmlm.model.decoding.decoder import DecodedOutput, RowNews, output_of
from colmlm.model.decoding.rows import SpliceRecord

News = str | SpliceRecord | DecodedOutput
KEPT = 0.98  # of what was measured before, at each step: some two seconds count


@dataclass(slots=True, eq=False)
class Ticket:
    """A prompt that somebody wants decoded, and what is told them: news, then the output or the error."""

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

    def put(self, ticket: Ticket) -> None:
        self._by_asker.setdefault(ticket.asker, deque()).append(ticket)

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

    def make_room(self, asker: str, wanted: int, places: int) -> list[Ticket] | None:
        """Takes out the newest tickets of whoever has most, until `places` are free for `wanted` of this asker's.

        None, and nothing is taken out, where the others have no more waiting than it would have itself.
        """
        fair = len(self._by_asker.get(asker, ())) + wanted
        if sum(max(0, len(tickets) - fair) for tickets in self._by_asker.values()) < places:
            return None
        return [max(self._by_asker.values(), key=len).pop() for _ in range(places)]

    def tokens_before(self, asker: str) -> int:
        """Counts the tokens that may be chosen for the tickets that are taken before another one of this asker's."""
        own = len(self._by_asker.get(asker, ()))
        return sum(
            ticket.config.max_tokens
            for other, tickets in self._by_asker.items()
            for ticket in islice(tickets, own if other == asker else own + 1)
        )


class Pace:
    """The measured pace of a run: tokens a second while it steps, and the share of their most that outputs have."""

    def __init__(self) -> None:
        self._seconds = self._tokens = 0.0
        self._written = self._asked = 0.0

    def stepped(self, seconds: float, tokens: int) -> None:
        self._seconds = KEPT * self._seconds + seconds
        self._tokens = KEPT * self._tokens + tokens

    def ended(self, written: int, asked: int) -> None:
        """Notes an output that has `written` tokens of the `asked` that it could have."""
        self._written = KEPT * self._written + written
        self._asked = KEPT * self._asked + asked

    def seconds(self, tokens: int) -> float:
        """Gives the seconds that outputs which may have that many tokens will take; 0 where nothing was measured."""
        share = self._written / self._asked if self._asked else 1.0
        return tokens * share * self._seconds / self._tokens if self._tokens else 0.0
