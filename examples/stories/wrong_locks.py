"""Show how locks in Redis that people write by hand break, each in its own way, and what still breaks the right one."""

import sys
import time
from typing import Any

import redis

from examples.drawing.events import Event
from examples.stage.actor import Actor
from examples.stage.director import Act
from examples.stage.tale import Result, Scene, perform
from examples.stories import hand_made
from examples.stories.wrong_locks_texts import AHEAD, PATIENT_TTL, WrongLocksTexts


class Noting(redis.Redis):
    """A client that notes its last command, and the reply as redis-py returned it."""

    last: tuple[str, Any] = ("", None)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = super().execute_command(*args, **options)  # type: ignore[no-untyped-call,unused-ignore]
        self.last = (str(args[0]), reply)
        return reply


def work(actor: Actor, lock: str, key: str, ttl: float, ahead: float) -> None:
    """Take a lock made by hand, work, and free it. `ahead`: the seconds by which this machine's clock differs."""

    def clock() -> float:
        return time.time() + ahead

    def show(kind: str, text: str, **data: Any) -> None:
        command, reply = client.last
        reply = readable(reply, clock())
        actor.show(kind, f"{text} ({command}: {reply})", reply=reply, **data)

    def step() -> None:
        show("step", "is between two requests")
        actor.wait()

    client = Noting(connection_pool=redis.ConnectionPool.from_url(actor.address))
    made = getattr(hand_made, lock)(client, key, ttl, step, clock)
    if not made.acquire():
        show("missed", "sees a refusal", source="lock")
        return
    show("got", "is AT WORK", source="lock")
    actor.wait()
    actor.show("worked", "has done its work")
    actor.wait()
    said = made.release()
    show("freed", "has sent its release" if said is None else f"its release says {said}", target="lock", said=said)


def readable(reply: Any, now: float) -> str:
    """Return a reply for people. A value of bytes is a token, or an expiry, which is compared with a clock."""
    if not isinstance(reply, bytes):
        return str(reply)
    if len(reply) == 32:
        return "a token"
    left = float(reply) - now
    return f"over in {left:.1f} s" if left > 0 else f"over for {-left:.1f} s"


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
        if act.key in ("3a", "3b"):
            client.set(scene.resource, time.time() - 1)  # of an earlier holder, which has crashed
        self.at_work, self.most, self.pause = dict[str, Event](), 0, None
        self.said, self.got = dict[str, bool | None](), list[str]()
        self.replies = dict[str, str]()
        """The last reply that Redis gave to each, for people."""
        self.entered = dict[str, float]()
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
                stays = not scene.passes(lambda: self._is_over(scene, act, client))
                scene.recorder.add("lock", "found", "stays" if stays else "has expired")
        stuck = client.pttl(scene.resource) == -1 and act.how != "ExpiryAsValue"
        for name, bar in self.at_work.items():
            scene.recorder.close(bar, "still at work")
            scene.finish(name)
        client.delete(scene.resource)
        return self._guarded_result(scene, act) if act.fenced else self._result(act, stuck)

    def _is_over(self, scene: Scene, act: Act, client: Any) -> bool:
        """Whether the lock has expired. An expiry that is a value is over by this machine's clock."""
        if act.key == "3b":  # that which A will write
            return time.monotonic() > self.entered["A"] + scene.ttl
        if act.how == "ExpiryAsValue":
            return float(client.get(scene.resource)) < time.time()
        return not client.exists(scene.resource)

    def _go_on(self, scene: Scene, act: Act, name: str, *, enters: bool) -> None:
        """Let an actor enter or go on, until it has got the lock, or not, or has done its next request."""
        if not enters:
            scene.go_on(name)
        elif act.fenced:
            scene.start(name, write, key=scene.resource)
        else:
            patient, ahead = act.key == "3c", AHEAD if (act.key, name) == ("3c", "B") else 0.0
            ttl = PATIENT_TTL if patient else scene.ttl
            scene.start(name, work, lock=act.how, key=scene.resource, ttl=ttl, ahead=ahead)
        kind = scene.until(name, "got", "missed", "step", "worked", "freed", "wrote", "refused")
        if kind == "got":
            self.got.append(name)
            self.at_work[name] = scene.recorder.open(name, "at-work", scene.last["text"], at=scene.last["at"])
            self.most = max(self.most, len(self.at_work))
        elif name in self.at_work and kind != "step":
            scene.recorder.close(self.at_work.pop(name), "has done its work", at=scene.last["at"])
        if enters:
            self.entered[name] = scene.last["at"]
        self.replies[name] = scene.last.get("reply", "")
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
        right, won = "as it should be", "one winner"
        verdict, cell = "Never two at work, and a crash blocked the others for no longer than the lock lives.", right
        believed = [name for name in self.at_work if self.replies[name] == "None"]
        if self.most > 1:
            verdict, cell = f"{self.most} processes were at work at once.", "two at work"
            if believed:
                verdict += f" Redis had refused {believed[0]}."
        elif stuck:
            verdict, cell = "The key has no expiry. Nobody gets this lock any more.", "stuck for ever"
        elif not self.got and self.replies["A"] == "True":
            verdict, cell = "Redis gave the lock to A. Nobody is at work, and nobody can be.", "nobody can work"
        elif self.said.get("A") is False and self.replies["A"] == "1":
            verdict, cell = "A's release said False. But Redis had freed the lock, and B has it.", "False is not true"
        elif len(self.got) > 1 and self.said.get("A"):
            verdict, cell = "A's release said True. But B had the lock before it.", "True is not true"
        elif act.how == "ExpiryAsValue" and self.got == ["B"]:
            verdict, cell = "B is at work, and A was refused.", won
        return Result(act, cell in (right, won), verdict, [str(self.most), cell], complete=cell == self.CELLS[act.key])


STORY = WrongLocks()

if __name__ == "__main__":
    sys.exit(perform(STORY))
