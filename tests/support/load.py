"""How much of this machine a run of the tests may use, and what else the machine does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

LOAD_AT_START = "FENCING_LOAD_AT_START"
"""The environment variable with the load before a run began, for its workers."""

LEAST_WORKERS, MOST_WORKERS = 4, 6
FOR_EACH_CPU = 3
"""Most tests wait more than they compute, so more processes than there are CPUs."""


def workers_for(cpus: float, load: float) -> tuple[int, str]:
    """Return how many processes share the tests, and why.

    Args:
        cpus: how many this run may use.
        load: how many processes of others want a CPU when the run starts.
    """
    workers = max(1, min(MOST_WORKERS, int(FOR_EACH_CPU * cpus)))
    why = f"at most {FOR_EACH_CPU} for each of {cpus:g} CPUs, and {MOST_WORKERS} in all"
    if load <= cpus:
        return workers, f"{why}; the load is {load:.1f}"
    # One or two alone would get so little of a busy machine that the run took hours.
    fewer = max(min(workers, LEAST_WORKERS), int(workers * cpus / load))
    return fewer, f"{why}, and fewer because the load is {load:.1f}"


def usable_cpus() -> float:
    """Return how many CPUs this process may use, by its affinity and the quotas of its control groups."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(count), *quotas()])


def quotas(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> Iterator[float]:
    """Yield how many CPUs' time each control group of this process may use, of those that have a quota."""
    try:
        lines = groups.read_text("utf-8").splitlines()
    except OSError:
        return  # no Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # A container may see its own group as the root, whatever the path says.
        base = root / controllers if controllers else root
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            if (quota := _quota(folder)) is not None:
                yield quota
            if folder == base:
                break


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():  # version 2
            limit, period = (folder / "cpu.max").read_text("utf-8").split()
        else:
            limit = (folder / "cpu.cfs_quota_us").read_text("utf-8").strip()
            period = (folder / "cpu.cfs_period_us").read_text("utf-8")
    except OSError:
        return None
    return None if limit in ("max", "-1") else int(limit) / int(period)


def load_now() -> float:
    """Return how many processes want a CPU, without this one: the mean over half a second.

    The load average would also count a run that has just ended.
    """
    counts = []
    try:
        for _ in range(25):
            running = Path("/proc/loadavg").read_text("utf-8").split()[3]
            counts.append(int(running.partition("/")[0]) - 1)
            time.sleep(0.02)
    except OSError:  # no Linux
        return os.getloadavg()[0]
    return sum(counts) / len(counts)


def starved(reason: str) -> NoReturn:
    """Skip the test because it did not get the CPU that it needs, and say the load.

    With ``FENCING_REQUIRE_CPUS``, as in ``.ci/run``, it fails where the load was below the CPUs when the run started.
    At most five tests may use this: ``tests/structure/test_load.py`` counts them.
    """
    text = f"starved, the load is {os.getloadavg()[0]:.1f}: {reason}"
    cpus, before = usable_cpus(), float(os.environ.get(LOAD_AT_START, "0"))
    if os.environ.get("FENCING_REQUIRE_CPUS") and before < cpus:
        pytest.fail(f"{text}; yet it was {before:.1f} on {cpus:g} CPUs when the run started", pytrace=False)
    pytest.skip(text)
