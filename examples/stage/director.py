"""How an act is directed: which worker goes on, which one is paused, what is recorded.

A director decides when a worker is paused and when it goes on. It does not decide what the workers and the servers do
then; that is recorded as they report it.
"""

import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from examples.drawing.events import Event, Recorder
from examples.stage.process import PATIENCE, DemoError, WorkerProcess
from examples.stage.screen import Screen
from fencing import CoordinatorUnavailable, FencedLock
from fencing.kernel.guard import Guard


class Act(NamedTuple):
    key: str
    title: str
    how: str
    """The function that the workers run."""
    fenced: bool
    """Whether their requests to the storage carry the fencing number."""
    resumes_early: bool
    """A resumes while B is at work; otherwise after B has finished."""
    harms: bool
    """The expected result, to be compared with the measured one."""


class Director(ABC):
    """A director of two workers, A and B, that want the same lock."""

    STORAGE: ClassVar[str]
    """The lane of the storage that the guard protects."""

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
        """Play it and return the result, which has ``as_expected``."""

    @abstractmethod
    def _record(self, name: str, report: dict[str, Any]) -> None:
        """Record a report of a kind that only this demo has."""

    def _begin(self, act: Act, resource: str) -> None:
        self._act = act
        self._resource = f"{self._prefix}{resource}"
        self._lock = FencedLock(self._redis, self._resource)
        self._leases: dict[str, Event] = {}
        self._names: dict[int, str] = {}
        self._fences: dict[str, dict[str, Any]] = {}
        self._refused: list[str] = []

    def _sent(self, name: str) -> dict[str, Any]:
        """Return the fencing number that a worker's requests carry, if they carry one."""
        return self._fences.get(name, {}) if self._act.fenced else {}

    def _until(self, name: str, *kinds: str) -> str:
        """Record a worker's reports up to one of these kinds; return that kind."""
        while True:
            report = self._workers[name].report(lambda: self._screen.wait(f"waiting for {name}"))
            kind, at = str(report["kind"]), report["at"]
            if kind == "acquired":
                self._record_grant(name, at, report["number"])
            elif kind == "lost":
                self._recorder.add(name, kind, "gets LeaseLost", at=at, reason=report["reason"])
            elif kind == "released":
                self._recorder.add(name, kind, "frees the lock", at=at, target="lock")
                self._recorder.close(self._leases.pop(name), "free", at=at)
            else:
                self._record(name, report)
            if kind in kinds:
                return kind
            if kind == "done":
                raise DemoError(f"worker {name} finished without reporting {' or '.join(kinds)}")

    def _freeze(self, name: str) -> Event:
        worker = self._workers[name]
        deadline = time.monotonic() + PATIENCE
        worker.freeze()
        while not self._serves_others():
            if time.monotonic() > deadline:
                raise DemoError("the lock service does not answer")
            worker.thaw()
            time.sleep(0.02)
            worker.freeze()
        return self._recorder.open(name, "paused", "PAUSED (SIGSTOP)", pid=worker.pid)

    def _serves_others(self) -> bool:
        """Whether others can be granted a lock: a process that is frozen in the middle of a renewal may keep the write
        lock of a file of SQLite, which everybody needs.
        """
        if not hasattr(self._redis, "create_tables"):  # its servers answer others, or the act is about those
            return True
        try:
            with FencedLock(self._redis, f"{self._resource}:another").hold(timeout=0.3):
                return True
        except CoordinatorUnavailable:
            return False

    def _thaw(self, name: str, pause: Event) -> None:
        self._recorder.close(pause, "resumes (SIGCONT)")
        self._workers[name].thaw()

    def _wait_for_expiry(self, name: str = "A") -> None:
        """Ask the coordinator until the lock has expired."""
        deadline = time.monotonic() + self._ttl + PATIENCE
        while (holder := self._lock.holder()) is not None:
            if time.monotonic() > deadline:
                raise DemoError(f"the lock of {holder.owner} has not expired")
            self._screen.wait(f"{name}'s lock expires in {holder.remaining or 0:.1f} s")
            time.sleep(0.02)
        self._recorder.close(self._leases.pop(name), "expires")

    def _record_grant(self, name: str, at: float, number: int) -> None:
        fence = self._fences[name] = {"number": number, "label": self._recorder.alias(number)}
        label = self._names[number] = f"{name} {fence['label']}"
        for earlier in [other for other in self._leases if other != name]:  # the coordinator grants it to one at a time
            self._recorder.close(self._leases.pop(earlier), "expires", at=at - 1e-6)
        self._recorder.add(name, "acquired", "takes the lock", at=at, source="lock", **fence)
        self._leases[name] = self._recorder.open("lock", "held", label, at=at, holder=name, number=number)
        mark = self._guard.mark(self._resource)
        if mark:  # the storage has been claimed: record the claimant
            fence = {"number": mark.number, "label": self._recorder.alias(mark.number)}
            text = f"claimed: {self._name(mark.number)}"
            self._recorder.add(self.STORAGE, "claimed", text, because=at, source=name, **fence)

    def _name(self, number: int) -> str:
        """Return the worker and alias of a fencing number; of a grant that was not reported only the alias."""
        return self._names.get(number, self._recorder.alias(number))
