"""How an act is directed: who goes on, who is stopped, what is recorded of it.

A director decides when a worker is stopped and when it goes on. What the workers and the servers do then is theirs; it
is recorded as they report it.
"""

import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from examples.drawing.events import Event, Recorder
from examples.stage.process import PATIENCE, DemoError, WorkerProcess
from examples.stage.screen import Screen
from fencing import FencedLock
from fencing.kernel.guard import Guard


class Act(NamedTuple):
    key: str
    title: str
    how: str
    """The function that the workers run."""
    fenced: bool
    """What they send to the storage carries the fencing number."""
    wakes_early: bool
    """A wakes when B is at work; else when B is done."""
    harms: bool
    """What is claimed of it, to be compared with what is measured."""


class Director(ABC):
    """Of two workers, A and B, who want the same lock."""

    STORAGE: ClassVar[str]
    """The lane of what the guard keeps."""

    def __init__(
        self,
        workers: dict[str, WorkerProcess],
        redis_client: Any,
        guard: Guard,
        recorder: Recorder,
        screen: Screen,
        *,
        ttl: float,
        prefix: str,
    ) -> None:
        self._workers = workers
        self._redis = redis_client
        self._guard = guard
        self._recorder = recorder
        self._screen = screen
        self._ttl = ttl
        self._prefix = prefix

    @abstractmethod
    def play(self, act: Act) -> Any:
        """What came of it, with ``as_claimed``."""

    @abstractmethod
    def _record(self, name: str, report: dict[str, Any]) -> None:
        """What is the demo's own in a worker's reports."""

    def _begin(self, act: Act, resource: str) -> None:
        self._act = act
        self._resource = f"{self._prefix}{resource}"
        self._lock = FencedLock(self._redis, self._resource, ttl=self._ttl)
        self._leases: dict[str, Event] = {}
        self._names: dict[int, str] = {}
        self._fences: dict[str, dict[str, Any]] = {}
        self._refused: list[str] = []

    def _sent(self, name: str) -> dict[str, Any]:
        """The fencing number that a worker's requests carry, if they carry one."""
        return self._fences.get(name, {}) if self._act.fenced else {}

    def _until(self, name: str, *kinds: str) -> str:
        """Take in a worker's reports up to one of these kinds; which one it was."""
        while True:
            report = self._workers[name].report(lambda: self._screen.wait(f"waiting for {name}"))
            kind, at = str(report["kind"]), report["at"]
            if kind == "acquired":
                self._record_grant(name, at, report["number"])
            elif kind == "told":
                self._recorder.add(name, kind, "is told: lock lost", at=at, reason=report["reason"])
            elif kind == "released":
                self._recorder.add(name, kind, "frees the lock", at=at, target="lock")
                self._recorder.close(self._leases.pop(name), "free", at=at)
            else:
                self._record(name, report)
            if kind in kinds:
                return kind
            if kind == "done":
                raise DemoError(f"{name} was done before it came to {' or '.join(kinds)}")

    def _freeze(self, name: str) -> Event:
        worker = self._workers[name]
        worker.freeze()
        return self._recorder.open(name, "frozen", "FROZEN (SIGSTOP)", pid=worker.pid)

    def _thaw(self, name: str, pause: Event) -> None:
        self._recorder.close(pause, "wakes (SIGCONT)")
        self._workers[name].thaw()

    def _wait_for_expiry(self) -> None:
        """Ask Redis until the frozen worker's lock has run out."""
        deadline = time.monotonic() + self._ttl + PATIENCE
        while (holder := self._lock.holder()) is not None:
            if time.monotonic() > deadline:
                raise DemoError(f"Redis still holds the lock of {holder.owner}")
            self._screen.wait(f"A's lock runs out in {holder.remaining or 0:.1f} s")
            time.sleep(0.02)
        self._recorder.close(self._leases.pop("A"), "expires")

    def _record_grant(self, name: str, at: float, number: int) -> None:
        fence = self._fences[name] = {"number": number, "label": self._recorder.alias(number)}
        label = self._names[number] = f"{name} {fence['label']}"
        self._recorder.add(name, "acquired", "takes the lock", at=at, source="lock", **fence)
        self._leases[name] = self._recorder.open("lock", "held", label, at=at, holder=name, number=number)
        mark = self._guard.mark(self._resource)
        if mark:  # in the storage: that it was claimed, and by whom
            fence = {"number": mark.number, "label": self._recorder.alias(mark.number)}
            text = f"claimed: {self._name(mark.number)}"
            self._recorder.add(self.STORAGE, "claimed", text, because=at, source=name, **fence)

    def _name(self, number: int) -> str:
        """Whose fencing number this is; a grant that nobody got to see has only its alias."""
        return self._names.get(number, self._recorder.alias(number))
