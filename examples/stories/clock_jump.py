"""Show how a lock is gone because the clock of its Redis jumps, and how a guard refuses what comes of it."""

import random
import sys
import time
from contextlib import ExitStack
from typing import Any

import redis

from examples.drawing.events import Lane
from examples.servers import FakeClock, start_redis
from examples.stage.actor import Actor
from examples.stage.director import Act
from examples.stage.tale import Result, Scene, Tale, perform

JUMP = 3600
PATIENT_TTL = 30
"""Seconds. No lock can expire during an act, except by the clock."""

READ = "SELECT seats FROM flight WHERE act = %s"
WRITE = "UPDATE flight SET seats = %s WHERE act = %s"


def book(actor: Actor, resource: str, act: str, seats: int, guarded: bool) -> None:
    """Book seats of a flight, under a lock."""
    actor.ttl = PATIENT_TTL
    with actor.hold(resource, guarded=guarded) as lease:
        [free] = actor.connection.execute(READ, [act]).fetchone() or [0]
        actor.show("read", f"reads {free}", source="data")
        actor.wait()
        if guarded:
            actor.guard.write(lease, WRITE, [free - seats, act])
        else:
            actor.connection.execute(WRITE, [free - seats, act])
        actor.show("wrote", f"writes {free - seats}", target="data")


class ClockJump(Tale):
    NAME = "clock-jump"
    TITLE = "The clock of Redis jumps, and the lock is gone"
    ABOUT = __doc__ or ""
    LANES = (Lane("A", "A books", 1), Lane("lock", "REDIS"), Lane("B", "B books", 2), Lane("data", "FREE SEATS"))
    HEAD = ("Expected", "In the row")
    TABLES = "CREATE TABLE flight (act text PRIMARY KEY, seats integer)"
    COORDINATORS = ("redis",)
    ACTS = (
        Act("1", "only a lock", "plain", fenced=False, resumes_early=False, harms=True),
        Act("2", "the same with a guard", "guarded", fenced=True, resumes_early=False, harms=False),
        Act("3", "a guard, and a jump back", "back", fenced=True, resumes_early=False, harms=False),
    )
    SETTINGS = {
        "1": f"A has a lock for {PATIENT_TTL} s. The wall clock of the Redis server jumps by an hour, as after a wrong "
        "NTP reply. Redis counts the expiry by that clock.",
        "2": "The same jump. A and B claim in the database before they read.",
        "3": "A's lock is gone as before. Then the clock jumps back, below the time at which A got its number.",
    }
    WHY = {
        "1": "A and B both had a lock that should have lived for another half a minute. Neither was paused.",
        "2": "B's number is higher, and B had claimed. The guard looks at no clock.",
        "3": "B's number is higher all the same: Redis counts up from the last one. Its clock can only raise a number.",
    }

    def introduction(self, ttl: float) -> list[str]:
        return [
            "A flight has free seats. A and B book some: each takes a lock, reads the number and writes what is left.",
            "This Redis runs with libfaketime, so that its wall clock can be set while it runs.",
        ]

    def prepare(self, chance: random.Random) -> None:
        self.free = chance.randrange(50, 100)
        self.seats = {"A": chance.randrange(1, 5), "B": chance.randrange(5, 9)}

    def start_coordinator(self, stack: ExitStack, choice: str) -> str:
        self.clock = stack.enter_context(FakeClock())
        return stack.enter_context(start_redis(own=True, version="8", environment=self.clock.environment)).url

    def play(self, scene: Scene, act: Act) -> Result:
        client: Any = redis.Redis.from_url(scene.address)
        scene.query("INSERT INTO flight VALUES (%s, %s)", act.key, self.free)
        scene.data("found", f"{self.free}")
        self._start(scene, act, "A")
        self._jump(scene, client, JUMP)
        scene.wait_for_expiry("A")
        if act.how == "back":
            self._jump(scene, client, -JUMP)
        self._start(scene, act, "B")
        for name in "BA":
            scene.go_on(name)
            if scene.until(name, "wrote", "refused") == "wrote":
                self._show_seats(scene, act, [name] if name == "B" else ["A", "B"])
            scene.until(name, "done")
        if act.fenced:  # a refused booking starts again
            self._start(scene, act, "A")
            scene.go_on("A")
            scene.until("A", "wrote")
            self._show_seats(scene, act, ["A", "B"])
            scene.until("A", "done")
        self.clock.set(0)
        left, right = self._left(scene, act), self.free - sum(self.seats.values())
        verdict = (
            f"{left}, and nothing is lost: the late write was refused."
            if left == right
            else (f"{left} instead of {right}: B's booking was acknowledged, then overwritten.")
        )
        complete = bool(scene.refused) == act.fenced
        return Result(act, left == right, verdict, [str(right), str(left)], scene.refused, complete)

    def _start(self, scene: Scene, act: Act, name: str) -> None:
        booking = {"act": act.key, "seats": self.seats[name], "guarded": act.fenced}
        scene.start(name, book, resource=scene.resource, **booking)
        scene.until(name, "read")

    def _jump(self, scene: Scene, client: Any, seconds: int) -> None:
        before = client.time()[0]
        self.clock.set(seconds)
        scene.passes(lambda: abs(client.time()[0] - before) > JUMP / 2)
        shown = client.time()[0] - int(time.time())
        scene.recorder.add("lock", "jumped", f"its clock: now {shown:+d} s")

    def _show_seats(self, scene: Scene, act: Act, booked: list[str]) -> None:
        left, right = self._left(scene, act), self.free - sum(self.seats[name] for name in booked)
        if left == right:
            scene.data("written", f"{left}")
        else:
            scene.data("damaged", f"{left}, not {right}", flag=f"LOST UPDATE: {self.seats['B']}")

    def _left(self, scene: Scene, act: Act) -> int:
        [[seats]] = scene.query(READ, act.key)
        return int(seats)


STORY = ClockJump()

if __name__ == "__main__":
    sys.exit(perform(STORY))
