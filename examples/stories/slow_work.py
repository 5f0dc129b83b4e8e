"""Show how slow work outlives its lock: no pause, no fault, only a time-out longer than the lock."""

import random
import sys
import threading
import time
import urllib.request
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


def execute(actor: Actor, resource: str, order: str, port: int, guarded: bool, renew: bool) -> None:
    """Execute an order, unless that has been done: ask for a price, and book it."""
    with actor.hold(resource, guarded=guarded, renew=renew) as lease:
        rows = actor.connection.execute("SELECT 1 FROM bookings WHERE act = %s", [order]).fetchall()
        if rows:
            actor.show("skipped", "finds it booked", source="data")
            return
        actor.show("asks", "asks for a price", target="prices")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=REQUEST_TIMEOUT) as reply:
            price = int(reply.read())
        actor.show("priced", f"gets {price}", source="prices")
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
    )
    SETTINGS = {
        "1": "A asks for a price under the lock. The reply takes twice as long as the lock lives. "
        "Nothing is paused, and nothing fails.",
        "2": "A and B claim in the database before they look whether the order is booked.",
        "3": "This library's default: the lock is renewed while A is at work. B waits.",
    }
    WHY = {
        "1": "Each centre booked the order, and each had the lock when it began. "
        "Every time-out inside a lock must be shorter than the lock, or the lock must be renewed.",
        "2": "B had claimed, so A's booking was refused.",
        "3": "Renewal saved B the work. But it cannot help a process that is paused: keep the guard as well.",
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
        scene.start("prices", serve_prices, price=self.price, slow=2 * scene.ttl)
        scene.until("prices", "opens")
        order = {"order": act.key, "port": scene.last["port"], "guarded": act.fenced, "renew": act.how == "renewed"}
        scene.start("A", execute, resource=scene.resource, **order)
        scene.until("A", "asks")
        if act.how != "renewed":
            scene.wait_for_expiry("A")
        scene.start("B", execute, resource=scene.resource, **order)
        for name in "BA" if act.how != "renewed" else "AB":
            if scene.until(name, "booked", "refused", "skipped") == "booked":
                [[count]] = scene.query("SELECT count(*) FROM bookings WHERE act = %s", act.key)
                scene.data("written" if count == 1 else "damaged", f"{count} booked")
            scene.until(name, "done")
        scene.finish("prices")
        rows = scene.query("SELECT centre FROM bookings WHERE act = %s ORDER BY centre", act.key)
        centres = " and ".join(row[0] for row in rows)
        verdict = f"1 order, booked {'once' if len(rows) == 1 else 'twice'}: by {centres}."
        complete = bool(scene.refused) == (act.how == "guarded") and bool(rows)
        return Result(act, len(rows) == 1, verdict, ["1", str(len(rows))], scene.refused, complete)


STORY = SlowWork()

if __name__ == "__main__":
    sys.exit(perform(STORY))
