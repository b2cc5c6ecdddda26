"""Limiters: each kind of work has its own thread pool and its own number of requests at once (slots).

A limiter whose requests wait for a lock or a slow query then does not delay the others. A request takes a slot in the
limiter of its route, and its synchronous work runs in that limiter's threads. A limiter without a free slot refuses
at once, by name. Slots are taken and given back on the event loop only.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from types import MappingProxyType
from typing import Generic, ParamSpec, TypeVar, cast

from litestar.concurrency import set_asyncio_executor, sync_to_thread

from colmlm.api.errors import Busy, too_many_requests
from colmlm.kb.access.records import TokenRecord
from colmlm.kb.errors import count_of

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
Sleep = Callable[[float], object]


class Limiter(StrEnum):
    """A kind of work with its own threads and slots, told apart by what it may wait for."""

    at_once = "answers that wait for nothing"  # no threads and no slots: answered on the event loop
    auth = "checks of keys"
    sign_on = "checks of people by the identity provider"  # may wait for the provider
    probes = "probes"
    records = "records of what was asked"
    lookups = "lookups"
    reads = "reads"
    long_reads = "long reads"
    edits = "edits"  # edits wait for each other at the change log's lock
    uploads = "uploads"
    reading = "questions that are read"
    decoding = "decoding"
    feeds = "streams that wait"


@dataclass(frozen=True, slots=True)
class LimiterSize:
    """Set how many of a limiter's requests run at once (`threads`), and how many may run or wait (`slots`).

    One token may take `slots_of_one` of the slots. A thread of a limiter that `gives_way` pauses after each piece of
    work for as long as that work took, while lookups or decoding are under way. So it uses at most half of a processor
    and of the database.
    """

    threads: int
    slots: int
    gives_way: bool = False
    slots_of_one: int | None = None


LONGEST_REST = 1.0  # second


SIZES: Mapping[Limiter, LimiterSize] = MappingProxyType(
    {
        Limiter.auth: LimiterSize(4, 256),
        Limiter.sign_on: LimiterSize(4, 64),
        Limiter.probes: LimiterSize(2, 64),
        Limiter.records: LimiterSize(2, 1024),
        Limiter.lookups: LimiterSize(8, 256),
        Limiter.reads: LimiterSize(6, 128),
        Limiter.long_reads: LimiterSize(1, 16, gives_way=True),
        Limiter.edits: LimiterSize(4, 64),
        Limiter.uploads: LimiterSize(2, 32),
        Limiter.reading: LimiterSize(4, 64),
        Limiter.decoding: LimiterSize(
            384, 384
        ),  # threads that wait for the one decoder, whose own room is less
        Limiter.feeds: LimiterSize(4, 64, slots_of_one=8),
    }
)


_ANSWERING = (Limiter.lookups, Limiter.reading, Limiter.decoding)


class _LimiterState:
    """One limiter of one server. Its thread pool is made at the first use, and again at the first use after `close`."""

    def __init__(
        self, limiter: Limiter, size: LimiterSize, is_answering: Callable[[], bool], sleep: Sleep
    ) -> None:
        self.limiter, self.size = limiter, size
        self.num_taken = self.num_refused = 0
        self.num_taken_by: Counter[int | None] = Counter()  # by the ids of tokens
        self._threads: ThreadPoolExecutor | None = None
        self._is_answering, self._sleep = is_answering, sleep
        self._rested = 0.0  # when the pause after the last work is over

    @property
    def threads(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.size.threads, f"colmlm {self.limiter.name}")
        return self._threads

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self.size.gives_way:
            return self.threads.submit(self._give_way, fn, *args, **kwargs)
        return self.threads.submit(fn, *args, **kwargs)

    def _give_way(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if (left := self._rested - time.monotonic()) > 0 and self._is_answering():
            self._sleep(left)
        began = time.monotonic()
        try:
            return fn(*args, **kwargs)
        finally:
            ended = time.monotonic()
            self._rested = ended + min(ended - began, LONGEST_REST)

    def count(self, token_id: int | None, num: int) -> None:
        """Count `num` slots as taken (or, below 0, as given back) for a token."""
        self.num_taken += num
        if self.size.slots_of_one is not None:
            self.num_taken_by[token_id] += num
            if not self.num_taken_by[token_id]:
                del self.num_taken_by[token_id]

    def require_slot(self, token_id: int | None) -> None:
        """Raise `Busy` where no slot is free, and `TooManyRequests` where this token has its share."""
        share = self.size.slots_of_one
        if share is not None and self.num_taken_by[token_id] >= share:
            self.num_refused += 1
            raise too_many_requests(f"hold {share} {self.limiter.value} at once", 1, "close one of them")
        if self.num_taken >= self.size.slots:
            self.num_refused += 1
            raise Busy(self.limiter.value, self.size.slots)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None


_current: ContextVar[_LimiterState | None] = ContextVar("limiter", default=None)


class _LimiterExecutor(Executor):
    """The executor that Litestar runs synchronous handlers on: it uses the threads of the request's limiter."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        held = _current.get()
        if held is None:
            raise RuntimeError("this route has no limiter, and nothing was run; name one with its handler")
        return held.submit(fn, *args, **kwargs)


