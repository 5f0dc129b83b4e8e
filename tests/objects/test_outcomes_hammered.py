"""Random faults on object stores: each answer of ``landed`` is compared with all that ever arrived at the store.

Acknowledged publications must have arrived, and refused ones must not, late requests included. One seed a run is
printed when it fails; FENCING_SEED replays its choices (threads and time still do as they please).
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from itertools import count
from typing import Any

import pytest
from obstore.exceptions import GenericError

from fencing import Fence, FencingError, GuardUnavailable, OutcomeUnknown
from tests.support.object_faults import FAULTS, FaultyStore
from tests.support.object_guards import guard_on, probed
from tests.support.sides import Side

SECONDS = 2.0
MORE_SECONDS = 120.0
WORKERS = 3
TIMEOUT = 0.02
ENOUGH = 15
"""Answers of either kind, without which a run proves little."""


class Hostile(FaultyStore):
    """Errs by chance, and remembers which publications ever came to it."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.calm = True
        self.deaf_until: dict[str, float] = {}
        self.done: set[str] = set()
        inner = self.inner

        class Recorder:
            async def put_async(_, path: str, file: Any, **options: Any) -> Any:  # noqa: N805
                result = inner.put(path, file, **options)  # at once: no cancellation comes between it and the record
                if path.endswith("pointer.json"):
                    current = json.loads(bytes(file))["published"]
                    self.done.update(current["objects"] if current else ())
                return result

            def __getattr__(_, name: str) -> Any:  # noqa: N805
                return getattr(inner, name)

        self.inner = Recorder()

    async def put_async(self, path: str, file: Any, **options: Any) -> Any:
        if not self.calm and path.endswith("pointer.json"):
            if self.chance.random() < 0.4:
                self.faults.append(self.chance.choice([*FAULTS, *["late"] * 6]))
                self.deaf_until[path] = time.monotonic() + self.chance.choice([0, 2 * TIMEOUT])
            elif self._is_deaf(path):
                raise GenericError("no answer")
            if self.late and self.chance.random() < 0.05:
                await self.land()
        return await super().put_async(path, file, **options)

    async def get_async(self, path: str, **options: Any) -> Any:
        if not self.calm and (self._is_deaf(path) or self.chance.random() < 0.05):
            raise GenericError("no answer")
        return await super().get_async(path, **options)

    def _is_deaf(self, path: str) -> bool:
        return time.monotonic() < self.deaf_until.get(path, 0)


class Hammer:
    def __init__(self, side: Side, chance: random.Random) -> None:
        self.side, self.chance = side, chance
        self.store = Hostile(random.Random(chance.random()))
        self.guard = probed(guard_on(side, self.store, timeout=TIMEOUT))
        self.store.calm = False
        self.ids = count(1)
        self.numbers = count(1)
        self.expected: dict[str, tuple[bool, str]] = {}
        self.seen: Counter[Any] = Counter()
        self.lock = threading.Lock()

    @property
    def has_seen_all(self) -> bool:
        return min(self.seen[True], self.seen[False]) >= ENOUGH

    def work(self, until: float, last: float) -> None:
        """One holder after the other, each with a few publications."""
        while time.monotonic() < until or (not self.has_seen_all and time.monotonic() < last):
            with self.lock:
                number = next(self.numbers) if self.chance.random() < 0.7 else max(1, next(self.numbers) - 3)
                resource = f"orders:{self.chance.choice([1, number, number])}"  # shared, or where nobody else comes
                mine = Fence(resource, number, f"{self.chance.getrandbits(128):032x}")
                claim, times = self.chance.random() < 0.4, self.chance.choice([1, 2, 5, 20])
            try:
                if not claim:
                    self.side.call(self.guard.claim, mine)
            except FencingError:
                time.sleep(0.005)
                continue
            unknowns: list[tuple[str, OutcomeUnknown]] = []
            for _ in range(times):
                if not self._publish(mine, claim, unknowns):
                    break
            for id_, unknown in unknowns:
                self._ask(id_, unknown)

    def _publish(self, mine: Fence, claim: bool, unknowns: list[tuple[str, OutcomeUnknown]]) -> bool:
        id_ = f"id-{next(self.ids)}"
        try:
            self.side.call(self.guard.publish, mine, {id_: b"x"}, claim=claim)
            self.expected[id_] = True, "acknowledged"
        except OutcomeUnknown as error:
            unknowns.append((id_, error))
            if self.chance.random() < 0.5:
                self._ask(*unknowns.pop())
        except FencingError as error:
            self.expected[id_] = False, repr(error)
            time.sleep(0.005)
            return isinstance(error, GuardUnavailable)
        return True

    def _ask(self, id_: str, unknown: OutcomeUnknown) -> None:
        for _ in range(20):
            try:
                answer = self.side.call(self.guard.landed, unknown)
                break
            except GuardUnavailable:
                time.sleep(0.005)
        else:
            return
        self.seen[answer] += 1
        if answer is not None:
            self.expected[id_] = answer, "landed"


@pytest.mark.thorough
def test_landed_is_never_wrong(side: Side) -> None:
    seed = int(os.environ.get("FENCING_SEED") or random.randrange(2**32))
    hammer = Hammer(side, random.Random(seed))
    until = time.monotonic() + SECONDS
    try:
        side.race([lambda: hammer.work(until, until + MORE_SECONDS)] * WORKERS)
        side.call(hammer.store.land)
        wrong = {id_: said for id_, said in hammer.expected.items() if said[0] is not (id_ in hammer.store.done)}
        assert not wrong, f"{len(wrong)} were said, and not so: {list(wrong.items())[:3]}"
        assert hammer.has_seen_all, hammer.seen
    except BaseException:
        print(f"FENCING_SEED={seed}")
        raise
    print(f"FENCING_SEED={seed}: {len(hammer.expected)} publications, {dict(hammer.seen)}")
