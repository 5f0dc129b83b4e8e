"""What the stories of a number share: A and B each take a part of it under a lock, and a late write loses B's part."""

import random

from examples.drawing.events import Lane
from examples.stage.actor import Actor
from examples.stage.director import Act
from examples.stage.tale import Result, Scene, Tale

READ = "SELECT number FROM amount WHERE act = %s"
WRITE = "UPDATE amount SET number = %s WHERE act = %s"


def take(actor: Actor, resource: str, act: str, part: int, guarded: bool, ttl: float, renew: bool) -> None:
    """Read the number under a lock, and write what is left of it."""
    with actor.hold(resource, guarded=guarded, ttl=ttl, renew=renew) as lease:
        [number] = actor.connection.execute(READ, [act]).fetchone() or [0]
        actor.show("read", f"reads {number}", source="data")
        actor.wait()
        actor.show("sent", f"sends {number - part}")
        # With the fence alone, the guard does not know the lease's end. With the lease, it could stop before it asks.
        actor.write(lease.fence if guarded else None, WRITE, [number - part, act])
        actor.show("wrote", f"{number - part} acknowledged", target="data")


class Countdown(Tale):
    HEAD = ("Expected", "In the row")
    TABLES = "CREATE TABLE amount (act text PRIMARY KEY, number integer)"
    RENEWED = True
    """Whether the lock is renewed while an actor is at work."""

    def prepare(self, chance: random.Random) -> None:
        self.number = chance.randrange(50, 100)
        self.parts = {"A": chance.randrange(1, 10), "B": chance.randrange(10, 20)}

    def begin(self, scene: Scene, act: Act) -> None:
        """Store the number."""
        scene.query("INSERT INTO amount VALUES (%s, %s)", act.key, self.number)
        scene.data("found", f"{self.number}")

    def start(self, scene: Scene, act: Act, name: str, ttl: float) -> None:
        """Let an actor take the lock and read."""
        more = {"part": self.parts[name], "guarded": act.fenced, "ttl": ttl, "renew": self.RENEWED}
        scene.start(name, take, resource=scene.resource, act=act.key, **more)
        scene.until(name, "read")

    def finish(self, scene: Scene, act: Act, name: str, *before: str) -> None:
        """Await the result of an actor's write; `before`: the actors whose parts should be gone already."""
        if scene.until(name, "wrote", "refused") == "wrote":
            left, right = self._left(scene, act), self.number - sum(self.parts[one] for one in {*before, name})
            if left == right:
                scene.data("written", f"{left}")
            else:
                lost = self.parts["B" if name == "A" else "A"]
                scene.data("damaged", f"{left}, not {right}", flag=f"LOST UPDATE: {lost}")
        scene.until(name, "done")

    def again(self, scene: Scene, act: Act, ttl: float) -> None:
        """Let A begin again, as one does when a write was refused."""
        self.start(scene, act, "A", ttl)
        scene.go_on("A")
        self.finish(scene, act, "A", "B")

    def result(self, scene: Scene, act: Act) -> Result:
        """Measure the act."""
        left, right = self._left(scene, act), self.number - sum(self.parts.values())
        good = f"{left}, and nothing is lost: the late write was refused."
        bad = f"{left} instead of {right}: B's write was acknowledged, then overwritten."
        complete = bool(scene.refused) == act.fenced
        cells = [str(right), str(left)]
        return Result(act, left == right, good if left == right else bad, cells, scene.refused, complete)

    def _left(self, scene: Scene, act: Act) -> int:
        [[number]] = scene.query(READ, act.key)
        return int(number)


def lanes(verb: str, row: str, *more: Lane) -> tuple[Lane, ...]:
    """Return the lanes of such a story; `more`: behind A's."""
    return (Lane("A", f"A {verb}", 1), *more, Lane("lock", "LOCK"), Lane("B", f"B {verb}", 2), Lane("data", row))
