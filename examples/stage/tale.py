"""A story in one file: its acts, its texts, and one function that says which actor does what when.

A module with a subclass of `Tale` and, as functions, what its actors do. `perform` runs it.
"""

import random
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
import redis
from sqlalchemy.exc import SQLAlchemyError

from examples.drawing.events import Event, Recorder
from examples.servers import start_postgres
from examples.stage import director
from examples.stage.coordinators import CHOICES, names_of_our_own
from examples.stage.director import Act
from examples.stage.process import WorkerProcess
from examples.stage.run import Demo, Options, run
from examples.stage.screen import Screen
from examples.stage.story import Story
from fencing import FencingError
from storage_guards import PsycopgGuard


@dataclass(frozen=True)
class Result:
    """The measured result of an act."""

    act: Act
    good: bool
    verdict: str
    cells: Sequence[str]
    """Its line in the table, under the tale's HEAD."""
    refused: Sequence[str] = ()
    complete: bool = True
    """Whether all that was needed for the result has happened."""

    @property
    def as_expected(self) -> bool:
        return self.complete and self.good != self.act.harms


class Scene(director.Director):
    """What a tale's `play` directs."""

    STORAGE = "data"

    def __init__(
        self,
        tale: "Tale",
        database: Any,
        address: str,
        hire: Callable[[str], WorkerProcess],
        *arguments: Any,
        options: Options,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, ttl=options.ttl, **settings)
        self._hire = hire
        self._tale = tale
        self.database = database
        self.ttl = options.ttl
        self.recorder = self._recorder
        self.address = address
        self.last: dict[str, Any] = {}
        """The last report of an actor."""

    def play(self, act: Act) -> Result:
        self._begin(act, f"{self._tale.NAME}:{act.key}")
        self._recorder.begin(act.key)
        return self._tale.play(self, act)

    @property
    def resource(self) -> str:
        return self._resource

    @property
    def refused(self) -> list[str]:
        return self._refused

    def start(self, name: str, function: Callable[..., None], **arguments: Any) -> None:
        """Let an actor run a function of the tale's file, or of another one."""
        module = self._tale.module if function.__module__ == "__main__" else function.__module__
        self._workers[name].send(module=module, function=function.__name__, arguments=arguments)

    def until(self, name: str, *kinds: str) -> str:
        """Record what an actor shows, up to one of these kinds; return that kind."""
        return self._until(name, *kinds)

    def go_on(self, name: str) -> None:
        """End an actor's `wait`."""
        self._workers[name].send(go_on=True)

    def pause(self, name: str) -> Event:
        return self._freeze(name)

    def resume(self, name: str, pause: Event) -> None:
        self._thaw(name, pause)

    def kill(self, name: str, during: Event | None = None) -> None:
        """Kill an actor, as a crash does; it ends what lasts. Another process takes its place for the next act."""
        if during:
            self._recorder.close(during, "CRASHES (SIGKILL)")
        else:
            self._recorder.add(name, "killed", "CRASHES (SIGKILL)")
        self._workers[name].close()
        self._workers[name] = self._hire(name)

    def finish(self, name: str) -> None:
        """Let an actor that waits run to its end, without recording it."""
        self.go_on(name)
        while (report := self._workers[name].report())["kind"] != "done":
            if report["kind"] in ("step", "worked"):
                self.go_on(name)

    def passes(self, condition: Callable[[], bool]) -> bool:
        """Wait until it is so, for no longer than a lock lives and a moment; return whether it is."""
        deadline = time.monotonic() + self.ttl + 1
        while not condition():
            if time.monotonic() > deadline:
                return False
            self._screen.wait("waiting for the lock to expire")
            time.sleep(0.02)
        return True

    def wait_for_expiry(self, name: str) -> None:
        """Wait until the lock that this actor got has expired at the coordinator."""
        self._wait_for_expiry(name)

    def data(self, kind: str, text: str, **data: Any) -> None:
        """Show what the last report of an actor has changed in the storage, or what is there."""
        self._recorder.add(self.STORAGE, kind, text, because=self.last.get("at"), **data)

    def query(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        rows = self.database.execute(query, parameters)
        return list(rows.fetchall()) if rows.description else []

    def _record(self, name: str, report: dict[str, Any]) -> None:
        self.last = report
        kind, at = report["kind"], report["at"]
        if kind == "refused":
            self._refused.append(report["reason"])
            text, newest = "tries to write", report["newest"]
            sent = self._sent(name)
            self._recorder.add(name, "tried", text, at=at, target=self.STORAGE, reason=report["reason"], **sent)
            self.data("refused", "REFUSED" + (f": {self._name(newest)} claimed" if newest else ""))
        elif kind not in ("ready", "done", *self._tale.SHOWN_AS_BAR):
            data = {key: value for key, value in report.items() if key not in ("kind", "at", "text")}
            fence = self._sent(name) if data.get("target") == self.STORAGE else {}
            self._recorder.add(name, kind, report["text"], at=at, **data, **fence)


class Tale(Story[Result]):
    ABOUT: ClassVar[str]
    ACTORS: ClassVar[Sequence[str]] = ("A", "B")
    TABLES: ClassVar[str]
    """SQL that creates the tables of the story."""
    SHOWN_AS_BAR: ClassVar[Sequence[str]] = ()
    """Kinds of reports that the tale draws by itself."""
    LOCK_ENDS: ClassVar[Mapping[str, str]] = {"expires": "has expired", "free": "is free again"}
    COORDINATORS: ClassVar[Sequence[str]] = tuple(CHOICES)

    @property
    def module(self) -> str:
        return f"examples.stories.{self.NAME.replace('-', '_')}"  # not its __module__: that may be __main__

    @abstractmethod
    def play(self, scene: Scene, act: Act) -> Result:
        """Say which actor does what when, and measure the result."""

    def start_coordinator(self, stack: ExitStack, choice: str) -> str:
        """Start the servers of the coordinator; return their address."""
        return CHOICES[choice].start(stack)

    def settings(self, stack: ExitStack, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Return what an actor gets to know, if it differs."""
        return settings

    def prepare(self, chance: random.Random) -> None:
        """Draw the figures of the story."""

    def sentences(self, event: Event) -> Mapping[str, Callable[[], str]]:
        if event.kind == "paused":
            return {}
        return {event.kind: lambda: f"{event.lane}: {event.text}."} if event.lane not in ("lock", "outcome") else {}

    def verdict(self, outcome: Result, events: Sequence[Event]) -> str:
        return outcome.verdict

    def cells(self, outcome: Result) -> Sequence[str]:
        return outcome.cells

    def expectation(self, act: Act) -> str:
        return "something goes wrong" if act.harms else "all is well"

    def set_up(self, stack: ExitStack, screen: Screen, recorder: Recorder, options: Options) -> Scene:
        """Start the actors and the servers; the stack removes all of it again."""
        starting = "starting processes and servers"
        screen.wait(starting)
        settings: dict[str, dict[str, Any]] = {}

        def hire(name: str) -> WorkerProcess:
            worker = WorkerProcess(name, "examples.stage.actor", self.module)
            stack.callback(worker.close)
            if settings:
                worker.send(**settings[name])
            return worker

        workers = {name: hire(name) for name in self.ACTORS}  # they import while the servers start
        choice = CHOICES[options.coordinator]
        address = self.start_coordinator(stack, options.coordinator)
        postgres = stack.enter_context(start_postgres())
        engine_url = postgres.create_database()
        stack.callback(postgres.drop_database, engine_url)
        url = engine_url.replace("+psycopg", "", 1)  # as libpq takes it
        database: psycopg.Connection[Any] = stack.enter_context(psycopg.connect(url, autocommit=True))
        guard = PsycopgGuard(database)
        guard.create_tables()
        database.execute(self.TABLES)  # type: ignore[arg-type,unused-ignore]
        self.prepare(random.Random(options.seed))
        common = {"coordinator": options.coordinator, "address": address, "database": url, "ttl": options.ttl}
        for name, worker in workers.items():
            settings[name] = self.settings(stack, name, {**common, "seed": options.seed})
            worker.send(**settings[name])
        for worker in workers.values():
            worker.report(lambda: screen.wait(starting))
        screen.say(
            ", ".join(f"{name} is process {worker.pid}" for name, worker in workers.items()) + f"; {choice.title}.", "2"
        )
        coordinator = stack.enter_context(choice.open(address, ttl=options.ttl))
        prefix = names_of_our_own()
        return Scene(
            self, database, address, hire, workers, coordinator, guard, recorder, screen, options=options, prefix=prefix
        )


FAILURES = (FencingError, SQLAlchemyError, redis.RedisError, psycopg.Error)


def perform(tale: Tale, arguments: Sequence[str] | None = None) -> int:
    """Return 0: each act had the expected result. 1: one had not, or failed. 130, 143: interrupted."""
    return run(Demo(tale.module, tale.ABOUT, tale, tale.set_up, FAILURES, tale.COORDINATORS), arguments)
