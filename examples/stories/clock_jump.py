"""Show how a lock is gone because the clock of its Redis jumps, and how a guard refuses what comes of it."""

import sys
import time
from contextlib import ExitStack
from typing import Any

import redis

from examples.servers import FakeClock, start_redis
from examples.servers.redis import version_for_clocks
from examples.stage.director import Act
from examples.stage.tale import Result, Scene, perform
from examples.stories.countdown import Countdown, lanes

JUMP = 3600
PATIENT_TTL = 30
"""Seconds. No lock can expire during an act, except by the clock."""


class ClockJump(Countdown):
    NAME = "clock-jump"
    TITLE = "The clock of Redis jumps, and the lock is gone"
    ABOUT = __doc__ or ""
    LANES = lanes("books", "FREE SEATS")
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
            "This Redis runs with libfaketime, so that its wall clock can be set. It needs Linux.",
        ]

    def start_coordinator(self, stack: ExitStack, choice: str) -> str:
        self.clock = stack.enter_context(FakeClock())
        server = start_redis(own=True, version=version_for_clocks(), environment=self.clock.environment)
        return stack.enter_context(server).url

    def play(self, scene: Scene, act: Act) -> Result:
        with redis.Redis.from_url(scene.address) as client:
            self.begin(scene, act)
            self.start(scene, act, "A", PATIENT_TTL)
            self._jump(scene, client, JUMP)
            scene.wait_for_expiry("A")
            if act.how == "back":
                self._jump(scene, client, -JUMP)
            self.start(scene, act, "B", PATIENT_TTL)
            scene.go_on("B")
            self.finish(scene, act, "B")
            scene.go_on("A")
            self.finish(scene, act, "A", "B")
            if act.fenced:
                self.again(scene, act, PATIENT_TTL)
            self.clock.set(0)
        return self.result(scene, act)

    def _jump(self, scene: Scene, client: Any, seconds: int) -> None:
        before = client.time()[0]
        self.clock.set(seconds)
        scene.passes(lambda: abs(client.time()[0] - before) > JUMP / 2)
        shown = client.time()[0] - int(time.time())
        scene.recorder.add("lock", "jumped", f"its clock: now {shown:+d} s")


STORY = ClockJump()

if __name__ == "__main__":
    sys.exit(perform(STORY))
