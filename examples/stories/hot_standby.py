"""Show an order processor and its hot standby: the old one is stopped, the standby takes over, the old one wakes."""

import sys

from examples.drawing.events import Lane
from examples.stage.actor import Actor
from examples.stage.director import Act
from examples.stage.tale import Result, Scene, Tale, perform

ORDERS = 4
STOPPED_AT = 2
"""The number of the order at which the first processor is stopped."""


def process(actor: Actor, resource: str, act: str, guarded: bool) -> None:
    """Be the processor as soon as the lock is free: do the next order, until none is left."""
    with actor.hold(resource, guarded=guarded) as lease:
        while True:
            lease.ensure_held()
            done = actor.connection.execute("SELECT coalesce(max(number), 0) FROM shipped WHERE act = %s", [act])
            number = done.fetchall()[0][0] + 1
            if number > ORDERS:
                return
            actor.show("takes", f"takes order {number}", source="data", number_of_order=number)
            actor.wait()
            shipment = "INSERT INTO shipped VALUES (%s, %s, %s)", [act, number, actor.name]
            actor.write(lease if guarded else None, *shipment)
            actor.show("shipped", f"ships order {number}", target="data")


class HotStandby(Tale):
    NAME = "hot-standby"
    TITLE = "A hot standby takes over, and the old processor wakes"
    ABOUT = __doc__ or ""
    LANES = (Lane("A", "PROCESSOR", 1), Lane("lock", "LOCK"), Lane("B", "STANDBY", 2), Lane("data", "SHIPPED ORDERS"))
    HEAD = ("Orders", "Shipments")
    TABLES = "CREATE TABLE shipped (act text, number integer, processor text)"
    ACTS = (
        Act("1", "only a lock", "plain", fenced=False, resumes_early=False, harms=True),
        Act("2", "the same with a guard", "guarded", fenced=True, resumes_early=False, harms=False),
    )
    SETTINGS = {
        "1": "The processor A has the lock, and the standby B waits for it. A is stopped in the middle of an order.",
        "2": "A process that takes the lock also claims in the database. A is stopped at the same moment.",
    }
    WHY = {
        "1": "A asks before each order whether it still has the lock. But it was stopped after it had asked, and when "
        "it woke it did what it had been about to do.",
        "2": "B had claimed when it took over. From then on A could not ship anything.",
    }

    def introduction(self, ttl: float) -> list[str]:
        return [
            f"{ORDERS} orders are to be shipped, each once, in order. One process works, another one stands by.",
            f"The lock lives {ttl:g} s and is renewed. The signal SIGSTOP stops A, and SIGCONT wakes it.",
        ]

    def play(self, scene: Scene, act: Act) -> Result:
        scene.data("found", "0 of 4")
        work = {"resource": scene.resource, "act": act.key, "guarded": act.fenced}
        scene.start("A", process, **work)
        scene.until("A", "takes")
        scene.start("B", process, **work)  # it waits for the lock
        while scene.last["number_of_order"] < STOPPED_AT:
            self._ship(scene, act, "A")
        stop = scene.pause("A")
        scene.until("B", "takes")
        self._ship(scene, act, "B")
        scene.resume("A", stop)
        scene.go_on("A")
        if scene.until("A", "shipped", "refused") == "shipped":
            self._count(scene, act)
        scene.until("A", "done")
        while self._ship(scene, act, "B"):
            pass
        rows = scene.query("SELECT number, count(*) FROM shipped WHERE act = %s GROUP BY number ORDER BY 1", act.key)
        twice = [str(number) for number, count in rows if count > 1]
        total = sum(count for _, count in rows)
        verdict = (
            f"Order {', '.join(twice)} was shipped twice."
            if twice
            else (f"{len(rows)} orders, each shipped once. The old processor was refused.")
        )
        complete = len(rows) == ORDERS and bool(scene.refused) == act.fenced
        return Result(act, not twice, verdict, [str(ORDERS), str(total)], scene.refused, complete)

    def _ship(self, scene: Scene, act: Act, name: str) -> bool:
        """Let a processor ship its order; return whether it has taken another one."""
        scene.go_on(name)
        scene.until(name, "shipped")
        self._count(scene, act)
        return scene.until(name, "takes", "done") == "takes"

    def _count(self, scene: Scene, act: Act) -> None:
        [[count, different]] = scene.query(
            "SELECT count(*), count(DISTINCT number) FROM shipped WHERE act = %s", act.key
        )
        if count == different:
            scene.data("written", f"{different} of {ORDERS}")
        else:
            scene.data("damaged", f"{count} shipments of {different} orders", flag="SHIPPED TWICE")


STORY = HotStandby()

if __name__ == "__main__":
    sys.exit(perform(STORY))
