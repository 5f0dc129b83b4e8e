"""Show how a write that leaves its client in time arrives late, because the network holds it, and what a guard does."""

import random
import sys
from contextlib import ExitStack
from typing import Any

from examples.drawing.events import Lane
from examples.servers.proxy import Proxy
from examples.stage.actor import Actor
from examples.stage.director import Act
from examples.stage.tale import Result, Scene, Tale, perform

READ = "SELECT amount FROM stock WHERE act = %s"
WRITE = "UPDATE stock SET amount = %s WHERE act = %s"


def sell(actor: Actor, resource: str, act: str, pieces: int, guarded: bool) -> None:
    """Sell pieces out of the stock, under a lock. In A's program the lock is not renewed."""
    with actor.hold(resource, guarded=guarded, renew=False) as lease:
        [amount] = actor.connection.execute(READ, [act]).fetchone() or [0]
        actor.show("read", f"reads {amount}", source="data")
        actor.wait()
        actor.show("sent", f"sends {amount - pieces}")
        if guarded:
            # With the fence alone, the guard does not know the lease's end. With the lease, it would soon stop waiting.
            actor.guard.write(lease.fence, WRITE, [amount - pieces, act])
        else:
            actor.connection.execute(WRITE, [amount - pieces, act])
        actor.show("wrote", f"{amount - pieces} acknowledged", target="data")


class NetworkDelay(Tale):
    NAME = "network-delay"
    TITLE = "A write leaves in time and arrives late"
    ABOUT = __doc__ or ""
    LANES = (
        Lane("A", "A sells", 1),
        Lane("network", "NETWORK"),
        Lane("lock", "LOCK"),
        Lane("B", "B sells", 2),
        Lane("data", "STOCK (PostgreSQL)"),
    )
    HEAD = ("Expected", "In the row")
    TABLES = "CREATE TABLE stock (act text PRIMARY KEY, amount integer)"
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

    def prepare(self, chance: random.Random) -> None:
        self.stock = chance.randrange(50, 100)
        self.pieces = {"A": chance.randrange(1, 10), "B": chance.randrange(10, 20)}

    def settings(self, stack: ExitStack, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        if name != "A":
            return settings
        host, port = settings["database"].split("@")[1].split("/")[0].split(":")
        self.network = stack.enter_context(Proxy(host, int(port)))
        return {**settings, "database": self.network.url(settings["database"])}

    def play(self, scene: Scene, act: Act) -> Result:
        scene.query("INSERT INTO stock VALUES (%s, %s)", act.key, self.stock)
        scene.data("found", f"{self.stock}")
        for name in "AB":
            sale = {"resource": scene.resource, "act": act.key, "pieces": self.pieces[name], "guarded": act.fenced}
            scene.start(name, sell, **sale)
            scene.until(name, "read")
            if name == "A":
                held = self.network.hold_request_when(bool)  # its next one, which is the write
                scene.go_on("A")
                scene.until("A", "sent")
                if not held.wait(5):
                    return Result(act, not act.harms, "A's write did not come.", ["", ""], complete=False)
                delay = scene.recorder.open("network", "delayed", "HOLDS A's write")
                scene.wait_for_expiry("A")
            else:
                scene.go_on("B")
                scene.until("B", "wrote")
                scene.data("written", f"{self._left(scene, act)}")
                scene.until("B", "done")
        scene.recorder.close(delay, "delivers it")
        self.network.restore()
        late = scene.until("A", "wrote", "refused")
        left, right = self._left(scene, act), self.stock - sum(self.pieces.values())
        if late == "wrote":
            scene.data("damaged", f"{left}, not {right}", flag=f"LOST UPDATE: {self.pieces['B']}")
        scene.until("A", "done")
        if act.fenced:  # a refused sale starts again
            scene.start("A", sell, resource=scene.resource, act=act.key, pieces=self.pieces["A"], guarded=True)
            scene.until("A", "read")
            scene.go_on("A")
            scene.until("A", "wrote")
            left = self._left(scene, act)
            scene.data("written", f"{left}")
            scene.until("A", "done")
        verdict = (
            f"{left}, and nothing is lost: the late write was refused."
            if left == right
            else (f"{left} instead of {right}: B's sale was acknowledged, then overwritten.")
        )
        complete = bool(scene.refused) == act.fenced
        return Result(act, left == right, verdict, [str(right), str(left)], scene.refused, complete)

    def _left(self, scene: Scene, act: Act) -> int:
        [[amount]] = scene.query(READ, act.key)
        return int(amount)


STORY = NetworkDelay()

if __name__ == "__main__":
    sys.exit(perform(STORY))
