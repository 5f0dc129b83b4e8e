"""Show how locks in Redis that people write by hand break, each in its own way, and what still breaks the right one."""

import sys
import time

import redis

from examples.drawing.events import Event
from examples.stage.actor import Actor
from examples.stage.director import Act
from examples.stage.tale import Result, Scene, perform
from examples.stories import hand_made
from examples.stories.wrong_locks_texts import WrongLocksTexts


def work(actor: Actor, lock: str, key: str) -> None:
    """Take a lock made by hand, work, and free it."""

    def step() -> None:
        actor.show("step", "is between two requests")
        actor.wait()

    made = getattr(hand_made, lock)(redis.Redis.from_url(actor.address), key, actor.ttl, step)
    if not made.acquire():
        actor.show("missed", "does not get the lock", source="lock")
        return
    actor.show("got", "gets the lock", source="lock")
    actor.wait()
    actor.show("worked", "has done its work")
    actor.wait()
    said = made.release()
    actor.show("freed", "frees the lock" + ("" if said is None else f": {said}"), target="lock", said=said)


def write(actor: Actor, key: str) -> None:
    """Take a lock of this library, which claims in the database, and write through the guard."""
    with actor.hold(key, guarded=True) as lease:
        actor.show("got", "may work")
        actor.wait()
        actor.guard.write(lease, "UPDATE result SET writer = %s", [actor.name])
        actor.show("wrote", "writes", target="data")


class WrongLocks(WrongLocksTexts):
    ABOUT = __doc__ or ""
    ACTORS = ("A", "B", "C")
    TABLES = "CREATE TABLE result (writer text); INSERT INTO result VALUES ('')"
    COORDINATORS = ("redis",)
    SHOWN_AS_BAR = ("got", "worked")

    def play(self, scene: Scene, act: Act) -> Result:
        """Play the steps. `goes on`: does its next request; `waits`: until the lock has expired, if it does."""
        client = redis.Redis.from_url(scene.address)
        if act.key == "3":
            client.set(scene.resource, time.time() - 1)
        self.at_work, self.most, self.pause = dict[str, Event](), 0, None
        self.said, self.got = dict[str, bool | None](), list[str]()
        for step in self.PLAYS[act.key].split(", "):
            name, verb = step.split(" ", 1)
            if verb in ("enters", "goes on"):
                self._go_on(scene, act, name, enters=verb == "enters")
            elif verb == "crashes":
                scene.kill(name, self.at_work.pop(name, None))
            elif verb == "is paused":
                self.pause = scene.pause(name)
            elif self.pause and verb == "resumes":
                scene.resume(name, self.pause)
            elif act.fenced:
                scene.wait_for_expiry("A")
            else:
                stays = not scene.passes(lambda: not client.exists(scene.resource))
                scene.recorder.add("lock", "found", "stays" if stays else "has expired")
        stuck = client.pttl(scene.resource) == -1
        for name, bar in self.at_work.items():
            scene.recorder.close(bar, "still at work")
            scene.finish(name)
        client.delete(scene.resource)
        return self._guarded_result(scene, act) if act.fenced else self._result(act, stuck)

    def _go_on(self, scene: Scene, act: Act, name: str, *, enters: bool) -> None:
        """Let an actor enter or go on, until it has got the lock, or not, or has done its next request."""
        if not enters:
            scene.go_on(name)
        elif act.fenced:
            scene.start(name, write, key=scene.resource)
        else:
            scene.start(name, work, lock=act.how, key=scene.resource)
        kind = scene.until(name, "got", "missed", "step", "worked", "freed", "wrote", "refused")
        if kind == "got":
            self.got.append(name)
            self.at_work[name] = scene.recorder.open(name, "at-work", "is AT WORK", at=scene.last["at"])
            self.most = max(self.most, len(self.at_work))
        elif name in self.at_work and kind != "step":
            scene.recorder.close(self.at_work.pop(name), "has done its work", at=scene.last["at"])
        if kind == "freed":
            self.said[name] = scene.last["said"]
        if kind not in ("got", "step", "worked"):
            scene.until(name, "done")

    def _guarded_result(self, scene: Scene, act: Act) -> Result:
        [[writer]] = scene.query("SELECT writer FROM result")
        good = (writer, len(scene.refused)) == ("B", 1)
        verdict = f"{self.most} at work at once. The database holds {writer}'s result: it refused the late write."
        return Result(act, good, verdict, [str(self.most), "late write refused"], scene.refused)

    def _result(self, act: Act, stuck: bool) -> Result:
        right = "as it should be"
        verdict, cell = "Never two at work, and a crash blocked the others for no longer than the lock lives.", right
        if self.most > 1:
            verdict, cell = f"{self.most} processes were at work at once.", "two at work"
        elif stuck:
            verdict, cell = "The key has no expiry. Nobody gets this lock any more.", "stuck for ever"
        elif not self.got:
            verdict, cell = "Redis gave the lock to A. Nobody is at work, and nobody can be.", "nobody can work"
        elif len(self.got) > 1 and self.said.get("A"):
            verdict, cell = "A's release said True. But B had the lock before it.", "True is not true"
        return Result(act, cell == right, verdict, [str(self.most), cell], complete=cell == self.CELLS[act.key])


STORY = WrongLocks()

if __name__ == "__main__":
    sys.exit(perform(STORY))
