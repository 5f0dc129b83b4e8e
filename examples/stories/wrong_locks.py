"""Show how locks in Redis that people write by hand break, each in its own way, and what still breaks the right one."""

import sys
import time

import redis

from examples.drawing.events import Event, Lane
from examples.stage.actor import Actor
from examples.stage.director import Act
from examples.stage.tale import Result, Scene, Tale, perform
from examples.stories import hand_made

_ACTS = (
    ("1", "SETNX, and DEL at the end", "SetOnly"),
    ("2", "SETNX, then EXPIRE", "SetThenExpire"),
    ("3", "the expiry as value, GETSET", "ExpiryAsValue"),
    ("4", "anyone may DEL", "DeletedByAnyone"),
    ("5", "GET, compare, DEL", "CompareThenDelete"),
    ("6", "a release that is always True", "AlwaysTrue"),
    ("7", 'comparing the reply with "OK"', "WrongType"),
    ("8", "the right lock in one Redis", "Right"),
    ("9a", "the right lock, and a pause", "Right"),
    ("9b", "the same pause, with a guard", "guarded"),
)


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


class WrongLocks(Tale):
    NAME = "wrong-locks"
    TITLE = "Locks made by hand, and how each breaks"
    ABOUT = __doc__ or ""
    ACTORS = ("A", "B", "C")
    LANES = (Lane("A", "A", 1), Lane("lock", "REDIS"), Lane("B", "B", 2), Lane("C", "C", 3), Lane("data", "DATA"))
    HEAD = ("Most at work at once", "Result")
    TABLES = "CREATE TABLE result (writer text); INSERT INTO result VALUES ('')"
    COORDINATORS = ("redis",)
    SHOWN_AS_BAR = ("got", "worked")
    ACTS = tuple(Act(key, title, how, how == "guarded", False, key not in ("8", "9b")) for key, title, how in _ACTS)
    SETTINGS = {
        "1": "A crashes while it has the lock.",
        "2": "A crashes between the two requests.",
        "3": "An earlier holder has crashed. A and B both read the old expiry, and both take over.",
        "4": "A has done its work, but its DEL comes late: the lock has expired, and B has it.",
        "5": "A compares, then its lock expires. B gets it, and then A's DEL comes.",
        "6": "A's lock expires before A frees it. B gets the lock, works and frees it. Then A frees its lock.",
        "7": "A gets the lock from Redis, but its program does not believe it.",
        "8": "The same late release as in acts 4 and 5. Then B crashes, as A did in acts 1 and 2.",
        "9a": "A is paused at its work (SIGSTOP) for longer than its lock lives.",
        "9b": "The same, with a lock of this library. A and B claim in the database before they work.",
    }
    WHY = {
        "1": "Nothing ever frees the lock: the key has no expiry. Set it with the key: SET key token NX PX ttl.",
        "2": "The EXPIRE was never sent. SET with NX and PX is one request.",
        "3": "GETSET replaced B's new value as if it were the old one. Let Redis expire the key.",
        "4": "DEL does not ask whose lock it is. Put a random token into the key, and compare it.",
        "5": "Compare and DEL must be one script.",
        "6": "A was not alone, and its program will never know. Return what the script returned.",
        "7": "Nobody works until the key expires, and again after each try. Test the reply's truth, not its text.",
        "8": "A's late release changed nothing, and said False. The crashed lock expired. Nobody else made a mistake.",
        "9a": "No lock can prevent this: A cannot know that it was paused. Its next write would be a late one.",
        "9b": "They were both at work again. But B had claimed, so the database refused A's late write.",
    }

    def introduction(self, ttl: float) -> list[str]:
        return [
            "Processes A, B and C want the same lock, so that one of them works at a time.",
            f"Most of these locks live {ttl:g} s. Each act plays one lock, and one thing that happens.",
        ]

    PLAYS = {
        "1": "A enters, A crashes, B waits, B enters",
        "2": "A enters, A crashes, B waits, B enters",
        "3": "A enters, B enters, B goes on, A goes on",
        "4": "A enters, A goes on, B waits, B enters, A goes on, C enters",
        "5": "A enters, A goes on, A goes on, B waits, B enters, A goes on, C enters",
        "6": "A enters, A goes on, B waits, B enters, B goes on, B goes on, A goes on",
        "7": "A enters, B enters",
        "8": "A enters, A goes on, B waits, B enters, A goes on, C enters, B crashes, C waits, C enters",
        "9a": "A enters, A is paused, B waits, B enters, A resumes",
        "9b": "A enters, A is paused, B waits, B enters, B goes on, A resumes, A goes on",
    }

    def play(self, scene: Scene, act: Act) -> Result:
        """Play the steps. `goes on`: does its next request; `waits`: until the lock has expired, if it does."""
        client = redis.Redis.from_url(scene.address)
        if act.key == "3":
            client.set(scene.resource, time.time() - 1)
        at_work: dict[str, Event] = {}
        most, said, got, pause = 0, dict[str, bool | None](), list[str](), None
        for step in self.PLAYS[act.key].split(", "):
            name, verb = step.split(" ", 1)
            if verb in ("enters", "goes on"):
                if verb == "goes on":
                    scene.go_on(name)
                elif act.fenced:
                    scene.start(name, write, key=scene.resource)
                else:
                    scene.start(name, work, lock=act.how, key=scene.resource)
                kind = scene.until(name, "got", "missed", "step", "worked", "freed", "wrote", "refused")
                if kind == "got":
                    got.append(name)
                    at_work[name] = scene.recorder.open(name, "at-work", "is AT WORK", at=scene.last["at"])
                    most = max(most, len(at_work))
                elif name in at_work and kind != "step":
                    scene.recorder.close(at_work.pop(name), "has done its work", at=scene.last["at"])
                if kind == "freed":
                    said[name] = scene.last["said"]
                if kind not in ("got", "step", "worked"):
                    scene.until(name, "done")
            elif verb == "crashes":
                scene.kill(name, at_work.pop(name, None))
            elif verb == "is paused":
                pause = scene.pause(name)
            elif pause and verb == "resumes":
                scene.resume(name, pause)
            elif act.fenced:
                scene.wait_for_expiry("A")
            else:
                stays = not scene.passes(lambda: not client.exists(scene.resource))
                scene.recorder.add("lock", "found", "stays" if stays else "has expired")
        stuck = client.pttl(scene.resource) == -1
        for name, bar in at_work.items():
            scene.recorder.close(bar, "still at work")
            scene.finish(name)
        if act.fenced:
            [[writer]] = scene.query("SELECT writer FROM result")
            good = (writer, len(scene.refused)) == ("B", 1)
            verdict = f"{most} at work at once. The database holds {writer}'s result: it refused the late write."
            return Result(act, good, verdict, [str(most), "late write refused"], scene.refused)
        verdict, cell = self._measure(stuck, most, got, said)
        client.delete(scene.resource)
        return Result(act, cell == "as it should be", verdict, [str(most), cell], complete=cell == self.CELLS[act.key])

    CELLS = {
        **dict.fromkeys("12", "stuck for ever"),
        **dict.fromkeys(("3", "4", "5", "9a"), "two at work"),
        "6": "True is not true",
        "7": "nobody can work",
        "8": "as it should be",
    }

    def _measure(self, stuck: bool, most: int, got: list[str], said: dict[str, bool | None]) -> tuple[str, str]:
        if most > 1:
            return f"{most} processes were at work at once.", "two at work"
        if stuck:
            return "The key has no expiry. Nobody gets this lock any more.", "stuck for ever"
        if not got:
            return "Redis gave the lock to A. Nobody is at work, and nobody can be.", "nobody can work"
        if len(got) > 1 and said.get("A"):
            return "A's release said True. But B had the lock before it.", "True is not true"
        return "Never two at work, and a crash blocked the others for no longer than the lock lives.", "as it should be"


STORY = WrongLocks()

if __name__ == "__main__":
    sys.exit(perform(STORY))
