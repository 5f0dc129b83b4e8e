"""Plays an act with two real uploaders and a reader, and measures what came of it.

The director decides when a worker is stopped, when it goes on, and how slow its data are. What the processes, Redis and
the store do then is theirs; it is recorded as they report it, and what is in the store is read from there.
"""

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from obstore.store import ObjectStore

from examples.drawing.events import Event, Lane, Recorder
from examples.object_upload.uploads import NAMES, Day, Seen, number_of, read, read_published
from examples.stage.process import PATIENCE, DemoError, WorkerProcess
from examples.stage.screen import Screen
from fencing import FencedLock
from storage_guards import ObjectStoreGuard

SUNDAY = Day(10, 20)
DAYS = {"A": Day(40, 60), "B": Day(70, 80)}

LANES = (
    Lane("A", "A: MONDAY", hue=1),
    Lane("lock", "REDIS"),
    Lane("B", "B: TUESDAY", hue=2),
    Lane("store", "STORE (S3)"),
    Lane("reader", "READER SEES", hue=3),
)

ENOUGH = 5
"""So many readings, from beginning to end after something has happened, tell what a reader sees then."""


class Act(NamedTuple):
    key: str
    title: str
    how: str
    """The function in uploads.py."""
    fenced: bool
    """What is sent carries the fencing number."""
    wakes_early: bool
    """A wakes when B is in mid-upload; else when B is done."""
    tears: bool
    """What is claimed of it, to be compared with what is measured."""


@dataclass(frozen=True)
class Outcome:
    """What an act came to, as measured."""

    act: Act
    acknowledged: list[str]
    """Workers whose whole upload was acknowledged, in order."""
    refused: list[str]
    """What a worker was told that the store refused."""
    reads: int
    torn: int
    """How many of them saw files of different days."""
    days: list[str]
    """What readers saw, without what was torn, in the order in which it first came."""
    final: Seen
    """In the store."""

    @property
    def good(self) -> bool:
        """All as a newer uploader and its readers want it."""
        return self.torn == 0 and self.final == whole_day(DAYS["B"])

    @property
    def as_claimed(self) -> bool:
        if self.act.tears:
            return self.final.torn and self.torn > 0 and "B" in self.acknowledged and not self.refused
        days = [str(whole_day(day)) for day in (SUNDAY, DAYS["B"])]
        return self.good and self.days == days and self.acknowledged == ["B"] and bool(self.refused)


def whole_day(day: Day) -> Seen:
    return Seen(day.north, day.south, day.north + day.south)


