"""docs/recipes/apscheduler.md: three schedulers run a job once, and one of three is elected."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from examples.servers import RedisServer
from storage_guards import SQLAlchemyGuard
from tests.support import wait_until
from tests.support.commands import COMMAND
from tests.support.programs import Programs, blocks

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(find_spec("apscheduler") is None, reason="apscheduler is not installed with this Python"),
]

(PAGE,) = blocks("apscheduler")
(CONSOLE,) = blocks("apscheduler", "console")
NOW = PAGE.replace('"cron", hour=3, misfire_grace_time=3600', '"interval", seconds=0.2')
"""Each replica ticks several times within the test: the same day."""

NAIVE = """
import datetime, logging, os
from apscheduler.schedulers.blocking import BlockingScheduler
from sqlalchemy import create_engine, text

engine = create_engine(os.environ["DATABASE_URL"])

def report():
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO reports SELECT :day, sum(total) FROM orders"), {"day": day})

scheduler = BlockingScheduler(timezone="UTC")
scheduler.add_job(report)
logging.basicConfig(level="INFO")
scheduler.start()
"""
DONE = r'Job "report .*executed successfully'


@pytest.fixture
def replicas(any_redis: RedisServer, postgres_url: str, tmp_path: Path) -> Iterator[tuple[Programs, Engine]]:
    engine = create_engine(postgres_url)
    SQLAlchemyGuard(engine).create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders AS SELECT 3 AS total"))
        connection.execute(text("CREATE TABLE reports (day text, total int)"))
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        urls = {"FENCING_URL": any_redis.url, "FENCING_REDIS_URL": any_redis.url, "DATABASE_URL": postgres_url}
        programs = Programs(stack, tmp_path, **urls)
        try:
            yield programs, engine
        except BaseException as error:
            error.add_note(programs.said()[-12000:])
            raise


def rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM reports")).scalar_one())


@pytest.mark.parametrize(("program", "reports"), [(NOW, 1), (NAIVE, 3)], ids=["page", "without"])
def test_three_schedulers(replicas: tuple[Programs, Engine], program: str, reports: int) -> None:
    programs, engine = replicas
    programs.write("jobs.py", program)
    for _ in range(3):
        programs.start(sys.executable, "jobs.py")
    for log in range(3):
        programs.wait_for(DONE, log=log)
    assert rows(engine) == reports
    assert "raised an exception" not in programs.said()


def test_one_scheduler_is_elected_among_three(replicas: tuple[Programs, Engine]) -> None:
    programs, _ = replicas
    programs.write("jobs.py", NOW)
    command = re.sub(
        r"^\$ fencing|\"\$HOSTNAME\"", lambda found: "" if "fencing" in found[0] else "me", CONSOLE
    ).split()
    command[command.index("python")] = sys.executable
    started = [programs.start(*COMMAND, *command) for _ in range(3)]
    programs.wait_for(DONE)
    assert programs.said().count("Scheduler started") == 1
    [leader] = [number for number in range(3) if "Scheduler started" in programs.said(number)]
    started[leader].terminate()
    started[leader].wait(60)
    wait_until(lambda: sum("Scheduler started" in programs.said(number) for number in range(3)) == 2, interval=0.02)
