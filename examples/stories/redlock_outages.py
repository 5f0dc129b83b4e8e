"""The acts of `redlock.py` that show what Redlock is for: servers die, hang or are cut off, and work goes on."""

from collections.abc import Callable
from contextlib import ExitStack

from examples.drawing.events import Event
from examples.stage.coordinators import NODE_TIMEOUT
from examples.stage.director import Act
from examples.stage.tale import Result, Scene
from examples.stories.five_servers import FiveServers
from examples.stories.redlock_locks import NO_MAJORITY, go_on, time_acquires

LONGEST_TTL = 4.0
PATIENCE = 15.0
SLACK = 2.0
"""Seconds that a busy machine may take on top. A lock that did not expire would keep B waiting until its time-out."""
ROUNDS = 50

TWO_WRITES, LATE, NO_WAIT = "nothing lost", "late write refused", "no wait"


class Outages:
    """Plays one of these acts."""

    def __init__(self, stack: ExitStack, scene: Scene, act: Act) -> None:
        self.scene, self.act = scene, act
        self.ttl = min(scene.ttl, LONGEST_TTL)
        self.servers = FiveServers(stack, scene, clocks=False, longest_ttl=self.ttl)
        self.numbers: list[int] = []
        self.refusal = ""
        self.at_work = dict[str, Event]()

    def play(self) -> Result:
        return {"6": self._deaths, "7": self._partition, "8": self._times}[self.act.key]()

    def _deaths(self) -> Result:
        self.servers.kill(4, 5)
        granted = self._enter("A")
        self.servers.kill(3)
        refused = not self._enter("B") and self.refusal == NO_MAJORITY
        self._write("A")
        self.servers.restart(3, 4, 5)
        back = self._enter("B", PATIENCE)
        self._write("B")
        [[writers]] = self.scene.query("SELECT writer FROM result WHERE act = %s", self.act.key)
        good = granted and refused and back and writers == "AB" and self.numbers == sorted(set(self.numbers))
        verdict = f"Three servers granted, and two did not. The result has the writes of {' and '.join(writers)}."
        return self._result(good, verdict, TWO_WRITES)

    def _partition(self) -> Result:
        self._enter("A", through=self.servers.address)
        self.servers.reach((1, 2), "A")
        started = self.scene.recorder.of(self.act.key)[-1].start
        granted = self._enter("B", PATIENCE)
        waited = self.scene.last["at"] - started
        self._write("B")
        self._write("A")
        [[writers]] = self.scene.query("SELECT writer FROM result WHERE act = %s", self.act.key)
        good = granted and waited < self.ttl + SLACK and writers == "B" and len(self.scene.refused) == 1
        verdict = (
            f"B had the lock {waited:.1f} s after the cut. A's lock lives {self.ttl:g} s. A's late write was refused."
        )
        return self._result(good, verdict, LATE)

    def _times(self) -> Result:
        def kill_one_that_hung() -> None:
            self.servers.thaw(4, 5)
            self.servers.kill(5)

        states: list[tuple[str, Callable[[], None]]] = [
            ("all answer", lambda: None),
            ("2 hang", lambda: self.servers.freeze(4, 5)),
            ("1 is dead", kill_one_that_hung),
            ("2 are dead", lambda: self.servers.kill(4)),
        ]
        arguments = {"key": self.scene.resource, "address": self.servers.direct, "ttl": self.ttl}
        self.scene.start("A", time_acquires, rounds=ROUNDS, times=len(states), **arguments)
        medians = {}
        for state, change in states:
            change()
            self.scene.go_on("A")
            self.scene.until("A", "timed")
            medians[state] = self.scene.last["median"]
        self.scene.until("A", "done")
        figures = ", ".join(f"{state}: {median:.2f} ms" for state, median in medians.items())
        good = max(medians.values()) < NODE_TIMEOUT * 1000 / 2
        return self._result(good, f"The median of {ROUNDS} acquires. {figures[0].upper()}{figures[1:]}.", NO_WAIT)

    def _enter(self, name: str, patience: float | None = None, through: str = "") -> bool:
        """Let an actor try to take the lock, and return whether it got it."""
        scene = self.scene
        address = through or self.servers.direct
        scene.start(name, go_on, key=scene.resource, address=address, act=self.act.key, ttl=self.ttl, patience=patience)
        if scene.until(name, "got", "missed") == "missed":
            self.refusal = scene.last["text"]
            scene.until(name, "done")
            return False
        self.numbers.append(scene.last["is_"])
        self.at_work[name] = scene.recorder.open(name, "at-work", "is AT WORK", at=scene.last["at"])
        scene.data("claimed", f"claimed: {name}", source=name)
        return True

    def _write(self, name: str) -> None:
        """Let an actor that is at work write, and end."""
        scene = self.scene
        if name not in self.at_work:
            return
        scene.go_on(name)
        kind = scene.until(name, "wrote", "refused")
        scene.recorder.close(self.at_work[name], "stops" if kind == "refused" else "has done its work")
        if kind == "wrote":
            scene.data("written", f"+ {name}")
        scene.until(name, "done")

    def _result(self, good: bool, verdict: str, cell: str) -> Result:
        at_once = "2" if self.act.key == "7" else "1"
        return Result(self.act, good, verdict, [at_once, cell if good else "not so"], self.scene.refused)
