"""Show how slow work outlives its lock, by a time-out longer than the lock, and how far a look at the time helps."""

import random
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from examples.drawing.events import Lane
from examples.stage.actor import Actor
from examples.stage.coordinators import EXPIRING
from examples.stage.director import Act
from examples.stage.tale import Result, Scene, Tale, perform

REQUEST_TIMEOUT = 30
"""Seconds: longer than the lock lives. That is the whole mistake."""


def serve_prices(actor: Actor, price: int, slow: float) -> None:
    """Be a price service: its first reply takes `slow` seconds, the others none."""
    delays = iter([slow])

    class Prices(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(next(delays, 0))
            with suppress(ConnectionError):  # a client that has given up
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"%d" % price)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Prices)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    actor.show("opens", "answers", port=server.server_port)
    actor.wait()
    server.server_close()


def execute(
    actor: Actor, resource: str, order: str, port: int, guarded: bool, renew: bool, looks: bool, waits: bool
) -> None:
    """Execute an order, unless that has been done: ask for a price, and book it.

    `looks`: before each step, it looks at the time that is left of the lease. `waits`: behind the last such look.
    """
    with actor.hold(resource, guarded=guarded, renew=renew) as lease:
        rows = actor.connection.execute("SELECT 1 FROM bookings WHERE act = %s", [order]).fetchall()
        if rows:
            actor.show("skipped", "finds it booked", source="data")
            return
        timeout = 0.75 * lease.remaining() if looks else REQUEST_TIMEOUT  # the rest is for the booking
        actor.show("asks", "asks for a price", target="prices", timeout=timeout)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=timeout) as reply:
                price = int(reply.read())
        except OSError:
            actor.show("stopped", "stops: no price in time")
            return
        actor.show("priced", f"gets {price}", source="prices")
        if looks:
            if not lease.remaining():
                actor.show("stopped", "stops: no time left")
                return
            actor.show("looked", f"{lease.remaining():.1f} s left")
        if waits:
            actor.wait()
        booking = "INSERT INTO bookings VALUES (%s, %s, %s)", [order, actor.name, price]
        actor.write(lease if guarded else None, *booking)
        actor.show("booked", f"books {price}", target="data")


class SlowWork(Tale):
    NAME = "slow-work"
    TITLE = "Work that takes longer than its lock"
    ABOUT = __doc__ or ""
    ACTORS = ("A", "B", "prices")
    LANES = (
        Lane("prices", "PRICES (HTTP)", 3),
        Lane("A", "TRADING CENTRE A", 1),
        Lane("lock", "LOCK"),
        Lane("B", "TRADING CENTRE B", 2),
        Lane("data", "BOOKINGS"),
    )
    COORDINATORS = EXPIRING
    HEAD = ("Orders", "Booked")
    TABLES = "CREATE TABLE bookings (act text, centre text, price integer)"
    ACTS = (
        Act("1", "a lock that is not renewed", "plain", fenced=False, resumes_early=False, harms=True),
        Act("2", "the same with a guard", "guarded", fenced=True, resumes_early=False, harms=False),
        Act("3", "renewed while the work lasts", "renewed", fenced=True, resumes_early=False, harms=False),
        Act("4", "a look at the time that is left", "looks", fenced=False, resumes_early=False, harms=False),
        Act("5", "a pause behind the look", "paused", fenced=True, resumes_early=False, harms=False),
    )
    SETTINGS = {
        "1": "A asks for a price under the lock. The reply takes twice as long as the lock lives. "
        "Nothing is paused, and nothing fails.",
        "2": "A and B claim in the database before they look whether the order is booked.",
        "3": "This library's default: the lock is renewed while A is at work. B waits.",
        "4": "No renewal, no guard. A gives its request three quarters of remaining() as the time-out, "
        "and looks again before it books.",
        "5": "The price comes at once. A looks, and has time left. "
        "Then it is paused (SIGSTOP) until the lock has expired.",
    }
    WHY = {
        "1": "Each centre booked the order, and each had the lock when it began. "
        "Every time-out inside a lock must be shorter than the lock, or the lock must be renewed.",
        "2": "B had claimed, so A's booking was refused.",
        "3": "Renewal saved B the work. But it cannot help a process that is paused: keep the guard as well.",
        "4": "A stopped in time, and freed the lock. That is enough as long as nothing comes behind the last look.",
        "5": "Between a look and a write there is always a moment. B had claimed in it, so A's booking was refused.",
    }

    def introduction(self, ttl: float) -> list[str]:
        return [
            "One order comes to two trading centres. It must be executed once.",
            f"The lock lives {ttl:g} s. A request for a price may take {REQUEST_TIMEOUT} s, and takes {2 * ttl:g} s.",
        ]

    def prepare(self, chance: random.Random) -> None:
        self.price = chance.randrange(100, 200)

    def play(self, scene: Scene, act: Act) -> Result:
        scene.data("found", "no booking")
        scene.start("prices", serve_prices, price=self.price, slow=0 if act.how == "paused" else 2 * scene.ttl)
        scene.until("prices", "opens")
        order = {"order": act.key, "port": scene.last["port"], "guarded": act.fenced, "renew": act.how == "renewed"}
        looks = act.how in ("looks", "paused")
        scene.start("A", execute, resource=scene.resource, **order, looks=looks, waits=act.how == "paused")
        scene.until("A", "looked" if act.how == "paused" else "asks")
        pause = scene.pause("A") if act.how == "paused" else None
        if act.how not in ("renewed", "looks"):
            scene.wait_for_expiry("A")
        elif act.how == "looks":
            scene.until("A", "stopped")
            scene.until("A", "done")
        scene.start("B", execute, resource=scene.resource, **order, looks=False, waits=False)
        for name in {"renewed": "AB", "looks": "B"}.get(act.how, "BA"):
            if name == "A" and pause:
                scene.resume("A", pause)
                scene.go_on("A")
            if scene.until(name, "booked", "refused", "skipped") == "booked":
                [[count]] = scene.query("SELECT count(*) FROM bookings WHERE act = %s", act.key)
                scene.data("written" if count == 1 else "damaged", f"{count} booked")
            scene.until(name, "done")
        scene.finish("prices")
        rows = scene.query("SELECT centre FROM bookings WHERE act = %s ORDER BY centre", act.key)
        centres = " and ".join(row[0] for row in rows)
        verdict = f"1 order, booked {'once' if len(rows) == 1 else 'twice'}: by {centres}."
        complete = bool(scene.refused) == (act.how in ("guarded", "paused")) and bool(rows)
        return Result(act, len(rows) == 1, verdict, ["1", str(len(rows))], scene.refused, complete)


STORY = SlowWork()

if __name__ == "__main__":
    sys.exit(perform(STORY))
