"""Workers that take a lock, hold it for a millisecond, free it, and want it again. Runs in a child.

The workers are threads, tasks or processes. One window is timed. In a second one, Redis' MONITOR counts the commands of
clients, which would disturb the first.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tests.benchmarks.children import all_cores, pin, unpin
from tests.benchmarks.contenders import open_async, open_threads
from tests.benchmarks.raw import connect
from tests.benchmarks.servers import cpu_seconds, redis_server

HOLD = 0.001
WARM_UP = 0.3
TTL = 10
START_LIMIT = 60.0
COUNTED = 0.25
"""The seconds in which commands are counted."""
RESOURCE = "orders:42"


class Grant(NamedTuple):
    worker: int
    acquired: float
    releasing: float


def measure(name: str, kind: str, workers: int, window: float) -> dict[str, Any]:
    """Return the grants with their times, the processor time in seconds, and the commands."""
    with redis_server() as server:
        kinds: dict[str, type[_Threads] | type[_Processes]] = {"threads": _Threads, "tasks": _Tasks}
        crowd = kinds.get(kind, _Processes)(name, server.url, workers)
        time.sleep(WARM_UP + workers * 0.001)
        start, cpu = time.perf_counter(), crowd.cpu()
        time.sleep(window)
        end, cpu = time.perf_counter(), crowd.cpu() - cpu
        counter = _Monitor(server.host, server.port)
        counted_start = time.perf_counter()
        time.sleep(COUNTED)
        counted_end = time.perf_counter()
        commands = counter.stop()
        grants, errors = crowd.stop()
        return {
            "workers": workers,
            "grants": grants,
            "errors": errors,
            "window": [start, end],
            "cpu": cpu,
            "counted": [counted_start, counted_end],
            "commands": commands,
        }


class _Monitor:
    """A count of the commands of clients, without those of scripts. The output of MONITOR is read only at the end."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket = connect(host, port)
        self._socket.sendall(b"MONITOR\r\n")
        self._socket.settimeout(10)
        self._said = bytearray()
        self._read_until(b"+OK\r\n")

    def stop(self) -> int:
        end = b"no-more-to-count"
        with socket.create_connection(self._address) as other:
            other.sendall(b"ECHO %b\r\n" % end)
            said = self._read_until(end)
        self._socket.close()
        return said.count(b"\r\n") - said.count(b" lua] ")  # arguments are escaped: no line ends within them

    def _read_until(self, end: bytes) -> bytes:
        """Return the output before the end. The output after it stays."""
        seen = 0
        while (found := self._said.find(end, max(0, seen - len(end)))) < 0:
            seen = len(self._said)
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionError("Redis closed the connection of MONITOR")
            self._said += data
        said = bytes(self._said[:found])
        del self._said[: found + len(end)]
        return said


def work(worker: int, way: Any, grants: list[Grant], errors: list[str], stopped: Callable[[], bool]) -> None:
    """Take the lock again and again, until stopped. A worker that waits then gets the lock once more, or never."""
    clock = time.perf_counter
    try:
        while not stopped():
            way.acquire()
            acquired = clock()
            time.sleep(HOLD)
            grants.append(Grant(worker, acquired, clock()))
            way.release()
    except Exception as error:  # noqa: BLE001 - it is reported
        errors.append(f"{type(error).__name__}: {error}")


class _Threads:
    def __init__(self, name: str, url: str, workers: int) -> None:
        self.grants: list[Grant] = []
        self.errors: list[str] = []
        self._stopped = threading.Event()
        make = open_threads(name, url, ttl=TTL, connections=2 * workers)
        for worker in range(workers):
            given = (worker, make(RESOURCE), self.grants, self.errors, self._stopped.is_set)
            threading.Thread(target=work, args=given, daemon=True).start()

    def cpu(self) -> float:
        return time.process_time()

    def stop(self) -> tuple[list[Grant], list[str]]:
        """Return the grants up to now. The workers are not waited for: the process ends."""
        errors = list(self.errors)
        self._stopped.set()
        return list(self.grants), errors


class _Tasks(_Threads):
    """Tasks in the loop of one thread."""

    def __init__(self, name: str, url: str, workers: int) -> None:
        self.grants = []
        self.errors = []
        self._stopped = threading.Event()
        threading.Thread(target=asyncio.run, args=(self._all(name, url, workers),), daemon=True).start()

    async def _all(self, name: str, url: str, workers: int) -> None:
        try:
            async with AsyncExitStack() as stack:
                make = await open_async(name, url, stack, ttl=TTL, connections=2 * workers)
                await asyncio.gather(*(self._work(worker, make(RESOURCE)) for worker in range(workers)))
        except Exception as error:  # noqa: BLE001 - as above
            self.errors.append(f"{type(error).__name__}: {error}")

    async def _work(self, worker: int, way: Any) -> None:
        clock = time.perf_counter
        try:
            while not self._stopped.is_set():
                await way.acquire()
                acquired = clock()
                await asyncio.sleep(HOLD)
                self.grants.append(Grant(worker, acquired, clock()))
                await way.release()
        except Exception as error:  # noqa: BLE001 - as above
            self.errors.append(f"{type(error).__name__}: {error}")


class _Processes:
    """Processes with a worker each. Their clock is the machine's, so their times can be compared."""

    def __init__(self, name: str, url: str, workers: int) -> None:
        cores = all_cores()
        unpin()  # the processes start on all cores, and work on ours
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # imports once what all of them need
        self._pipes: list[Connection] = []
        self._processes = []
        for worker in range(workers):
            near, far = context.Pipe()
            process = context.Process(target=_process, args=(name, url, worker, far, cores), daemon=True)
            process.start()
            self._pipes.append(near)
            self._processes.append(process)
        for near in self._pipes:
            _receive(near, START_LIMIT)
        pin(cores)
        for near in self._pipes:
            near.send("go")

    def cpu(self) -> float:
        return sum(cpu_seconds(process.pid) for process in self._processes if process.pid)

    def stop(self) -> tuple[list[Grant], list[str]]:
        for near in self._pipes:
            near.send("stop")
        grants: list[Grant] = []
        errors: list[str] = []
        for near in self._pipes:
            its, wrong = _receive(near, START_LIMIT)
            grants += its
            errors += wrong
        return grants, errors


def _receive(pipe: Connection, seconds: float) -> Any:
    if not pipe.poll(seconds):
        raise TimeoutError("a worker process does not answer")
    return pipe.recv()


def _process(name: str, url: str, worker: int, pipe: Connection, cores: list[int]) -> None:
    grants: list[Grant] = []
    errors: list[str] = []
    stopped = threading.Event()
    way = open_threads(name, url, ttl=TTL, connections=2)(RESOURCE)
    pin(cores)
    pipe.send("ready")
    pipe.recv()
    threading.Thread(target=work, args=(worker, way, grants, errors, stopped.is_set), daemon=True).start()
    pipe.recv()
    wrong = list(errors)
    stopped.set()
    pipe.send((list(grants), wrong))
    pipe.recv_bytes()  # until the other end is gone
