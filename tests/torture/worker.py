"""A process of the run: threads, or tasks, that add to counters until a line comes on its standard input.

Its argument is a JSON object, which `run.py` makes. After the line "rest" it begins nothing more, ends what it has
begun, writes "rested", and stays: a lock that it still renewed would be seen. After the next line it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import itertools
import json
import logging
import random
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.exc import StatementError

from fencing import on_sigterm
from fencing.coordinator import Coordinator
from fencing.coordinator_async import AsyncCoordinator
from fencing.kernel.waking import SafeEvent
from tests.torture.connections import Connections, Sessions
from tests.torture.contenders import CONTENDERS
from tests.torture.log import Log
from tests.torture.services import KINDS, Place
from tests.torture.services.base import SLOTS
from tests.torture.steps import run, run_async
from tests.torture.term import Replica, Term
from tests.torture.turn import EXPECTED, Interrupted, Turn

OWN_KEY = 0.15
"""How often a write that could go without has a key of its own."""

MANY_KEYS = ("redis-data",)
"""The storages that give up keys only when they have a thousand."""
BURSTS, BURST = 0.15, 100
"""How often a turn there has many keys, and how many."""

AT_LEAST = ("redis", "sentinel", "cluster", "postgresql", "mariadb", "sqlite")
"""The coordinators that have it."""
LASTING = 0.04
"""How often a lock outlasts its block there."""

PULSE, MISSED = 0.1, 0.3
"""Seconds between two looks at the clock, and how late one of them must be to be noted."""


class Worker:
    def __init__(self, setup: dict[str, Any]) -> None:
        self.setup = setup
        places = [Place(*place) for place in setup["places"]]
        self.places = [place for place in places if place.use != "election"]
        self.elections = [place for place in places if place.use == "election"]
        self.connections = (CONTENDERS[setup["with"]] if setup["with"] else Connections)(setup)
        self.log = Log(Path(setup["log"]), setup["process"])
        self.resting = SafeEvent()  # signals interrupt the wait for it
        self._turns: dict[int, Iterator[int]] = defaultdict(partial(itertools.count, 1))
        self._is_ending = False

    def chances(self, number: int) -> Iterator[random.Random]:
        """Yield the source of all choices of each turn: the same for the same turn, however the earlier ones ended."""
        for turn in self._turns[number]:
            if self.resting.is_set():
                return
            yield random.Random(f"{self.setup['seed']}/{self.setup['process']}/{number}/{turn}")

    def turn(self, chance: random.Random, sessions: Sessions) -> Turn:
        place = chance.choice(self.places)
        kit = chance.choice(self.connections.kits(place.storage))
        coordinator = self.connections.coordinator(place.coordinator)
        way, slack, pause = chance.choice(kit.ways), self.setup["slack"], self.setup["pause"]
        keys, at_least, options = "", 0.0, {"guards": [kit.guard] if kit.claims else []}
        if place.use == "once":
            keys = "shared"
        elif any(place.storage in kind.done_once for kind in KINDS.values()) and not self.setup["with"]:
            keys = "own" if chance.random() < OWN_KEY else ""
        if place.use == "slots":
            hold = coordinator.slots(place.name, SLOTS, **options).hold
        elif place.coordinator in AT_LEAST and not self.setup["with"] and chance.random() < LASTING:
            at_least = self.setup["ttl"] * chance.choice([0.2, 1.2])
            hold = partial(coordinator.hold, place.name, at_least=at_least, **options)
        else:
            hold = partial(coordinator.hold, place.name, **options)
        turn = Turn(place.name, kit, way, hold, self.log, chance, slack, pause, sessions, keys, at_least)
        if place.use == "once" and place.storage in MANY_KEYS and chance.random() < BURSTS:
            turn.repeat(BURST)
        return turn

    def replicas(self) -> list[Replica]:
        """Return the replicas that this process is, one for each election."""
        made = []
        for number, place in enumerate(self.elections, 1000):
            kits = self.connections.kits(place.storage)
            kit = kits[self.setup["process"] % len(kits)]
            election = self.connections.coordinator(place.coordinator).election(
                place.name, value=str(self.setup["process"]), guards=[kit.guard]
            )
            new_term = partial(self._term, place, kit)
            made.append(Replica(election, place.name, self.chances(number), new_term, self.log))
        return made

    def _term(self, place: Place, kit: Any, chance: random.Random) -> Term:
        way, slack, pause = chance.choice(kit.ways), self.setup["slack"], self.setup["pause"]
        return Term(place.name, kit, way, None, self.log, chance, slack, pause, Sessions())

    def end_with_sigterm(self) -> None:
        """Have SIGTERM release all locks before it ends the process. The main thread calls it, or a task."""
        names = {place.coordinator for place in (*self.places, *self.elections)}
        made = [self.connections.coordinator(name) for name in sorted(names)]
        coordinators = [each for each in made if isinstance(each, (Coordinator, AsyncCoordinator))]
        if not coordinators:
            return
        on_sigterm(*coordinators)
        handler: Any = signal.getsignal(signal.SIGTERM)

        def end(*given: Any) -> None:
            self._is_ending = True  # or the handler of another signal would raise in this one
            signal.signal(signal.SIGTERM, handler)
            handler(*given)

        signal.signal(signal.SIGTERM, end)

    def watch_the_clock(self) -> None:
        """Note when this process stood still: the machine may be busy."""
        while True:
            start = time.monotonic()
            time.sleep(PULSE)
            if (end := time.monotonic()) - start > PULSE + MISSED:
                self.log.add("stopped", start=start, end=end, text="it did not get the processor")

    def failed(self) -> None:
        self.log.add("error", text=traceback.format_exc()[-3000:])

    # Threads

    def work(self, number: int) -> None:
        sessions = Sessions()
        for chance in self.chances(number):
            try:
                turn = self.turn(chance, sessions)
                turn.take()
                while turn.unknown:
                    write, error = turn.unknown.pop()
                    run(turn.ask(error, write))
                self.resting.wait(chance.choice([0.0, 0.01, 0.05]))
            except Interrupted:
                sessions.clear()
            except StatementError as error:  # SQLAlchemy's own code was interrupted
                sessions.clear()
                if not isinstance(error.orig, Interrupted):
                    self.failed()
            except Exception:  # noqa: BLE001 - noted
                self.failed()

    def with_threads(self) -> None:
        reader = threading.Thread(target=self._wait_for_rest, daemon=True)
        threads = [threading.Thread(target=self.work, args=(n,)) for n in range(1, self.setup["workers"])]
        self.end_with_sigterm()
        self._replicas = self.replicas()
        for thread in (reader, *threads):
            thread.start()
        for replica in self._replicas:
            threads += replica.start()
        try:
            signal.signal(signal.SIGUSR1, self._interrupt)
            print("ready", flush=True)
            while not self.resting.is_set():
                with contextlib.suppress(Interrupted):  # it was raised between two turns
                    self.work(0)
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        for thread in threads:
            thread.join()
        self._leave()
        self.connections.close()

    def _interrupt(self, *_: object) -> None:
        if not (self.resting.is_set() or self._is_ending):
            raise Interrupted

    def _wait_for_rest(self) -> None:
        sys.stdin.readline()
        self.resting.set()
        for replica in self._replicas:
            replica.election.stop()

    def _leave(self) -> None:
        print("rested", flush=True)
        sys.stdin.readline()

    # Tasks

    async def task(self, number: int) -> None:
        sessions = Sessions()
        for chance in self.chances(number):
            turn = self.turn(chance, sessions)
            try:
                seconds = chance.choice([None, None, None, chance.random() * 0.2])
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await turn.take_async()
                while turn.unknown:
                    write, error = turn.unknown.pop()
                    await run_async(turn.ask(error, write))
            except EXPECTED:
                self.failed()
            except Exception:  # noqa: BLE001 - noted
                self.failed()
            await asyncio.sleep(chance.choice([0.0, 0.01, 0.05]))

    async def with_tasks(self) -> None:
        await self.connections.open()
        loop = asyncio.get_running_loop()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self.end_with_sigterm()
        self._replicas = self.replicas()
        print("ready", flush=True)
        waiting = loop.run_in_executor(None, self._wait_for_rest)
        tasks = [self.task(number) for number in range(self.setup["workers"])]
        for replica in self._replicas:
            tasks += [replica.run_async(), replica.observe_async()]
        await asyncio.gather(waiting, *tasks)
        await loop.run_in_executor(None, self._leave)
        await self.connections.close_async()


def main() -> None:
    faulthandler.register(signal.SIGUSR2)
    logging.disable()
    sys.unraisablehook = lambda _: None  # a handler's exception in a destructor
    worker = Worker(json.loads(sys.argv[1]))
    threading.Thread(target=worker.watch_the_clock, daemon=True).start()
    try:
        if worker.connections.asynchronous:
            asyncio.run(worker.with_tasks())
        else:
            worker.with_threads()
    except Exception:
        worker.failed()
        raise


if __name__ == "__main__":
    main()
