"""Pairs of several processes at once, each with locks of its own: what the machine gets done in all."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

from tests.benchmarks.contenders import REDIS_PY, THREADS, open_threads
from tests.benchmarks.measure import ratios, turns
from tests.benchmarks.parts import Run
from tests.benchmarks.servers import redis_server

TTL = 10
ANSWER = 20.0


def part(run: Run) -> None:
    for processes in (1, 2, 4, 8):
        scenario = f"{processes} process{'es' if processes > 1 else ''}, all cores"
        run.say(scenario)
        result = run.child(
            scenario,
            "all",
            "processes.measure",
            seconds=120,
            one_core=False,
            processes=processes,
            rounds=1 if run.quick else 5,
            window=0.2,
        )
        if result is None:
            continue
        for name, said in result["failures"].items():
            run.failed(scenario, name, said)
        rates = {name: its for name, its in result["rates"].items() if name not in result["failures"]}
        for name, its in rates.items():
            run.add(scenario, name, "pairs/s", its)
            if REDIS_PY in rates and name != REDIS_PY:
                run.add(scenario, name, f"x {REDIS_PY}", ratios(its, rates[REDIS_PY]))


def measure(processes: int, rounds: int, window: float) -> dict[str, Any]:
    """In a child: pairs a second of all processes together, round by round."""
    context = multiprocessing.get_context("spawn")
    with redis_server() as server:
        pipes: list[Connection] = []
        for number in range(processes):
            near, far = context.Pipe()
            context.Process(target=_process, args=(server.url, number, far), daemon=True).start()
            pipes.append(near)
        failures: dict[str, str] = {}
        rates: dict[str, list[float]] = {name: [] for name in THREADS}
        for name in THREADS:
            _all(pipes, name, 0.05, failures)  # warm up
        for name in turns(THREADS, rounds, failures):
            counts = _all(pipes, name, window, failures)
            if name not in failures:
                rates[name].append(sum(counts))
        return {"rates": rates, "failures": failures}


def _all(pipes: list[Connection], name: str, window: float, failures: dict[str, str]) -> list[float]:
    """Everybody's pairs a second, from the same moment on."""
    for pipe in pipes:
        pipe.send((name, time.perf_counter() + 0.02, window))
    rates = []
    for pipe in pipes:
        if not pipe.poll(ANSWER):
            raise TimeoutError(f"a process does not answer: {name}")
        said = pipe.recv()
        if isinstance(said, str):
            failures[name] = said
        else:
            rates.append(said)
    return rates


def _process(url: str, number: int, pipe: Connection) -> None:
    ways = {}
    while True:
        try:
            name, start, window = pipe.recv()
        except EOFError:
            return
        try:
            if name not in ways:
                ways[name] = open_threads(name, url, ttl=TTL, connections=2)(f"orders:{number}:{name}")
            acquire, release = ways[name]
            time.sleep(max(0.0, start - time.perf_counter()))
            started, pairs = time.perf_counter(), 0
            while (now := time.perf_counter()) < started + window:
                acquire()
                release()
                pairs += 1
            pipe.send(pairs / (now - started))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            pipe.send(f"{type(error).__name__}: {error}")
