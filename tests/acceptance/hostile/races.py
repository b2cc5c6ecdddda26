"""Pairs of requests that meet over the same fact, token, keyset or job, sent at once in several rounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urlencode

from tests.acceptance.hostile.cases import Case, expect
from tests.acceptance.hostile.world import Answer, World
from tests.fakes import FakeEncoder

GROUP = "races"
WHY = {"reason": "hostile"}

Act = Callable[[], Answer]


def cases() -> Iterator[Case]:
    for name, attack in {
        "erase beside record": erase_beside_record,
        "erase beside a record from elsewhere": erase_beside_record_from_elsewhere,
        "restore beside erase": restore_beside_erase,
        "delete beside restore": delete_beside_restore,
        "two erasures of a fact": two_erasures,
        "erasures of two facts in two orders": crossed_erasures,
        "correct beside erase": correct_beside_erase,
        "activate beside retire": activate_beside_retire,
        "revoke a key beside its edits": revoke_beside_edits,
        "sign out beside use": sign_out_beside_use,
        "cancel beside the end of a job": cancel_beside_end,
    }.items():
        yield Case(GROUP, name, attack)


def together(*acts: Act) -> list[Answer]:
    """Starts these requests at once and gives their answers."""
    at_once = threading.Barrier(len(acts))

    def act(one: Act) -> Answer:
        at_once.wait()
        return one()

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(act, acts))


def rounds(world: World, attack: Callable[[], list[Answer]]) -> str:
    seen: dict[tuple[int, ...], int] = {}
    for _ in range(world.rounds):
        statuses = tuple(answer.status for answer in attack())
        seen[statuses] = seen.get(statuses, 0) + 1
    return ", ".join(f"{statuses} {count} times" for statuses, count in sorted(seen.items()))


def _erase(world: World, *fact_ids: int) -> Act:
    return partial(world.ask, "POST", "/v1/erasures", {"fact_ids": fact_ids, **WHY})


def _settled(world: World, value: str, fact_id: int) -> None:
    """Erases the fact if it is not erased yet; the value must not be found anywhere afterwards."""
    if _erase(world, fact_id)().status < 300 or world.ask("GET", f"/v1/facts/{fact_id}").status in (404, 410):
        world.erased.append(value)
    else:
        _expect_gone(world, fact_id, value)
        world.erased.append(value)


def _expect_gone(world: World, fact_id: int, value: str) -> None:
    body = world.ask("GET", f"/v1/facts/{fact_id}").body
    expect(value.encode() not in body, f"fact {fact_id} was erased and is shown: {body[:200]!r}")


def erase_beside_record(world: World) -> str:
    def attack() -> list[Answer]:
        fact_id, question, value = world.fact("recorded")
        record = partial(world.ask, "POST", "/v1/generations", {"prompt": question})
        got = together(_erase(world, fact_id), record, record, record)
        expect(got[0].status < 300, f"not erased: {got[0].status} {got[0].body[:200]!r}")
        world.erased.append(value)
        return got

    return rounds(world, attack)


def erase_beside_record_from_elsewhere(world: World) -> str:
    """Erases a fact while a decoder elsewhere, which has spliced it already, stores its output."""
    checkpoint = FakeEncoder().checkpoint.checkpoint_id

    def attack() -> list[Answer]:
        fact_id, question, value = world.fact("recorded elsewhere")
        seq = world.ask("GET", "/v1/changes/head").said["seq"]
        splice = {
            "output_start": 0,
            "output_end": len(value),
            "outcome": "hit",
            "fact_id": fact_id,
            "version": 1,
            "score": 1.0,
        }
        made = {"prompt": question, "output": value, "checkpoint_id": checkpoint, "mode": "auto", "seq": seq}
        record = partial(world.ask, "POST", "/v1/generations/records", {**made, "splices": [splice]})
        got = together(_erase(world, fact_id), record, record, record)
        expect(got[0].status < 300, f"not erased: {got[0].status} {got[0].body[:200]!r}")
        world.erased.append(value)
        return got

    return rounds(world, attack)


def restore_beside_erase(world: World) -> str:
    def attack() -> list[Answer]:
        fact_id, _, value = world.fact("restored")
        world.ask("DELETE", f"/v1/facts/{fact_id}", WHY)
        got = together(
            partial(world.ask, "POST", "/v1/facts/restore", {"fact_ids": [fact_id], **WHY}),
            _erase(world, fact_id),
        )
        _settled(world, value, fact_id)
        return got

    return rounds(world, attack)


def delete_beside_restore(world: World) -> str:
    def attack() -> list[Answer]:
        fact_id, _, _ = world.fact("deleted")
        delete = partial(world.ask, "DELETE", f"/v1/facts/{fact_id}", WHY)
        restore = partial(world.ask, "POST", "/v1/facts/restore", {"fact_ids": [fact_id], **WHY})
        return together(delete, restore, delete, restore)

    return rounds(world, attack)


def two_erasures(world: World) -> str:
    def attack() -> list[Answer]:
        fact_id, _, value = world.fact("twice")
        got = together(_erase(world, fact_id), _erase(world, fact_id))
        expect(any(answer.status < 300 for answer in got), f"nobody erased: {[a.status for a in got]}")
        world.erased.append(value)
        return got

    return rounds(world, attack)


def crossed_erasures(world: World) -> str:
    def attack() -> list[Answer]:
        (one, _, first), (other, _, second) = world.fact("crossed"), world.fact("crossed")
        got = together(_erase(world, one, other), _erase(world, other, one))
        expect(any(answer.status < 300 for answer in got), f"nobody erased: {[a.status for a in got]}")
        world.erased += [first, second]
        return got

    return rounds(world, attack)


def correct_beside_erase(world: World) -> str:
    def attack() -> list[Answer]:
        fact_id, _, value = world.fact("corrected")
        other = f"{value} corrected"
        got = together(
            partial(world.ask, "PATCH", f"/v1/facts/{fact_id}", {"value": other, **WHY}),
            _erase(world, fact_id),
        )
        _settled(world, value, fact_id)
        return got

    return rounds(world, attack)


def activate_beside_retire(world: World) -> str:
    """Checks that one comes first and the other is refused; the active keyset is never retired."""
    old = world.keyset_id

    def attack() -> list[Answer]:
        new = world.keyset()
        activate = partial(
            world.ask, "POST", f"/v1/keysets/{new}/activate", {"force": True, "max_edits": 2**40, **WHY}
        )
        retire = partial(world.ask, "POST", f"/v1/keysets/{new}/retire", WHY)
        got = together(activate, retire)
        active = [
            one for one in world.ask("GET", "/v1/keysets").said["items"] if one["keyset"]["state"] == "active"
        ]
        expect(len(active) == 1, f"{len(active)} keysets are active")
        back = world.ask("POST", f"/v1/keysets/{old}/activate", {"force": True, "max_edits": 2**40, **WHY})
        expect(back.status in (200, 409), f"the first keyset is not back: {back.status} {back.body[:200]!r}")
        return got

    return rounds(world, attack)


def revoke_beside_edits(world: World) -> str:
    """Checks that requests sent after the answer to a revocation are refused."""

    def attack() -> list[Answer]:
        made = world.ask("POST", "/v1/tokens", {"name": f"raced {time.time_ns()}", "role": "operator"}).said
        token, key_id = made["token"], made["key"]["key_id"]
        fact_id, _, _ = world.fact("edited")
        edit = partial(
            world.ask, "PATCH", f"/v1/facts/{fact_id}", {"value": f"v {time.time_ns()}", **WHY}, token=token
        )
        revoke = partial(world.ask, "DELETE", f"/v1/tokens/{key_id}")
        got = together(edit, revoke, edit, edit)
        late = edit()
        expect(late.status == 401, f"a revoked key was answered with {late.status}")
        return got

    return rounds(world, attack)


def sign_out_beside_use(world: World) -> str:
    """Checks that a session stays signed out, whatever was requested meanwhile."""
    origin = {"Origin": world.server.address, "Content-Type": "application/x-www-form-urlencoded"}

    def attack() -> list[Answer]:
        form = urlencode({"key": world.tokens["operator"], "back": "/"}).encode()
        cookie = world.anonymous("POST", "/session", form, origin).cookie
        expect(
            world.anonymous("GET", "/console/facts", None, {"Cookie": cookie}).status == 200, "not signed in"
        )
        use = partial(world.anonymous, "GET", "/console/facts", None, {"Cookie": cookie})
        leave = partial(world.anonymous, "POST", "/console/sign-out", b"", {**origin, "Cookie": cookie})
        got = together(use, leave, use, use)
        late = use()
        expect(late.status != 200, "a cookie that was signed out still opens the console")
        return got

    return rounds(world, attack)


def cancel_beside_end(world: World) -> str:
    def attack() -> list[Answer]:
        job_id = world.ask("POST", "/v1/jobs/fsck", {}).said["job_id"]
        time.sleep(0.05)
        got = together(
            partial(world.ask, "POST", f"/v1/jobs/{job_id}/cancel"),
            partial(world.ask, "POST", f"/v1/jobs/{job_id}/cancel"),
            partial(world.ask, "GET", f"/v1/jobs/{job_id}"),
        )
        until = time.monotonic() + 60
        while (state := world.ask("GET", f"/v1/jobs/{job_id}").said["state"]) in ("queued", "running"):
            expect(time.monotonic() < until, f"job {job_id} is still {state}")
            time.sleep(0.1)
        expect(state in ("cancelled", "succeeded"), f"job {job_id} has {state}")
        return got

    return rounds(world, attack)
