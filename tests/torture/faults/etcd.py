"""Faults of members of etcd: one dies, freezes, or is cut off from the others; a snapshot is restored."""

from __future__ import annotations

import subprocess
import time

from examples.servers import EtcdServer, ServerError
from tests.torture.faults.base import InVain, Strike, fault

LONGEST_FREEZE = 0.5


def _leader(strike: Strike) -> EtcdServer:
    try:
        found: EtcdServer = strike.service.cluster.leader()
        return found
    except (ServerError, OSError) as error:
        raise InVain(str(error)) from error


@fault("kill leader", "etcd", is_slow=True)
def kill_leader(strike: Strike) -> None:
    """SIGKILL of the leader, which comes back with its data."""
    leader = _leader(strike)
    leader.kill()
    time.sleep(strike.seconds)
    leader.restart()


@fault("freeze", "etcd")
def freeze_leader(strike: Strike) -> None:
    """SIGSTOP of the leader, for longer than an election takes."""
    leader = _leader(strike)
    leader.freeze()
    time.sleep(min(strike.seconds, LONGEST_FREEZE) * 3)
    leader.thaw()


@fault("partition", "etcd", is_slow=True)
def partition(strike: Strike) -> None:
    """Nothing passes between the leader and the others, which elect another one."""
    leader = _leader(strike)
    try:
        strike.service.cluster.isolate(leader)
    except OSError as error:
        raise InVain(str(error)) from error
    finally:
        strike.after(2 * strike.seconds, strike.service.cluster.heal)


@fault("save", "etcd")
def save(strike: Strike) -> None:
    """Save a snapshot: what a restore comes back with."""
    try:
        strike.service.save()
    except (ServerError, OSError, subprocess.SubprocessError) as error:
        raise InVain(str(error)) from error


@fault("older snapshot", "etcd", is_slow=True)
def older_snapshot(strike: Strike) -> None:
    """Restart all members from the snapshot: numbers fall, and locks of before come back."""
    if not strike.service.has_snapshot:
        raise InVain("there is no snapshot yet")
    strike.service.bring_back()
