"""Workers that take jobs from a table: each effect comes exactly once. ``python -m examples.jobs`` runs it.

``FOR UPDATE SKIP LOCKED`` hands out the jobs, a lease keeps each one while its worker lives, and a guard lets only the
newest holder finish it. Meanwhile processes are killed, and frozen until others have done their jobs. It starts a
PostgreSQL of its own, and stops it at the end.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, Engine, TextClause, create_engine, text
from sqlalchemy.exc import DBAPIError

from examples.servers import freeze, start_postgres
from fencing import Coordinator, FencingError, SQLCoordinator
from storage_guards import SQLAlchemyGuard

ROOT = Path(__file__).resolve().parents[1]
TTL = 1.5
PATIENCE = 240.0

TABLES = (
    "CREATE TABLE job (id bigserial PRIMARY KEY, input text NOT NULL, looked_at timestamptz, result text)",
    "CREATE INDEX job_waiting ON job (looked_at NULLS FIRST, id) WHERE result IS NULL",
    # Without a unique key: it is not the table that refuses a second effect.
    "CREATE TABLE effect (job bigint NOT NULL, worker text NOT NULL)",
)
OF_THE_DEMO = (  # what it counts, and how its workers know that they may end
    "CREATE TABLE working (worker text NOT NULL, thread int NOT NULL)",
    "CREATE TABLE turned_away (worker text NOT NULL, error text NOT NULL)",
    "CREATE TABLE closed (at timestamptz NOT NULL DEFAULT now())",
)

TAKE = text("""
    UPDATE job SET looked_at = now() WHERE id = (
        SELECT id FROM job
        WHERE result IS NULL AND (looked_at IS NULL OR looked_at < now() - interval '1 second')
        ORDER BY looked_at NULLS FIRST, id
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) RETURNING id, input
""")
RESULT = text("SELECT result FROM job WHERE id = :id")
EFFECT = text("INSERT INTO effect VALUES (:id, :worker)")
FINISH = text("UPDATE job SET result = :result WHERE id = :id")


def work_on_one(
    engine: Engine, coordinator: Coordinator, guard: SQLAlchemyGuard, worker: str, work: Callable[[str], str]
) -> bool:
    """Take a job, do it, and finish it. Return False if there is none to look at."""
    # Committed by itself: a worker that is frozen behind it keeps no lock of the row.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        job = connection.execute(TAKE).one_or_none()  # no two workers look at the same job at once
    if job is None:
        return False
    lease = coordinator.try_acquire(f"job:{job.id}")  # claims at the guard: from now on, no earlier holder can finish
    if lease is None:
        return True  # its worker lives: somebody looks again after a second
    with lease:  # renewed in the background
        with engine.connect() as connection:
            result = connection.execute(RESULT, {"id": job.id}).scalar_one()  # read behind the claim, not before it
        if result is None:
            result = work(job.input)  # takes minutes; no transaction is open
            with guard.begin(lease) as connection:  # refused, if another worker has taken the job over
                connection.execute(EFFECT, {"id": job.id, "worker": worker})
                connection.execute(FINISH, {"id": job.id, "result": result})
    return True


@dataclass(frozen=True)
class Outcome:
    """What is in the database at the end."""

    jobs: int
    effects: int
    not_once: int
    """How many jobs have no effect, or more than one."""
    turned_away: dict[str, int]
    """How often a worker could not finish, or get at, its job: by the name of the error."""


def add_jobs(connection: Connection, number: int) -> None:
    """Let so many more jobs wait."""
    connection.execute(ADD, [{"input": f"job {each}"} for each in range(number)])


def outcome(connection: Connection) -> Outcome:
    """Count the effects."""

    def count(query: str) -> int:
        return int(connection.execute(text(query)).scalar_one())

    return Outcome(
        count("SELECT count(*) FROM job WHERE result = upper(input)"),
        count("SELECT count(*) FROM effect"),
        count("SELECT count(*) FROM job WHERE (SELECT count(*) FROM effect WHERE effect.job = job.id) <> 1"),
        {
            error: int(n)
            for error, n in connection.execute(text("SELECT error, count(*) FROM turned_away GROUP BY error"))
        },
    )


ADD = text("INSERT INTO job (input) VALUES (:input)")
WAITING = text("SELECT count(*) FROM job WHERE result IS NULL")
WAITING_OF = text("SELECT count(*) FROM job WHERE result IS NULL AND id = ANY(:jobs)")
TO_DO = text("SELECT (SELECT count(*) FROM job WHERE result IS NULL) + (SELECT 1 - count(*) FROM closed)")
BEGIN = text("INSERT INTO working VALUES (:worker, :thread)")
END = text("DELETE FROM working WHERE worker = :worker AND thread = :thread")
WORKING = text("SELECT count(*) FROM working WHERE worker = :worker")
TURNED_AWAY = text("INSERT INTO turned_away VALUES (:worker, :error)")


def number_of(engine: Engine, query: TextClause, **arguments: object) -> int:
    """Return the number that a query counts."""
    with engine.connect() as connection:
        return int(connection.execute(query, arguments).scalar_one())


def work_until_closed(url: str, name: str, threads: int) -> None:
    """Work with so many threads until no job waits, and none will come. Each process runs this."""
    engine = create_engine(url, pool_size=max(2, threads // 2), max_overflow=0, pool_timeout=PATIENCE)
    guard = SQLAlchemyGuard(engine, timeout=5)

    def work_on(thread: int) -> None:
        choice = random.Random(f"{name} {thread}")

        def work(given: str) -> str:
            _do(engine, BEGIN, worker=name, thread=thread)
            time.sleep(choice.uniform(0.1, 0.5))
            _do(engine, END, worker=name, thread=thread)
            return given.upper()

        while number_of(engine, TO_DO):
            try:
                if work_on_one(engine, coordinator, guard, f"{name}.{thread}", work):
                    continue
            except (FencingError, DBAPIError) as error:  # the job may be another worker's now: its row says what is so
                _do(engine, TURNED_AWAY, worker=name, error=type(error).__name__)
            time.sleep(choice.uniform(0.3, 0.6))

    with (
        SQLCoordinator(engine, ttl=TTL, guards=[guard], owner=name) as coordinator,
        ThreadPoolExecutor(threads) as pool,
    ):
        list(pool.map(work_on, range(threads)))
    engine.dispose()


def run(url: str, *, processes: int, threads: int, jobs: int, faults: int, seed: int) -> Outcome:
    """Let the workers do at least so many jobs, while so many of their processes are killed, and so many frozen.

    A frozen one goes on when others have done its jobs. Return what is in the database then.
    """
    chance = random.Random(seed)
    engine = create_engine(url)
    SQLAlchemyGuard(engine).create_tables()
    coordinator = SQLCoordinator(engine)
    coordinator.create_tables()
    with engine.begin() as connection:
        for table in (*TABLES, *OF_THE_DEMO):
            connection.execute(text(table))
    running: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str) -> None:
        command = [sys.executable, "-m", "examples.jobs", "--worker", name, url, str(threads)]
        running[name] = subprocess.Popen(command, cwd=ROOT)

    def jobs_of(name: str) -> list[int]:
        """Return what the process works on; let jobs wait, so that it will."""
        if number_of(engine, WAITING) < 2 * processes * threads:
            with engine.begin() as connection:
                add_jobs(connection, processes * threads)
        return [int(job.removeprefix("job:")) for job, holder in coordinator.holders("job:*") if holder.owner == name]

    def are_done(taken: list[int]) -> bool:
        return not number_of(engine, WAITING_OF, jobs=taken)

    try:
        for number in range(processes):
            start(f"process {number}")
        for number in range(faults):
            name = chance.choice(list(running))
            while True:  # until it stands still in its work: then it will come late
                _wait(partial(jobs_of, name))
                freeze(running[name])
                taken = jobs_of(name)
                if taken and number_of(engine, WORKING, worker=name):
                    break
                running[name].send_signal(signal.SIGCONT)
            _wait(partial(are_done, taken))  # by others
            running[name].send_signal(signal.SIGCONT)

            name = chance.choice([each for each in running if each != name])  # the other one is to come late
            _wait(partial(jobs_of, name))
            process = running.pop(name)
            process.kill()
            process.wait()
            start(f"process {processes + number}")
        with engine.begin() as connection:
            there = int(connection.execute(text("SELECT count(*) FROM job")).scalar_one())
            add_jobs(connection, max(1, jobs - there))
            connection.execute(text("INSERT INTO closed DEFAULT VALUES"))
        for process in running.values():
            if process.wait(PATIENCE):
                raise RuntimeError(f"a process of workers has failed: exit status {process.returncode}")
        with engine.connect() as connection:
            return outcome(connection)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
        coordinator.close()
        engine.dispose()


def _do(engine: Engine, statement: TextClause, **arguments: object) -> None:
    with engine.begin() as connection:
        connection.execute(statement, arguments)


def _wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the workers do not get on")
        time.sleep(0.02)


def main() -> None:
    """Start a server and the workers, or be one of their processes."""
    parser = argparse.ArgumentParser(prog="python -m examples.jobs", description=__doc__)
    parser.add_argument("--worker", nargs=3, metavar=("NAME", "URL", "THREADS"), help=argparse.SUPPRESS)
    if (worker := parser.parse_args().worker) is not None:
        name, url, threads = worker
        work_until_closed(url, name, int(threads))
        return
    seed = random.randrange(2**32)
    with start_postgres(own=True) as postgres:
        found = run(postgres.create_database(), processes=5, threads=4, jobs=200, faults=2, seed=seed)
    print(f"{found.jobs} jobs done, {found.effects} effects, {found.not_once} jobs without exactly one")
    print(f"workers turned away: {found.turned_away}")


if __name__ == "__main__":
    main()
