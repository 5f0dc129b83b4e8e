"""Guarded writes to an object store, the fence already claimed, against plain puts of the same bytes through obstore.

    python -m tests.benchmarks.object_store [rounds]

Turn about, on moto's S3. Printed: medians of times, of ratios to the plain put of the same round (with the 10th and the
90th percentile), and of the processor time that this process takes; and the requests, counted on the way.

Read the requests first: they are the same everywhere. The times are those of a server on this machine, written in
Python: each request keeps it busy for about as long, and the network takes nothing. So the guard's own work looks
bigger here than it is: where a round trip takes 20 ms the ratio is that of the requests, or better, for gets are faster
than puts there. And a round trip looks smaller than it is.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from examples.servers import S3Server, start_s3
from fencing import Fence
from storage_guards import ObjectStoreGuard
from tests.benchmarks.measure import ratios, spread_of, turns
from tests.support.request_counts import RequestCounts
from tests.support.servers import HttpProxy

ROUNDS = 150
LONGEST = 40.0
"""Seconds after which no more rounds are begun."""

WARM_UP = 5
MINE = Fence("sales", 1, "a" * 22)


class Kind(NamedTuple):
    name: str
    plain: str
    """What it is compared with; its own name: nothing."""
    write: Callable[[], object]


def kinds(store: Any) -> list[Kind]:
    """Each writes to what is there already."""
    guard = ObjectStoreGuard(store)
    guard.claim(MINE)
    small, big, ten = b"x" * 2**10, b"x" * 2**18, [str(number) for number in range(10)]
    stored = guard.write(MINE, "replaced", small)
    numbers = itertools.count()

    def put_ten() -> None:
        for name in ten:
            store.put(f"plain-{name}", small)

    def write() -> None:
        guard.write(MINE, "in-place", b"%d" % next(numbers) + small)  # the same bytes would cost one more head

    def replace() -> None:
        nonlocal stored
        stored = guard.write(MINE, "replaced", b"%d" % next(numbers) + small, replacing=stored)

    return [
        Kind("put 1 KiB", "put 1 KiB", lambda: store.put("plain", small)),
        Kind("publish 1 KiB", "put 1 KiB", lambda: guard.publish(MINE, {"x": small})),
        Kind("write 1 KiB", "put 1 KiB", write),
        Kind("write 1 KiB, replacing", "put 1 KiB", replace),
        Kind("put 256 KiB", "put 256 KiB", lambda: store.put("plain-big", big)),
        Kind("publish 256 KiB", "put 256 KiB", lambda: guard.publish(MINE, {"x": big})),
        Kind("10 puts of 1 KiB", "10 puts of 1 KiB", put_ten),
        Kind("publish 10 of 1 KiB", "10 puts of 1 KiB", lambda: guard.publish(MINE, dict.fromkeys(ten, small))),
    ]


def main(rounds: int) -> None:
    with start_s3() as server:
        requests = counted(server)
        measured = timed(kinds(server.store()), rounds)
    done = len(next(iter(measured.values())))
    print(f"{server.source}, {done} rounds")
    for kind, asked_for in requests.items():
        seconds, cpu = zip(*measured[kind.name], strict=True)
        line = f"{kind.name:24}{spread_of(seconds).median * 1e3:7.1f} ms{spread_of(cpu).median * 1e3:6.1f} ms cpu"
        if kind.plain != kind.name:
            ratio = spread_of(ratios(seconds, [second for second, _ in measured[kind.plain]]))
            line += f"   x {ratio.median:.2f} ({ratio.low:.2f} … {ratio.high:.2f})"
        asked = ", ".join(f"{number} {name}" for name, number in sorted(asked_for.items()))
        print(f"{line:70}  {asked}")


def counted(server: S3Server) -> dict[Kind, dict[str, int]]:
    with HttpProxy(server.host, server.port) as proxy:
        counts = RequestCounts(proxy)
        return {kind: dict(counts.during(kind.write)) for kind in kinds(server.store(via=proxy))}


def timed(kinds: list[Kind], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds by name, round by round: those that passed, and the processor's here."""
    writes = {kind.name: kind.write for kind in kinds}
    for write in [*writes.values()] * WARM_UP:
        write()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in writes}
    end = time.perf_counter() + LONGEST
    for name in turns(list(writes), rounds, ()):
        if time.perf_counter() > end and len({len(each) for each in times.values()}) == 1:
            break
        cpu, started = time.process_time(), time.perf_counter()
        writes[name]()
        times[name].append((time.perf_counter() - started, time.process_time() - cpu))
    return times


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS)
