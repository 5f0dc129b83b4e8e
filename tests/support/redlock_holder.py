"""A process that adds 10 to a balance under a lock of Redlock.

`python -m tests.support.redlock_holder sync|async granted|read TTL DATABASE URL…`

It stops itself (SIGSTOP) at the moment: `granted`, when a majority has just replied; or `read`, when it has the lease
and has read. When it goes on it prints `late` if it had to acquire anew, else `held`; then `stale` if the guard refused
its write, else `written`. After a refusal it writes without the guard.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from fencing import StaleFence
from fencing.redlock.scripts import ACQUIRE
from tests.support.redlock import RedlockNodes
from tests.support.sides import Account, Side


def main(name: str, moment: str, ttl: float, database: str, urls: list[str]) -> None:
    side = Side(name == "async")
    account = Account(side, database, make=False)
    coordinator = RedlockNodes([], longest_ttl=ttl).coordinator(
        side, urls, ttl=ttl, renew=False, guards=[account.guard]
    )
    if moment == "granted":
        coordinator._backend.perform = _stopping(side, coordinator._backend.perform)
    lease = side.call(coordinator.acquire, "r", timeout=30)
    read = account.balance
    if moment == "read":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        print("late" if coordinator._backend.perform.fanouts > 1 else "held", flush=True)
    try:
        account.write(lease, read + 10)
        print("written", flush=True)
    except StaleFence:
        print("stale", flush=True)
        account.sql("UPDATE account SET balance = :late WHERE name = 'r'", late=read + 10)
    os._exit(0)


def _stopping(side: Side, perform: Any) -> Any:
    """Return ``perform``, which stops the process when a majority has just replied to the first acquire."""

    def note(fanout: Any) -> None:
        if fanout.script is ACQUIRE:
            stopping.fanouts += 1
            if stopping.fanouts == 1:
                os.kill(os.getpid(), signal.SIGSTOP)

    async def perform_async(fanout: Any) -> Any:
        replies = await perform(fanout)
        note(fanout)
        return replies

    def perform_sync(fanout: Any) -> Any:
        replies = perform(fanout)
        note(fanout)
        return replies

    stopping: Any = perform_async if side.asynchronous else perform_sync
    stopping.fanouts = 0
    return stopping


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4], sys.argv[5:])
