"""Show how one server that restarts without its data makes Redlock grant a lock twice, and what prevents that."""

import secrets
import sys
from contextlib import ExitStack

import redis

from examples.drawing.events import Event, Lane
from examples.servers import RedisServer, start_redis
from examples.stage.actor import Actor
from examples.stage.coordinators import CHOICES
from examples.stage.director import Act
from examples.stage.tale import Result, Scene, Tale, perform
from fencing import CoordinatorUnavailable

PATIENT_TTL = 30.0
"""Seconds. No lock expires during an act."""


def by_the_book(actor: Actor, key: str, address: str) -> None:
    """Take a lock at a majority, as the description of Redlock says, and work."""
    token, granted = secrets.token_hex(16), 0
    for url in address.split(","):
        try:
            client = redis.Redis.from_url(url, socket_timeout=0.5, retry=None)
            granted += bool(client.set(key, token, nx=True, px=int(PATIENT_TTL * 1000)))
        except redis.RedisError:
            pass  # a server that is down counts as a refusal
    work(actor, granted >= 3, f"granted by {granted} of 5")


def with_this_library(actor: Actor, key: str, address: str) -> None:
    """Try once to take a lock of this library, and work."""
    coordinator = CHOICES["redlock"].open(address, ttl=PATIENT_TTL, owner=actor.name)
    try:
        lease = coordinator.lock(key).try_acquire()
    except CoordinatorUnavailable:  # it says how long the servers that restarted wait
        lease = None
    work(actor, lease is not None, "granted" if lease else "no majority: 3, 4, 5 wait")


def work(actor: Actor, granted: bool, text: str) -> None:
    if granted:
        actor.show("got", text, source="nodes")
        actor.wait()
    else:
        actor.show("missed", text, source="nodes")


class Redlock(Tale):
    NAME = "redlock"
    TITLE = "One of five servers restarts without its data"
    ABOUT = __doc__ or ""
    LANES = (Lane("A", "A", 1), Lane("nodes", "FIVE REDIS SERVERS"), Lane("B", "B", 2))
    HEAD = ("At work at once", "Result")
    COLUMNS = "at work at once  result"
    TABLES = "SELECT 1"
    COORDINATORS = ("redlock",)
    ACTS = (
        Act("1", "Redlock by the book", "book", fenced=False, resumes_early=False, harms=True),
        Act("2", "Redlock of this library", "library", fenced=False, resumes_early=False, harms=False),
    )
    SETTINGS = {
        "1": "Servers 4 and 5 are down when A takes the lock, so servers 1, 2 and 3 grant it. Then 4 and 5 come back, "
        "and 3 restarts without its data.",
        "2": "The same. But a server that has restarted grants nothing for as long as a lock may live.",
    }
    WHY = {
        "1": "Servers 3, 4 and 5 are a majority that knows nothing of A's lock. Nobody was paused, no clock was wrong.",
        "2": "B got no majority. A pause can still make two holders, as in `make demo`: so keep the guard, here too.",
    }

    def introduction(self, ttl: float) -> list[str]:
        return [
            "A and B want a lock that counts if three of five independent Redis servers grant it.",
            f"The lock lives {PATIENT_TTL:g} s, longer than an act lasts.",
        ]

    def start_coordinator(self, stack: ExitStack, choice: str) -> str:
        self.servers: dict[str, list[RedisServer]] = {}
        for act in self.ACTS:  # an act leaves servers that wait
            self.servers[act.key] = [stack.enter_context(start_redis(own=True, local=True)) for _ in range(5)]
        address = self._address(self.ACTS[-1])
        with CHOICES[choice].open(address) as coordinator:
            coordinator.initialise()  # type: ignore[attr-defined]
        return address

    def _address(self, act: Act) -> str:
        return ",".join(server.url for server in self.servers[act.key])

    def play(self, scene: Scene, act: Act) -> Result:
        third, *last = self.servers[act.key][2:]
        for server in last:
            server.kill()
        scene.recorder.add("nodes", "killed", "4 and 5 are down")
        granted = [self._take(scene, act, "A")]
        for server in last:
            server.restart()
        scene.recorder.add("nodes", "found", "4 and 5 are back")
        third.kill()
        third.restart(keep_data=False)
        scene.recorder.add("nodes", "killed", "3 restarts, empty")
        granted.append(self._take(scene, act, "B"))
        for name, bar in zip("AB", granted, strict=True):
            if bar:
                scene.recorder.close(bar, "still at work")
                scene.finish(name)
        count = sum(bar is not None for bar in granted)
        verdict = f"{count} processes were at work at once." if count > 1 else "Only A was at work. B was refused."
        cell = "two holders" if count > 1 else "one holder"
        return Result(act, count == 1, verdict, [str(count), cell], complete=granted[0] is not None)

    def _take(self, scene: Scene, act: Act, name: str) -> Event | None:
        """Let an actor try to take the lock; return what it does then, if it got it."""
        function = by_the_book if act.how == "book" else with_this_library
        scene.start(name, function, key=scene.resource, address=self._address(act))
        if scene.until(name, "got", "missed") == "got":
            return scene.recorder.open(name, "at-work", "is AT WORK")
        scene.until(name, "done")
        return None


STORY = Redlock()

if __name__ == "__main__":
    sys.exit(perform(STORY))
