"""What the tests of gevent and of eventlet have in common: a program that plays stories, and servers with workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from examples.servers import EtcdServer, RedisCluster, RedisServer, SentinelServers, ZooKeeperServer
from storage_guards import SQLAlchemyGuard
from tests.runtimes.greenlet_jobs import LONG_SECONDS
from tests.support.fixtures import RedisFactory

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 60.0

STORIES = (
    "memory",
    "redis",
    "sql",
    "guards",
    "late_holder",
    "compat",
    "async_lease",
    "sigterm",
    "objects",
    "limits",
    "http",
    "sentinel",
    "cluster",
    "mariadb",
    "etcd",
    "etcd_tls",
    "zookeeper",
    "zookeeper_handler",
)
"""The functions of ``greenlet_stories`` that are played with each library."""


def require(*packages: str) -> None:
    """Skip the test where one of the packages is not installed."""
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed with this Python")


def _urls_for(story: str, request: pytest.FixtureRequest) -> str:
    """Return the URLs of the servers of a story."""
    if story == "sentinel":
        sentinels: SentinelServers = request.getfixturevalue("sentinels")
        return ",".join(sentinel.url for sentinel in sentinels.sentinels)
    if story == "cluster":
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        return cluster.servers[0].url
    if story == "redlock":
        start: RedisFactory = request.getfixturevalue("fresh_redis")
        return ",".join(start().url for _ in range(3))
    if story == "etcd":
        etcd: EtcdServer = request.getfixturevalue("etcd_server")
        return etcd.url
    if story.startswith("zookeeper"):
        zookeeper: ZooKeeperServer = request.getfixturevalue("zookeeper_server")
        return zookeeper.hosts
    if story == "etcd_tls":
        secure: tuple[EtcdServer, Path] = request.getfixturevalue("etcd_with_tls")
        return f"{secure[0].url},{secure[1]}"
    server: RedisServer = request.getfixturevalue("any_redis")
    return server.url


def play(library: str, when: str, story: str, request: pytest.FixtureRequest) -> str:
    """Play a story in a process whose threads are greenlets, and return what it prints."""
    program = [sys.executable, "-W", "ignore", "-m", "tests.runtimes.greenlet_stories"]
    database = request.getfixturevalue("mariadb_url" if story == "mariadb" else "postgres_url")
    run = subprocess.run(
        [*program, library, when, story, _urls_for(story, request), database],
        cwd=ROOT, capture_output=True, text=True, timeout=2 * LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert not run.stderr, run.stderr
    return run.stdout


def refusal_without_patch(library: str) -> str:
    """Return what a coordinator of ZooKeeper says to kazoo's handler where threads are no greenlets."""
    program = (
        f"from kazoo.client import KazooClient; from kazoo.handlers.{library} import *; import fencing\n"
        f"client = KazooClient(handler=Sequential{library.capitalize()}Handler())\n"
        "for kind in fencing.ZooKeeperCoordinator, fencing.AsyncZooKeeperCoordinator:\n"
        "    try:\n        kind(client)\n    except TypeError as error:\n        print(error)"
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True,
    )  # fmt: skip
    return run.stdout


@contextmanager
def jobs_database(url: str) -> Iterator[None]:
    """Prepare the row, and a guard's table."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE jobs (total int)"))
        connection.execute(text("INSERT INTO jobs VALUES (0)"))
    SQLAlchemyGuard(engine).create_tables()
    try:
        yield
    finally:
        engine.dispose()


def total_of(url: str) -> int:
    """Return what the row has."""
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            found: int = connection.execute(text("SELECT total FROM jobs")).scalar_one()
            return found
    finally:
        engine.dispose()


@contextmanager
def worker(arguments: list[str], variables: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server of workers until the block ends; its output goes to ``log``."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", *arguments],
            cwd=ROOT, env={**os.environ, **variables}, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(pattern: str, process: subprocess.Popen[bytes], log: Path, count: int = 1) -> str:
    """Wait until the log matches so often, and return the last match's group, or all of it."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        written = log.read_text("utf-8", errors="replace")
        found = list(re.finditer(pattern, written))
        if len(found) >= count:
            return found[-1][found[-1].lastindex or 0]
        assert process.poll() is None, written
        assert time.monotonic() < deadline, written
        time.sleep(0.02)


def run_celery(pool: str, redis: RedisServer, database: str, folder: Path) -> None:
    """Have one Celery worker do jobs, in a pool of greenlets: no update is lost, and long ones keep their lock."""
    variables = {"JOBS_REDIS": redis.url, "JOBS_DATABASE": database, "JOBS_BROKER": redis.url}
    if pool == "eventlet":
        variables["PSYCOPG_WAIT_FUNC"] = "wait_selector"
    arguments = ["celery", "-A", "tests.runtimes.greenlet_jobs:celery", "worker", "-P", pool, "-c", "8", "-l", "INFO"]
    log = folder / "celery.log"
    with jobs_database(database), worker([*arguments, "--without-mingle"], variables, log) as process:
        wait_for(r"ready\.", process, log)
        send = (
            "import sys; from tests.runtimes.greenlet_jobs import add_one_later as job;"
            f"[job.delay({LONG_SECONDS} if n % 8 == 0 else 0.01) for n in range(16)]"
        )
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", send],
            cwd=ROOT, env={**os.environ, **variables}, timeout=LIMIT_SECONDS, check=True,
        )  # fmt: skip
        wait_for(r"Task add_one\S* (succeeded|raised)", process, log, 16)
        assert "raised" not in log.read_text("utf-8"), log.read_text("utf-8")
        assert total_of(database) == 16


def run_gunicorn(preload: bool, redis: RedisServer, database: str, folder: Path) -> None:
    """Have two workers of gunicorn serve requests in greenlets: no update is lost, and long ones keep their lock."""
    variables = {"JOBS_REDIS": redis.url, "JOBS_DATABASE": database}
    if preload:  # psycopg, too, is imported before the threads are replaced
        variables.update(JOBS_MAKE_AT_ONCE="1", PSYCOPG_WAIT_FUNC="wait_poll")
    arguments = ["gunicorn", "-k", "gevent", "-w", "2", "-b", "127.0.0.1:0", "--no-control-socket"]
    log = folder / "gunicorn.log"
    arguments += ["--preload"] if preload else []
    with (
        jobs_database(database),
        worker([*arguments, "tests.runtimes.greenlet_jobs:web"], variables, log) as process,
        ThreadPoolExecutor(16) as threads,
    ):
        address = wait_for(r"Listening at: (\S+)", process, log)

        def ask(number: int) -> bytes:
            seconds = LONG_SECONDS if number % 8 == 0 else 0.01
            with urllib.request.urlopen(f"{address}/?{seconds}", timeout=LIMIT_SECONDS) as answer:
                body: bytes = answer.read()
                return body

        answers = list(threads.map(ask, range(16)))
        assert {answer.split()[1] for answer in answers} == {b"function"}  # time.sleep is replaced there
        assert sorted(int(answer.split()[0]) for answer in answers) == list(range(1, 17))
        assert total_of(database) == 16
