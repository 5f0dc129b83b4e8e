"""The acts: a lock on a primary that dies before its replica has seen it. What is played, and what is said about it."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from sqlalchemy import Engine

from examples.drawing.events import Event, Recorder
from examples.gc_pause import director
from examples.gc_pause.director import Outcome
from examples.gc_pause.setting import set_up_deposits
from examples.gc_pause.story import DepositStory, deposits_into
from examples.servers import SentinelServers, start_sentinels
from examples.stage.coordinators import sentinel_address
from examples.stage.director import Act
from examples.stage.process import WorkerProcess
from examples.stage.run import Options
from examples.stage.screen import Screen
from fencing import Coordinator

PATIENT_TTL = 20.0
"""Seconds. No lock expires during the demo, so that nothing but the failover frees one."""

_LOST = "is lost with the primary"

_ACTS = (
    Act("1", "only a lock", "lock_only", fenced=False, resumes_early=False, harms=True),
    Act("2", "the same with this library's guard", "guarded", fenced=True, resumes_early=False, harms=False),
)

_SETTINGS = {
    "1": "A takes the lock. The primary dies before a replica has seen it. The Sentinels promote a replica, which "
    "grants the lock to B. Nobody was paused, and no lock has expired.",
    "2": "The same failover. But a process that takes the lock also claims the row: the database stores its "
    "number before the process reads.",
}

_WHY = {
    "1": "Redis acknowledges a lock before its replicas have it. So A and B held the lock at the same time. The "
    "database knows nothing of the lock, and accepts A's write like any other.",
    "2": "A and B held the lock at the same time again. But B had claimed the row, so A's write was refused. "
    "A started again, from B's balance.",
}

_LOCK_ENDS = {**DepositStory.LOCK_ENDS, _LOST: _LOST}


class Director(director.Director):
    """Plays an act with two processes, real Sentinels and a real failover."""

    def __init__(
        self,
        servers: SentinelServers,
        workers: dict[str, WorkerProcess],
        coordinator: Coordinator,
        engine: Engine,
        recorder: Recorder,
        screen: Screen,
    ) -> None:
        super().__init__(workers, coordinator, engine, recorder, screen, ttl=PATIENT_TTL, prefix="")
        self._servers = servers

    def play(self, act: Act) -> Outcome:
        self._screen.wait("waiting until the replicas have everything")
        self._servers.settle()
        self._begin_account(act)
        primary = self._servers.primary
        self._servers.cut_replication()
        self._start("A", act)
        self._until("A", "read")
        primary.kill()
        self._recorder.close(self._leases.pop("A"), _LOST)
        down = self._recorder.open("lock", "down", "NO PRIMARY")
        self._screen.wait("waiting until a replica is the primary")
        self._servers.fail_over()
        self._recorder.close(down, "a replica takes over")
        self._start("B", act)
        self._until("B", "read")
        self._go_on("B")
        self._finish("B")
        self._go_on("A")
        self._until("A", "wrote", "refused")
        self._finish("A")
        primary.restart()
        return Outcome(act, self._acknowledged, self._refused, self._row()[0])


class FailoverStory(DepositStory):
    NAME = "failover"
    TITLE = "A failover grants a lock twice"
    ACTS = _ACTS
    SETTINGS = _SETTINGS
    WHY = _WHY
    LOCK_ENDS = _LOCK_ENDS

    def introduction(self, ttl: float) -> list[str]:
        return [
            deposits_into("An account holds"),
            "Each takes a lock in Redis, reads the balance from PostgreSQL and writes back the sum.",
            "Redis is a primary with two replicas. Three Sentinels watch them.",
            "The demo kills the primary when A has the lock. The replicas lag behind for a moment.",
        ]

    def sentences(self, event: Event) -> Mapping[str, Callable[[], str]]:
        killed = "The primary is killed. No replica has A's lock."
        return {**super().sentences(event), "down": lambda: killed}


STORY = FailoverStory()


def set_up(stack: ExitStack, screen: Screen, recorder: Recorder, options: Options) -> Director:
    """Two worker processes, a primary, two replicas, three Sentinels and a database; the stack removes it all again."""
    started: list[SentinelServers] = []

    def start_locks(stack: ExitStack) -> str:
        started.append(stack.enter_context(start_sentinels()))
        return sentinel_address(started[0])

    setting = set_up_deposits(stack, screen, PATIENT_TTL, "sentinel", start_locks)
    return Director(started[0], *setting, recorder, screen)