class Director:
    def __init__(
        self,
        workers: dict[str, WorkerProcess],
        reader: WorkerProcess,
        redis_client: Any,
        store: ObjectStore,
        recorder: Recorder,
        screen: Screen,
        *,
        ttl: float,
        prefix: str,
    ) -> None:
        self._workers = workers
        self._reader = reader
        self._redis = redis_client
        self._store = store
        self._guard = ObjectStoreGuard(store)
        self._recorder = recorder
        self._screen = screen
        self._ttl = ttl
        self._prefix = prefix
        self._datasets = 0

    def play(self, act: Act) -> Outcome:
        self._begin(act)
        self._start("A")
        self._until("A", "uploading")
        pause = self._freeze("A")
        self._go_on("A")  # the rest of its data has come: from here on nothing but the pause keeps it from uploading
        self._record_store("A")
        self._watch()
        self._wait_for_expiry()
        self._start("B")
        self._until("B", "uploading")
        if not act.wakes_early:
            self._complete("B")
        self._recorder.close(pause, "wakes (SIGCONT)")
        self._workers["A"].thaw()
        self._until("A", "done")
        self._record_store("A")
        self._watch()
        if act.wakes_early:
            self._complete("B")
        return self._end()

    def _begin(self, act: Act) -> None:
        self._act = act
        self._datasets += 1
        self._resource = f"{self._prefix}sales-{self._datasets}"
        self._lock = FencedLock(self._redis, self._resource, ttl=self._ttl)
        self._leases: dict[str, Event] = {}
        self._names: dict[int, str] = {}
        self._fences: dict[str, dict[str, Any]] = {}
        """By worker: the fencing number that it has."""
        self._sent_at: dict[str, float] = {}
        """By worker: when the store took something of it that was not looked at yet."""
        self._acknowledged: list[str] = []
        self._refused: list[str] = []
        self._readings: list[Seen] = []
        self._publish_sunday()
        self._recorder.begin(act.key)
        self._last = self._in_store()
        self._recorder.add("store", "found", str(self._last), files=list(self._last))
        self._reader.send(how=act.how, resource=self._resource)
        self._watch()

    def _publish_sunday(self) -> None:
        bodies = {name: b"%d\n" % number for name, number in whole_day(SUNDAY)._asdict().items()}
        if self._act.how == "guarded":
            lock = FencedLock(self._redis, self._resource, ttl=self._ttl, guards=[self._guard])
            with lock.hold(timeout=PATIENCE) as lease:
                self._guard.publish(lease, bodies)
        else:
            for name, body in bodies.items():
                self._store.put(f"{self._resource}/{name}", body)

    def _start(self, name: str) -> None:
        self._workers[name].send(how=self._act.how, resource=self._resource, **DAYS[name]._asdict())

    def _go_on(self, name: str) -> None:
        self._workers[name].send(rest="has come")

    def _complete(self, name: str) -> None:
        self._go_on(name)
        self._until(name, "done")
        self._record_store(name)
        self._watch()

    def _end(self) -> Outcome:
        self._reader.send(enough=True)
        while self._reader_reports()["kind"] != "done":
            pass
        torn = sum(seen.torn for seen in self._readings)
        days = list(dict.fromkeys(str(seen) for seen in self._readings if not seen.torn))
        final = self._in_store()
        return Outcome(self._act, self._acknowledged, self._refused, len(self._readings), torn, days, final)

    def _until(self, name: str, kind: str) -> None:
        """Take in a worker's reports up to one of this kind."""
        while True:
            report = self._workers[name].report(lambda: self._screen.wait(f"waiting for {name}"))
            self._record(name, report)
            if report["kind"] == kind:
                return
            if report["kind"] == "done":
                raise DemoError(f"{name} was done before it came to {kind}")

    def _freeze(self, name: str) -> Event:
        worker = self._workers[name]
        worker.freeze()
        return self._recorder.open(name, "frozen", "FROZEN (SIGSTOP)", pid=worker.pid)

    def _wait_for_expiry(self) -> None:
        """Ask Redis until the frozen worker's lock has run out."""
        deadline = time.monotonic() + self._ttl + PATIENCE
        while (holder := self._lock.holder()) is not None:
            if time.monotonic() > deadline:
                raise DemoError(f"Redis still holds the lock of {holder.owner}")
            self._screen.wait(f"A's lock runs out in {holder.remaining or 0:.1f} s")
            time.sleep(0.02)
        self._recorder.close(self._leases.pop("A"), "expires")

    def _watch(self) -> None:
        """What readers see from now on."""
        now, kept = time.monotonic(), len(self._readings)
        fresh = 0
        while fresh < ENOUGH:
            report = self._reader_reports()
            fresh += report["began"] >= now
        torn = sum(seen.torn for seen in self._readings[kept:])
        seen = self._readings[-1]
        data: dict[str, Any] = {"files": list(seen), "reads": len(self._readings) - kept, "torn": torn}
        if seen.torn:
            data["flag"] = "TORN"
        kind = "torn" if seen.torn else "whole"
        self._recorder.add("reader", kind, str(seen), at=report["at"], source="store", **data)

    def _reader_reports(self) -> dict[str, Any]:
        report = self._reader.report(lambda: self._screen.wait("waiting for the reader"))
        if report["kind"] == "saw":
            self._readings.append(Seen(*report["files"]))
        return report

    def _record(self, name: str, report: dict[str, Any]) -> None:
        at, kind, add = report["at"], report["kind"], self._recorder.add
        fence: dict[str, Any] = self._fences.get(name, {}) if self._act.fenced else {}
        if kind == "acquired":
            self._record_grant(name, at, report["number"])
        elif kind == "sent":
            file = report["name"]
            number = whole_day(DAYS[name])._asdict()[file]
            add(name, kind, f"puts {file} {number}", at=at, target="store", file=file, **fence)
            self._sent_at[name] = at
        elif kind == "wrote":
            self._acknowledged.append(name)
            if self._act.how == "guarded":
                add(name, kind, "publishes all", at=at, target="store", **fence)
                self._sent_at[name] = at
        elif kind == "refused":
            self._refused.append(report["reason"])
            add(name, "tried", "tries to publish", at=at, target="store", reason=report["reason"], **fence)
            newest = report["newest"]
            add("store", kind, "REFUSED" + (f": {self._name(newest)} claimed" if newest else ""), because=at)
        elif kind == "stopped":
            add(name, kind, f"stops: newer {report['name']}", at=at, source="store")
        elif kind == "told":
            add(name, kind, "is told: lock lost", at=at, reason=report["reason"])
        elif kind == "released":
            add(name, kind, "frees the lock", at=at, target="lock")
            self._recorder.close(self._leases.pop(name), "free", at=at)

    def _record_grant(self, name: str, at: float, number: int) -> None:
        alias = self._recorder.alias(number)
        self._fences[name] = {"number": number, "label": alias}
        label = self._names[number] = f"{name} {alias}"
        self._recorder.add(name, "acquired", "takes the lock", at=at, source="lock", **self._fences[name])
        self._leases[name] = self._recorder.open("lock", "held", label, at=at, holder=name, number=number)
        mark = self._guard.mark(self._resource)
        if mark:  # in the store: that it was claimed, and by whom
            fence: dict[str, Any] = {"number": mark.number, "label": self._recorder.alias(mark.number)}
            text = f"claimed: {self._name(mark.number)}"
            self._recorder.add("store", "claimed", text, because=at, source=name, **fence)

    def _record_store(self, name: str) -> None:
        """What is in the store after a worker has sent something. Nobody else sends meanwhile."""
        at = self._sent_at.pop(name, None)
        files = self._in_store()
        if at is None or files == self._last:
            return
        self._last = files
        data: dict[str, Any] = {"files": list(files), "by": name}
        if files.torn:
            flag = "TORN" + (f": {self._whose()}" if self._act.how == "textbook" else "")
            self._recorder.add("store", "damaged", str(files), because=at, flag=flag, **data)
        else:
            self._recorder.add("store", "written", str(files), because=at, **data)

    def _whose(self) -> str:
        """The numbers that the objects carry; Sunday's have none."""
        numbers = (number_of(self._store, f"{self._resource}/{name}") for name in NAMES)
        return ",".join(self._recorder.alias(number) if number else "0" for number in numbers)

    def _name(self, number: int) -> str:
        """Whose fencing number this is; a grant that nobody got to see has only its alias."""
        return self._names.get(number, self._recorder.alias(number))

    def _in_store(self) -> Seen:
        if self._act.how == "guarded":
            return read_published(self._guard, self._resource)
        return read(self._store, self._resource)
