"""Holders that a schedule steps through their turns, on real servers; the checker reads what they note."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from tests.torture.checker import check
from tests.torture.connections import Connections, Sessions
from tests.torture.contenders import CONTENDERS
from tests.torture.faults import Strike, named
from tests.torture.history import Event, merge, read_lines, write_history
from tests.torture.log import Log
from tests.torture.run import Outcome
from tests.torture.services import Services
from tests.torture.services.base import SLOTS
from tests.torture.steps import run
from tests.torture.turn import Turn

__all__ = ["Holder", "Stage"]

TTL = 1.0
STEP_SECONDS = 20.0
SLACK = 10.0
"""Seconds that a schedule may add to each bound: a holder waits for the other one."""


class StagedTurn(Turn):
    """A turn that waits until the schedule goes on: where it thinks, or before it begins (``early``)."""

    early = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.thinks, self.may_go_on = threading.Semaphore(0), threading.Semaphore(0)

    def _perform(self) -> None:
        if self.early:
            self._wait()
        super()._perform()

    def think(self) -> Any:
        if not self.early:
            self._wait()

    def _wait(self) -> None:
        self.thinks.release()
        if not self.may_go_on.acquire(timeout=STEP_SECONDS):
            raise TimeoutError("the schedule does not go on")


class Holder:
    """A holder: a thread of its own for each turn. Its sessions stay from turn to turn."""

    def __init__(self, stage: Stage, connections: Connections) -> None:
        self._stage, self._connections = stage, connections
        self._sessions = Sessions()

    @property
    def timeout(self) -> float:
        """How many seconds its turn waits for the lock."""
        return self._turn.timeout

    def begin(
        self,
        way: str,
        *,
        rounds: int = 1,
        claims: bool = True,
        early: bool = False,
        timeout: float = 2.0,
        options: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> None:
        """Begin a turn, which goes on until it would think, or until it would begin (``early``).

        Args:
            way: how it writes.
            rounds: how often it writes.
            claims: whether its lock claims.
            early: whether it also waits before it begins.
            timeout: seconds that it waits for the lock.
            options: of the lock.
            key: of what it does once.
        """
        stage, place = self._stage, self._stage.place
        [kit, *_] = self._connections.kits(place.storage)
        kit = kit._replace(claims=kit.claims and claims)
        chosen = next((each for each in kit.ways if each.name == way), kit.ways[0])
        coordinator = self._connections.coordinator(place.coordinator)
        options = {"guards": [kit.guard] if kit.claims else [], **(options or {})}
        if place.use == "slots":
            hold: Any = coordinator.slots(place.name, SLOTS, **options).hold
        else:
            hold = partial(coordinator.hold, place.name, **options)
        chance = random.Random(f"{place.name}/{stage.next_turn()}")
        self._turn = StagedTurn(place.name, kit, chosen, hold, stage.log, chance, SLACK, 0.0, self._sessions)
        self._turn._rounds, self._turn.early, self._turn.timeout = rounds, early, timeout
        self._turn.once, self._turn._at_least = key, (options or {}).get("at_least", 0.0)
        self._thread = threading.Thread(target=self._play, args=(self._turn,), daemon=True)
        self._thread.start()

    def _play(self, turn: StagedTurn) -> None:
        turn.take()
        while turn.unknown:
            write, error = turn.unknown.pop()
            run(turn.ask(error, write))

    def until_it_thinks(self) -> None:
        """Wait until it has read, and would write."""
        if not self.thinks():
            raise TimeoutError("the turn is over, and it never thought")

    def thinks(self) -> bool:
        """Wait until it has read, and would write. Return False if it ends before."""
        deadline = time.monotonic() + STEP_SECONDS
        while not self._turn.thinks.acquire(timeout=0.02):
            if self.is_over:
                return False
            if time.monotonic() > deadline:
                raise TimeoutError("the turn neither thinks nor ends")
        return True

    def go_on(self) -> None:
        """Let it write."""
        self._turn.may_go_on.release()

    @property
    def is_over(self) -> bool:
        """Whether its turn has ended."""
        return not self._thread.is_alive()

    def may_end(self, seconds: float) -> None:
        """Wait for the end of its turn, at most so long."""
        self._thread.join(seconds)

    def end(self) -> None:
        """Wait for the end of its turn."""
        self._thread.join(STEP_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError("the turn does not end")

    def offer(self, way: str, **options: Any) -> None:
        """Do a whole turn, which may end before it thinks."""
        self.begin(way, **options)
        self.thinks()
        self.go_on()
        self.end()

    def take(self, way: str, **options: Any) -> None:
        """Do a whole turn."""
        self.begin(way, **options)
        self.until_it_thinks()
        self.go_on()
        self.end()


class Stage:
    """Services, with one counter, and two holders.

    Args:
        on: the services: one that has locks, one that keeps the counter.
        folder: where the history goes.
        contender: what is used in the place of the library: see `contenders.py`.
        clock_floor: whether numbers start from a clock. Without it they start from 1 after a loss.
        use: of the counter.
    """

    def __init__(
        self,
        on: tuple[str, str],
        folder: Path,
        contender: str = "",
        *,
        clock_floor: bool = True,
        use: Literal["lock", "slots"] = "lock",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._contender = folder, contender
        self._seed = 1 if clock_floor else 2
        self.services = Services(on, TTL, 1, only=lambda place: place.use == use)
        self.locks, self.data = on
        self._turns = 0
        self._faults: list[Event] = []

    def __enter__(self) -> Self:
        self.services.__enter__()
        self.place = next(place for place in self.services.setup["places"] if place.coordinator == self.locks)
        self.log = Log(self._folder / "log.jsonl", 0)
        self._made = [self._connections(direct) for direct in (False, True)]
        self.first, self.second = (Holder(self, connections) for connections in self._made)
        return self

    def __exit__(self, *error: object) -> None:
        for connections in self._made:
            connections.close()
        self.services.__exit__(*error)

    def _connections(self, direct: bool) -> Connections:
        given = dict(self.services.setup["services"])
        if direct:  # past the proxies, so that it goes on while the other one is held
            given = {name: {**values, **self.services[name].direct()} for name, values in given.items()}
        setup = {"ttl": TTL, "services": given, "mode": "threads", "seed": self._seed, "with": self._contender}
        return (CONTENDERS[self._contender] if self._contender else Connections)(setup)

    def next_turn(self) -> int:
        self._turns += 1
        return self._turns

    @property
    def service(self) -> Any:
        """The service that keeps the counter."""
        return self.services[self.data]

    def strike(self, kind: str) -> None:
        """Have a fault happen, of a service that has one server."""
        fault, name = named(kind)
        start = time.monotonic()
        fault.happen(Strike(self.services[name], None, 0, 0.0, lambda *_: None))  # type: ignore[arg-type]
        self._faults.append(Event("fault", start, time.monotonic(), text=kind))

    def lose_the_locks(self) -> None:
        """Have the locks' Redis lose everything, so that both can hold the lock."""
        self.strike(f"flush {self.locks}")

    def prune_keys(self, below: str) -> None:
        """Delete what is noted as done once under the keys below this one."""
        start = time.monotonic()
        self.service.guard.prune_done(self.place.name, below=below)
        self.service.events.append(Event("pruned", start, time.monotonic(), counter=self.place.name, key=below))

    def outcome(self) -> Outcome:
        """End everything, and have the checker read what happened."""
        self.services.restore()
        deadline = time.monotonic() + TTL + 1
        while (left := self.services.left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        now = time.monotonic()
        history = merge(read_lines(self._folder / "log.jsonl"))
        history += [Event("left", now, now, counter=name) for name in left]
        history += self._faults
        history += [event for service in self.services for event in service.events]
        for place in self.place.counters():
            history.append(Event("final", now, now, counter=place.name, **self.services.final(place)))
        path = self._folder / "history.jsonl"
        write_history(path, history)
        return Outcome(sorted(history, key=lambda event: event.start), check(history), Counter(), path)
