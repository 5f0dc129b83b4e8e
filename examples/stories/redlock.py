"""Show what faults do to Redlock by the book, what prevents it, and how work goes on while servers are down."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack

from examples.drawing.events import Event
from examples.stage.director import Act
from examples.stage.tale import Result, Scene, perform
from examples.stories.five_servers import ALL, FiveServers
from examples.stories.redlock_locks import by_the_book, with_this_library
from examples.stories.redlock_outages import Outages
from examples.stories.redlock_texts import PATIENT_TTL, RedlockTexts

OVERWRITTEN, REFUSED, ALONE = "overwritten", "late write refused", "one holder"


class Redlock(RedlockTexts):
    ABOUT = __doc__ or ""
    TABLES = "CREATE TABLE result (act text PRIMARY KEY, writer text, number bigint)"
    COORDINATORS = ("redlock",)
    EXPECTED = (
        dict.fromkeys(("1a", "2a", "3a", "4a"), OVERWRITTEN)
        | dict.fromkeys(("1b", "3b", "4b"), REFUSED)
        | {"2b": ALONE, "5": ALONE}
    )

    def start_coordinator(self, stack: ExitStack, choice: str) -> str:
        return ",".join(f"redis://127.0.0.1:{port}" for port in ALL)  # nothing: each act has servers of its own

    def play(self, scene: Scene, act: Act) -> Result:
        scene.query("INSERT INTO result VALUES (%s, '', 0)", act.key)
        self.got = dict[str, int]()
        """The number that each has got. By the book, in the first acts: 0."""
        self.at_work = dict[str, Event]()
        self.pause: Event | None = None
        with ExitStack() as stack:
            if act.key in "678":
                return Outages(stack, scene, act).play()
            servers = FiveServers(stack, scene, clocks=act.key[0] == "3")
            if act.key[0] in "14":
                self._pause(scene, act, servers)
            elif act.key == "5":
                self._pause_before_the_check(scene, act, servers)
            elif act.key[0] == "2":
                self._enter(scene, act, servers, "A", (1, 2, 3))
                servers.restart_empty(3)
                self._enter(scene, act, servers, "B", ALL)
            else:
                self._enter(scene, act, servers, "A", (1, 2, 3, 4))
                servers.jump(3, 4)
                self._enter(scene, act, servers, "B", ALL)
            for name in "BA":
                self._write(scene, act, name)
        return self._measure(scene, act)

    def _pause(self, scene: Scene, act: Act, servers: FiveServers) -> None:
        """Let A be paused at its work, until B has the lock."""
        one, many, others = ((1,), (1, 2, 3), (3, 4, 5)) if act.key[0] == "4" else ((), ALL, ALL)
        if one:
            self._enter(scene, act, servers, "B", one)
        self._enter(scene, act, servers, "A", many)
        self.pause = scene.pause("A")
        servers.wait_for_expiry(scene.resource)
        self._enter(scene, act, servers, "B", others)

    def _pause_before_the_check(self, scene: Scene, act: Act, servers: FiveServers) -> None:
        """Let A be paused when all have granted it the lock, but before it has looked how long that took."""
        servers.reach(ALL, "A")
        self._start(scene, act, servers, "A", waits=True)
        scene.until("A", "asked")
        pause = scene.pause("A")
        servers.wait_for_expiry(scene.resource)
        self._enter(scene, act, servers, "B", ALL)
        scene.resume("A", pause)
        scene.go_on("A")
        scene.until("A", "missed")
        scene.until("A", "done")

    def _start(self, scene: Scene, act: Act, servers: FiveServers, name: str, **options: bool) -> None:
        function = by_the_book if act.how == "book" else with_this_library
        ttl = scene.ttl if act.key[0] in "145" else PATIENT_TTL
        request = {"key": scene.resource, "address": servers.address, "act": act.key, "numbered": act.key[0] == "4"}
        scene.start(name, function, ttl=ttl, **request, **options)

    def _enter(self, scene: Scene, act: Act, servers: FiveServers, name: str, reached: Sequence[int]) -> None:
        """Let an actor try to take the lock at the servers that it reaches."""
        servers.reach(reached, name)
        self._start(scene, act, servers, name)
        if scene.until(name, "got", "missed") == "missed":
            scene.until(name, "done")
            return
        self.got[name] = scene.last["is_"]
        self.at_work[name] = scene.recorder.open(name, "at-work", "is AT WORK")
        if act.fenced:
            scene.data("claimed", f"claimed: {name}", source=name)

    def _write(self, scene: Scene, act: Act, name: str) -> None:
        """Let an actor that is at work write."""
        if name not in self.at_work:
            return
        if name == "A" and self.pause:
            scene.resume(name, self.pause)
        scene.go_on(name)
        kind = scene.until(name, "wrote", "refused")
        scene.recorder.close(
            self.at_work[name], "stops" if kind == "refused" else "has done its work", at=scene.last["at"]
        )
        if kind == "wrote" and name == "A" and "B" in self.at_work:
            scene.data("damaged", "A's", flag="B's RESULT IS LOST")
        elif kind == "wrote":
            scene.data("written", f"{name}'s")
        scene.until(name, "done")

    def _measure(self, scene: Scene, act: Act) -> Result:
        [[writer]] = scene.query("SELECT writer FROM result WHERE act = %s", act.key)
        if "B" not in self.got:
            cell, verdict = ALONE, "Only A was at work. B was refused."
        elif "A" not in self.got:
            cell, verdict = ALONE, "Only B was at work. A saw that it was too late."
        elif writer == "A":
            cell, verdict = OVERWRITTEN, "A and B were at work at once. A's late write replaced B's result."
        else:
            cell, verdict = REFUSED, "A and B were at work at once. The database refused A's late write."
        numbers = [self.got[name] for name in "AB" if name in self.got]
        complete = cell == self.EXPECTED[act.key] and bool(scene.refused) == (cell == REFUSED)
        if act.key[0] == "4":
            verdict = f"A's number was {numbers[0]}, B's {numbers[-1]}. {verdict}"
            complete = complete and (numbers[0] == numbers[-1]) == act.harms and sorted(numbers) == numbers
        return Result(act, cell != OVERWRITTEN, verdict, [str(len(numbers)), cell], scene.refused, complete)


STORY = Redlock()

if __name__ == "__main__":
    sys.exit(perform(STORY))
