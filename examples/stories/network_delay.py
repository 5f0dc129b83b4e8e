"""Show how a write that leaves its client in time arrives late, because the network holds it, and what a guard does."""

import sys
from contextlib import ExitStack
from typing import Any

from examples.drawing.events import Lane
from examples.servers.proxy import Proxy
from examples.stage.coordinators import EXPIRING
from examples.stage.director import Act
from examples.stage.tale import Result, Scene, perform
from examples.stories.countdown import Countdown, lanes


class NetworkDelay(Countdown):
    NAME = "network-delay"
    TITLE = "A write leaves in time and arrives late"
    ABOUT = __doc__ or ""
    LANES = lanes("sells", "STOCK (PostgreSQL)", Lane("network", "NETWORK"))
    COORDINATORS = EXPIRING
    RENEWED = False
    ACTS = (
        Act("1", "only a lock", "plain", fenced=False, resumes_early=False, harms=True),
        Act("2", "the same with a guard", "guarded", fenced=True, resumes_early=False, harms=False),
    )
    SETTINGS = {
        "1": "A sends its write while it has the lock. The network holds the write until B has finished. "
        "No process is paused.",
        "2": "A and B claim in the database before they read. The network holds A's write again.",
    }
    WHY = {
        "1": "Checking the lock before the write would not help: A had it. "
        "The database cannot see that the write is an old one.",
        "2": "The write carried A's number. The database compared it when the write came, and by then B had claimed.",
    }

    def introduction(self, ttl: float) -> list[str]:
        return [
            "A stock is sold out of by A and by B. Each takes a lock, reads the amount and writes what is left.",
            f"The lock lives {ttl:g} s. A reaches the database through a network that can hold what it carries.",
        ]

    def settings(self, stack: ExitStack, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        if name != "A":
            return settings
        host, port = settings["database"].split("@")[1].split("/")[0].split(":")
        self.network = stack.enter_context(Proxy(host, int(port)))
        return {**settings, "database": self.network.url(settings["database"])}

    def play(self, scene: Scene, act: Act) -> Result:
        self.begin(scene, act)
        self.start(scene, act, "A", scene.ttl)
        held = self.network.hold_request_when(bool)  # its next one, which is the write
        scene.go_on("A")
        scene.until("A", "sent")
        if not held.wait(5):
            return Result(act, not act.harms, "A's write did not come.", ["", ""], complete=False)
        delay = scene.recorder.open("network", "delayed", "HOLDS A's write")
        scene.wait_for_expiry("A")
        self.start(scene, act, "B", scene.ttl)
        scene.go_on("B")
        self.finish(scene, act, "B")
        scene.recorder.close(delay, "delivers it")
        self.network.restore()
        self.finish(scene, act, "A", "B")
        if act.fenced:
            self.again(scene, act, scene.ttl)
        return self.result(scene, act)


STORY = NetworkDelay()

if __name__ == "__main__":
    sys.exit(perform(STORY))
