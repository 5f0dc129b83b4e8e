"""Plays an act with two real workers and two readers, and measures the result.

Its course is that of `examples.object_upload`: A is paused in the middle of its dataset, and B replaces the dataset
meanwhile. Here it is one of Parquet files in partitions, which DuckDB and pyarrow query all the time.
"""

import time
from dataclasses import dataclass
from typing import Any

from obstore.store import S3Store

from examples.dataset import tables
from examples.dataset.tables import (
    MONTHS,
    Seen,
    files_of_bucket,
    files_of_publication,
    paths_of_latest,
    with_pyarrow,
)
from examples.drawing.events import Lane, Recorder
from examples.object_upload import director
from examples.object_upload.director import ENOUGH
from examples.stage.director import Act
from examples.stage.process import WorkerProcess
from examples.stage.screen import Screen
from fencing import FencedLock

SUNDAY = "Sunday"
DAYS = {"A": "Monday", "B": "Tuesday"}

LANES = (
    Lane("A", "A: MONDAY", hue=1),
    Lane("lock", "LOCK"),
    Lane("B", "B: TUESDAY", hue=2),
    Lane("store", "CURRENT IN S3"),
    Lane("DuckDB", "DUCKDB SEES", hue=3),
    Lane("pyarrow", "PYARROW SEES", hue=3),
)


@dataclass(frozen=True)
class Outcome:
    """The measured result of an act."""

    act: Act
    acknowledged: list[str]
    """Workers whose whole dataset was acknowledged, in order."""
    refused: list[str]
    """The messages that refused workers got."""
    reads: dict[str, int]
    """By reader."""
    torn: dict[str, int]
    """How many of them found partitions of different days."""
    days: list[str]
    """What the other reads found, in the order in which it first came."""
    final: Seen
    """What is current at the end."""

    @property
    def good(self) -> bool:
        """Whether B's dataset is current and no read was torn."""
        return not any(self.torn.values()) and self.final == whole(DAYS["B"])

    @property
    def as_expected(self) -> bool:
        if self.act.harms:
            return self.final.torn and all(self.torn.values()) and "B" in self.acknowledged and not self.refused
        days = [str(whole(day)) for day in (SUNDAY, DAYS["B"])]
        return self.good and self.days == days and self.acknowledged == ["B"] and bool(self.refused)


def whole(day: str) -> Seen:
    return Seen((day,) * len(MONTHS))


class _Silent:
    """`Show`, where nothing is shown."""

    def acquired(self, lease: Any) -> None: ...
    def slowly(self, months: Any) -> Any:
        return months

    def sent(self, name: str) -> None: ...
    def wrote(self) -> None: ...


class Director(director.Director):
    _store: S3Store

    def __init__(
        self,
        workers: dict[str, WorkerProcess],
        readers: dict[str, WorkerProcess],
        locks: Any,
        store: S3Store,
        recorder: Recorder,
        screen: Screen,
        *,
        ttl: float,
        prefix: str,
    ) -> None:
        super().__init__(workers, readers["DuckDB"], locks, store, recorder, screen, ttl=ttl, prefix=prefix)
        self._readers = readers

    def play(self, act: Act) -> Any:
        self._found: dict[str, list[Seen]] = {name: [] for name in self._readers}
        return super().play(act)

    def _publish_sunday(self) -> None:
        guards = [self._guard] if self._act.how == "guarded" else []
        lock = FencedLock(self._redis, self._resource, guards=guards)
        if self._act.how == "guarded":
            tables.guarded(lock, self._guard, SUNDAY, _Silent())
        else:
            self._store.put(f"{self._resource}/latest.json", b'{"version": 0}')
            tables.latest_json(lock, self._store, SUNDAY, _Silent())

    def _start_reading(self) -> None:
        for reader in self._readers.values():
            reader.send(how=self._act.how, resource=self._resource)

    def _start(self, name: str) -> None:
        self._workers[name].send(how=self._act.how, resource=self._resource, day=DAYS[name])

    def _watch(self) -> None:
        """Record what both readers see from now on."""
        now = time.monotonic()
        for name in self._readers:
            kept, fresh = len(self._found[name]), 0
            while fresh < ENOUGH:
                report = self._reports_of(name)
                fresh += report["began"] >= now
            seen = self._found[name][-1]
            torn = sum(each.torn for each in self._found[name][kept:])
            data: dict[str, Any] = {"days": list(seen), "reads": len(self._found[name]) - kept, "torn": torn}
            if seen.torn:
                data["flag"] = "TORN"
            kind = "torn" if seen.torn else "whole"
            self._recorder.add(name, kind, str(seen), at=report["at"], source="store", **data)

    def _reports_of(self, name: str) -> dict[str, Any]:
        report = self._readers[name].report(lambda: self._screen.wait(f"waiting for {name}"))
        if report["kind"] == "saw":
            self._found[name].append(Seen(tuple(report["days"])))
        return report

    def _end(self) -> Any:
        for name, reader in self._readers.items():
            reader.send(enough=True)
            while self._reports_of(name)["kind"] != "done":
                pass
        every = [seen for found in self._found.values() for seen in found]
        return Outcome(
            self._act,
            self._acknowledged,
            self._refused,
            {name: len(found) for name, found in self._found.items()},
            {name: sum(seen.torn for seen in found) for name, found in self._found.items()},
            list(dict.fromkeys(str(seen) for seen in every if not seen.torn)),
            self._in_store(),
        )

    def _put(self, name: str, file: str) -> str:
        return f"puts {file}"

    def _record(self, name: str, report: dict[str, Any]) -> None:
        super()._record(name, report)
        if report["kind"] == "wrote" and self._act.how != "guarded":
            self._recorder.add(name, "wrote", "puts latest.json", at=report["at"], target="store", **self._sent(name))
            self._sent_at[name] = report["at"]

    def _in_store(self) -> Any:
        if self._act.how == "guarded":
            return with_pyarrow(*files_of_publication(self._guard, self._resource))
        return with_pyarrow(files_of_bucket(self._store), paths_of_latest(self._store, self._resource))
