"""Plays an act with two real clients and a real service, and measures the result."""

from typing import Any

from sqlalchemy import Engine

from examples.drawing.events import Lane, Recorder
from examples.gc_pause import director
from examples.gc_pause.director import AMOUNTS, Outcome
from examples.stage.director import Act
from examples.stage.process import WorkerProcess
from examples.stage.screen import Screen

LANES = (
    Lane("A", f"A adds {AMOUNTS['A']}", hue=1),
    Lane("lock", "LOCK"),
    Lane("B", f"B adds {AMOUNTS['B']}", hue=2),
    Lane("row", "SERVICE (HTTP)"),
)


class Director(director.Director):
    def __init__(
        self,
        workers: dict[str, WorkerProcess],
        service: WorkerProcess,
        redis_client: Any,
        engine: Engine,
        recorder: Recorder,
        screen: Screen,
        *,
        ttl: float,
        prefix: str,
    ) -> None:
        super().__init__(workers, redis_client, engine, recorder, screen, ttl=ttl, prefix=prefix)
        self._service = service

    def play(self, act: Act) -> Outcome:
        self._begin_account(act)
        self._start("A", act)
        self._send_half("A")
        pause = self._freeze("A")
        self._go_on("A")  # from here on nothing but the pause keeps it from sending the rest
        self._wait_for_expiry()
        self._start("B", act)
        self._send_half("B")
        self._go_on("B")
        self._finish("B")
        self._thaw("A", pause)
        if self._until("A", "wrote", "refused") == "wrote":
            self._until("A", "done")
        else:
            self._send_half("A")
            self._go_on("A")
            self._finish("A")
        return Outcome(act, self._acknowledged, self._refused, self._row()[0])

    def _send_half(self, name: str) -> None:
        """Let a client send the first part of its write, until the service has let it pass to the handler."""
        self._until(name, "sending")
        while self._service.report(lambda: self._screen.wait("the service"))["kind"] != "passed":
            pass
        text = "checked: it may write" if self._act.harms else "waits for the rest"
        self._recorder.add("row", "passed", text, **self._sent(name))

    def _record(self, name: str, report: dict[str, Any]) -> None:
        if report["kind"] == "sending":
            self._recorder.add(name, "sending", "sends half of it", at=report["at"], target="row")
        else:
            super()._record(name, report)


def wait_for_port(service: WorkerProcess) -> int:
    """Return the port of the service."""
    while (report := service.report())["kind"] != "listening":
        pass
    return int(report["port"])
