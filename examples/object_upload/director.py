"""Plays an act with two real uploaders and a reader, and measures the result.

The director decides when a worker is paused, when it goes on and how slowly its data arrives. It does not decide what
the processes and the servers do then; that is recorded as they report it. The state of the store is read from it.
"""

import time
from dataclasses import dataclass
from typing import Any

from obstore.store import ObjectStore

from examples.drawing.events import Lane, Recorder
from examples.object_upload.uploads import NAMES, Day, Seen, number_of, read, read_published
from examples.stage import director
from examples.stage.director import Act
from examples.stage.process import PATIENCE, WorkerProcess
from examples.stage.screen import Screen
from fencing import FencedLock
from storage_guards import ObjectStoreGuard

SUNDAY = Day(10, 20)
DAYS = {"A": Day(40, 60), "B": Day(70, 80)}

LANES = (
    Lane("A", "A: MONDAY", hue=1),
    Lane("lock", "LOCK"),
    Lane("B", "B: TUESDAY", hue=2),
    Lane("store", "STORE (S3)"),
    Lane("reader", "READER SEES", hue=3),
)

ENOUGH = 5
"""After an event, so many complete reads show what a reader sees then."""


@dataclass(frozen=True)
class Outcome:
    """The measured result of an act."""

    act: Act
    acknowledged: list[str]
    """Workers whose complete upload was acknowledged, in order."""
    refused: list[str]
    """The messages that refused workers got."""
    reads: int
    torn: int
    """How many of them saw files from different days."""
    days: list[str]
    """What the other reads saw, in the order in which it first came."""
    final: Seen
    """In the store."""

    @property
    def good(self) -> bool:
        """Whether B's files are in the store and no read was torn."""
        return self.torn == 0 and self.final == whole_day(DAYS["B"])

    @property
    def as_expected(self) -> bool:
        if self.act.harms:
            return self.final.torn and self.torn > 0 and "B" in self.acknowledged and not self.refused
        days = [str(whole_day(day)) for day in (SUNDAY, DAYS["B"])]
        return self.good and self.days == days and self.acknowledged == ["B"] and bool(self.refused)


def whole_day(day: Day) -> Seen:
    return Seen(day.north, day.south, day.north + day.south)


class Director(director.Director):
    STORAGE = "store"
    _guard: ObjectStoreGuard

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
        super().__init__(workers, redis_client, ObjectStoreGuard(store), recorder, screen, ttl=ttl, prefix=prefix)
        self._reader = reader
        self._store = store
        self._datasets = 0

    def play(self, act: Act) -> Outcome:
        self._begin_dataset(act)
        self._start("A")
        self._until("A", "uploading")
        pause = self._freeze("A")
        self._go_on("A")  # the rest of its data has come: from here on nothing but the pause keeps it from uploading
        self._record_store("A")
        self._watch()
        self._wait_for_expiry()
        self._start("B")
        self._until("B", "uploading")
        if not act.resumes_early:
            self._complete("B")
        self._thaw("A", pause)
        self._until("A", "done")
        self._record_store("A")
        self._watch()
        if act.resumes_early:
            self._complete("B")
        return self._end()

    def _begin_dataset(self, act: Act) -> None:
        self._datasets += 1
        self._begin(act, f"sales-{self._datasets}")
        self._sent_at: dict[str, float] = {}
        """By worker: when the store took an object of it, if its effect is not recorded yet."""
        self._acknowledged: list[str] = []
        self._readings: list[Seen] = []
        self._publish_sunday()
        self._recorder.begin(act.key)
        self._last = self._in_store()
        self._recorder.add("store", "found", str(self._last), files=list(self._last))
        self._start_reading()
        self._watch()

    def _publish_sunday(self) -> None:
        bodies = {name: b"%d\n" % number for name, number in whole_day(SUNDAY)._asdict().items()}
        if self._act.how == "guarded":
            lock = FencedLock(self._redis, self._resource, guards=[self._guard])
            with lock.hold(timeout=PATIENCE) as lease:
                self._guard.publish(lease, bodies)
        else:
            for name, body in bodies.items():
                self._store.put(f"{self._resource}/{name}", body)

    def _start_reading(self) -> None:
        self._reader.send(how=self._act.how, resource=self._resource)

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

    def _watch(self) -> None:
        """Record what readers see from now on."""
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
        fence = self._sent(name)
        if kind == "sent":
            file = report["name"]
            add(name, kind, self._put(name, file), at=at, target="store", file=file, **fence)
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
            add(name, kind, f"stops: {report['name']} is newer", at=at, source="store")

    def _put(self, name: str, file: str) -> str:
        return f"puts {file} {whole_day(DAYS[name])._asdict()[file]}"

    def _record_store(self, name: str) -> None:
        """Record what is in the store after a worker has sent something. Nothing else sends meanwhile."""
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
        """Return the numbers that the objects carry; Sunday's have none."""
        numbers = (number_of(self._store, f"{self._resource}/{name}") for name in NAMES)
        return ",".join(self._recorder.alias(number) if number else "0" for number in numbers)

    def _in_store(self) -> Seen:
        if self._act.how == "guarded":
            return read_published(self._guard, self._resource)
        return read(self._store, self._resource)
