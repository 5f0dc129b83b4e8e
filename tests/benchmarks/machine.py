"""The machine of a run, and its noise."""

from __future__ import annotations

import os
import platform
import time
from datetime import date
from pathlib import Path
from typing import Any

from examples.servers import find_postgres_binaries, find_redis_binaries, find_zookeeper
from examples.servers.etcd import find_etcd_binary
from tests.benchmarks.contenders import versions
from tests.benchmarks.measure import percentile
from tests.support.servers import find_mariadb_binary
from tests.support.servers.mysql import find_unpacked_mysql, version_of_mysql

SPINS = 200
SPIN = 20_000


def describe() -> dict[str, Any]:
    mariadb, mysql, etcd = find_mariadb_binary(), find_unpacked_mysql(), find_etcd_binary()
    servers = {
        "Redis": ".".join(map(str, find_redis_binaries()[0].version)) if find_redis_binaries() else "none",
        "PostgreSQL": ".".join(map(str, find_postgres_binaries()[0].version)) if find_postgres_binaries() else "none",
        "MariaDB": ".".join(map(str, mariadb.version)) if mariadb else "none",
        "etcd": ".".join(map(str, etcd.version)) if etcd else "none",
    }
    if find_zookeeper() is not None:
        servers["ZooKeeper"] = "3.8"
    if mysql is not None:
        servers["MySQL"] = ".".join(map(str, version_of_mysql(mysql) or ()))
    return {
        "date": date.today().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "servers": servers,
        "packages": versions(),
    }


def noise() -> dict[str, float]:
    """Return the load, and the spread of the same short computation: 1.0 on a quiet machine."""
    times = []
    for _ in range(SPINS):
        started = time.perf_counter()
        for _ in range(SPIN):
            pass
        times.append(time.perf_counter() - started)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return {"load": round(load, 2), "spin": round(percentile(times, 0.9) / percentile(times, 0.1), 2)}


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
