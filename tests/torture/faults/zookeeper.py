"""Faults of members of ZooKeeper: one dies, freezes, or is cut off from the others; a copy is restored."""

from __future__ import annotations

import time

from examples.servers import ServerError, ZooKeeperServer
from tests.torture.faults.base import InVain, Strike, fault

OVER_SECONDS = 0.6
"""How long after its time-out a session is over at the latest: two ticks, and a little more."""


def _leader(strike: Strike) -> ZooKeeperServer:
    """Return the leader. After a fault there is one again, so no fault of another member comes before."""
    try:
        found: ZooKeeperServer = strike.service.ensemble.leader()
        return found
    except (ServerError, OSError) as error:
        raise InVain(str(error)) from error


@fault("kill leader", "zookeeper", is_slow=True)
def kill_leader(strike: Strike) -> None:
    """SIGKILL of the leader, which comes back with its data."""
    leader = _leader(strike)
    leader.kill()
    time.sleep(strike.seconds)
    leader.restart()
    _leader(strike)


@fault("freeze", "zookeeper", is_slow=True)
def freeze_leader(strike: Strike) -> None:
    """SIGSTOP of the leader: for a moment, or for longer than sessions last and an election takes."""
    leader = _leader(strike)
    leader.freeze()
    time.sleep(strike.seconds * 2)
    leader.thaw()
    _leader(strike)


@fault("partition", "zookeeper", is_slow=True)
def partition(strike: Strike) -> None:
    """Nothing passes between the leader and the others, which elect another one. Clients still reach it."""
    leader, ensemble = _leader(strike), strike.service.ensemble
    try:
        ensemble.isolate(leader)
        time.sleep(strike.seconds * 3)
    except OSError as error:
        raise InVain(str(error)) from error
    finally:
        ensemble.heal()
    _leader(strike)


@fault("outlast", "zookeeper", weight=2, is_alone=False)
def outlast(strike: Strike) -> None:
    """SIGSTOP of a worker, until its session is over: others have its locks when it goes on."""
    slot = strike.target % len(strike.processes.alive)
    process = strike.processes.alive[slot]
    strike.processes.stop(slot)
    strike.after(strike.service.ttl + OVER_SECONDS, lambda: strike.processes.resume(process))


@fault("save", "zookeeper", is_slow=True)
def save(strike: Strike) -> None:
    """Copy what the leader has stored: what a restore comes back with."""
    try:
        strike.service.save()
    except (ServerError, OSError) as error:
        raise InVain(str(error)) from error


@fault("older snapshot", "zookeeper", is_slow=True)
def older_snapshot(strike: Strike) -> None:
    """Restart all members from the copy: numbers fall, and locks of before come back."""
    if not strike.service.has_snapshot:
        raise InVain("there is no copy yet")
    strike.service.bring_back()