class Limiters:
    """The limiters of one server."""

    def __init__(self, sizes: Mapping[Limiter, LimiterSize] = SIZES, sleep: Sleep = time.sleep) -> None:
        self._held: dict[Limiter, _LimiterState] = {
            limiter: _LimiterState(limiter, sizes[limiter], self._is_answering, sleep)
            for limiter in Limiter
            if limiter is not Limiter.at_once
        }
        # Litestar has one executor per process; this one has no state, so every server may set it.
        set_asyncio_executor(cast(ThreadPoolExecutor, _LimiterExecutor()))

    @contextmanager
    def slot(self, limiter: Limiter, token_id: int | None = None) -> Iterator[None]:
        """Take a slot in the limiter for the length of the context, and use the limiter's threads meanwhile.

        Raise `Busy`, and `TooManyRequests` where the token has its share of the limiter.
        """
        held = self._held.get(limiter)
        if held is not None:
            held.require_slot(token_id)
        before = _current.set(held)
        if held is not None:
            held.count(token_id, 1)
        try:
            yield
        finally:
            if held is not None:
                held.count(token_id, -1)
            _current.reset(before)

    @contextmanager
    def move_slot(self, limiter: Limiter) -> Iterator[None]:
        """Move the request to a slot in another limiter for the length of the context, and free its own.

        Raise `Busy`.
        """
        left = _current.get()
        with self.slot(limiter):
            if left is not None:
                left.num_taken -= 1
            try:
                yield
            finally:
                if left is not None:
                    left.num_taken += 1

    async def run(self, limiter: Limiter, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a thread of that limiter and give its result. Raise `Busy`."""
        with self.slot(limiter):
            return await sync_to_thread(work, *args, **kwargs)

    def make_batcher(
        self, limiter: Limiter, work: Callable[[list[A]], Sequence[T]], most: int
    ) -> Batcher[A, T]:
        """Make a batcher that does `work` in a thread of that limiter, for requests that hold a slot each."""

        async def run(asked: list[A]) -> Sequence[T]:
            before = _current.set(self._held[limiter])
            try:
                return await sync_to_thread(work, asked)
            finally:
                _current.reset(before)

        return Batcher(run, most)

    def threads(self, *limiters: Limiter) -> int:
        """Give the largest number of threads that these limiters have together."""
        return sum(self._held[limiter].size.threads for limiter in limiters)

    def slots_taken(self) -> dict[Limiter, int]:
        """Give the number of slots taken, by limiter."""
        return {limiter: held.num_taken for limiter, held in self._held.items()}

    def requests_refused(self) -> dict[Limiter, int]:
        """Give the number of requests that found no slot since the server started, by limiter."""
        return {limiter: held.num_refused for limiter, held in self._held.items()}

    def _is_answering(self) -> bool:
        return any(self._held[limiter].num_taken for limiter in _ANSWERING)

    def close(self) -> None:
        """Let the threads end after the work that they are doing."""
        for held in self._held.values():
            held.close()


# Numbers of a server that are parameters but no settings, since no installation has had to change them.

LONGEST_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The intervals and limits of a server.

    A stream that waits queries the database every `poll_seconds`, sends a comment after `idle_seconds` of silence, and
    ends after `longest_seconds`. Probes get a result that is up to `readiness_seconds` old, of a check that takes at
    most `look_seconds`. An edit keys at most `keyed_at_once` facts at once; more is left to a job. A request searches
    files of at most `most_scanned` bytes. `clock` gives seconds, by which rate limits are kept.
    """

    poll_seconds: float = 1.0
    idle_seconds: float = 15.0  # proxies close connections on which nothing is sent
    longest_seconds: float = LONGEST_SECONDS
    readiness_seconds: float = 1.0
    look_seconds: float = 5.0
    keyed_at_once: int = 256
    most_scanned: int = 1 << 30  # bytes, read twice: some ten seconds
    limiters: Mapping[Limiter, LimiterSize] = field(default_factory=lambda: SIZES)
    clock: Callable[[], float] = time.monotonic


# Batches: does at once what many requests ask for while the same kind of work is under way. A request that comes
# alone waits for nobody. Work always begins after it was asked for, so what it reads is at least as new as the request.


class Batcher(Generic[A, T]):
    """Collects requests while `work` runs, and passes up to `most` of them to its next call, one call at a time.

    `work` gives a result for each request, or raises an error that all of them get. For one event loop.
    """

    def __init__(self, work: Callable[[list[A]], Awaitable[Sequence[T]]], most: int) -> None:
        self._work, self._most = work, most
        self._waiting: list[tuple[A, asyncio.Future[T]]] = []
        self._working: asyncio.Task[None] | None = None

    async def ask(self, asked: A) -> T:
        mine: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, mine))
        if self._working is None:
            # In a context of its own, since it also works for others than who asks first.
            self._working = asyncio.create_task(self._work_off(), context=Context())
        return await mine

    async def _work_off(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._answer_batch(batch)
        finally:
            self._working = None

    async def _answer_batch(self, batch: list[tuple[A, asyncio.Future[T]]]) -> None:
        try:
            results = await self._work([asked for asked, _ in batch])
        except Exception as error:  # noqa: BLE001 - it is raised again where each of them waits
            for _, waiting in batch:
                if not waiting.done():
                    waiting.set_exception(error)
            return
        for (_, waiting), result in zip(batch, results, strict=True):
            if not waiting.done():  # its client may have left
                waiting.set_result(result)


# Limits the rate of requests of a token: in this process, or in all that share its port.

Clock = Callable[[], float]
# Takes a permit of a token, by id and rate, or gives the seconds until there is one.
Take = Callable[[int, int], float]


def take_permit(permits: float, elapsed: float, per_minute: int) -> tuple[float, float]:
    """Take one of `permits` that were counted `elapsed` seconds ago and refill evenly up to `per_minute`.

    Give the permits left, and 0 or the seconds until there is one.
    """
    rate = per_minute / 60
    permits = min(per_minute, permits + elapsed * rate)
    return (permits, (1 - permits) / rate) if permits < 1 else (permits - 1, 0.0)


class Bucket:
    """A bucket of permits: it holds up to `per_minute` and refills evenly at that rate. For one thread."""

    def __init__(self, per_minute: int, clock: Clock = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._permits, self._filled_at = float(per_minute), clock()

    def take(self) -> float:
        """Take a permit and give 0, or give the seconds until there is one."""
        now = self._clock()
        self._permits, wait = take_permit(self._permits, now - self._filled_at, self.per_minute)
        self._filled_at = now
        return wait


def own_rates(clock: Clock = time.monotonic) -> Take:
    """Make the function that takes permits from buckets of this process alone, one for each token."""
    buckets: dict[int, Bucket] = {}

    def take(token_id: int, per_minute: int) -> float:
        bucket = buckets.get(token_id)
        if bucket is None or bucket.per_minute != per_minute:
            bucket = buckets[token_id] = Bucket(per_minute, clock)
        return bucket.take()

    return take


class RateLimits:
    """Limit each token to its own rate or to `default` (None: no limit)."""

    def __init__(self, default: int | None, take: Take) -> None:
        self._default, self._take = default, take
        self._taking = threading.Lock()

    def check(self, token: TokenRecord) -> None:
        """Take a permit for a request of this token. Raise `TooManyRequests` where it has none left."""
        per_minute = token.rate_limit or self._default
        if per_minute is None:
            return
        with self._taking:
            wait = self._take(token.key_id, per_minute)
        if wait:
            raise too_many_requests(
                f"ask {count_of(per_minute, 'time')} a minute", ceil(wait), "ask an admin for a higher limit"
            )
