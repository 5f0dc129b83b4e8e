"""docs/recipes/cron.md: its commands, started three times at once as three machines do it."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from examples.servers import RedisServer
from fencing import RedisCoordinator
from storage_guards import SQLAlchemyGuard
from tests.support import wait_until
from tests.support.commands import COMMAND
from tests.support.programs import ROOT, Programs, blocks

pytestmark = pytest.mark.thorough

(CRONTAB,) = blocks("cron", "crontab")
AIRFLOW, PREFECT = blocks("cron", "py")
(CLEAN,) = re.findall(r"`(fencing run clean .*?)`", (ROOT / "docs/recipes/cron.md").read_text("utf-8"))

MAKE_REPORT = """#!/bin/sh
echo made >> made
"""


def cron_command() -> str:
    """Return what cron gives to the shell: behind the five times, with % unescaped."""
    return CRONTAB.strip().split(" ", 5)[5].replace(r"\%", "%")


def airflow_command() -> str:
    (command,) = re.findall(r'bash_command="(.*)"', AIRFLOW)
    return str(command).replace("{{ ds }}", "2026-11-28")


def prefect_command() -> str:
    [words] = re.findall(r"subprocess\.run\((\[.*\])", PREFECT)
    return shlex.join(ast.literal_eval(words.replace(" day,", ' "2026-11-28",')))


@pytest.fixture
def machines(any_redis: RedisServer, postgres_url: str, tmp_path: Path) -> Iterator[Programs]:
    engine = create_engine(postgres_url)
    SQLAlchemyGuard(engine).create_tables()
    engine.dispose()
    with ExitStack() as stack:
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        urls = {"FENCING_REDIS_URL": any_redis.url, "FENCING_DATABASE_URL": postgres_url}
        made = Programs(stack, tmp_path, PATH=path, **urls)
        made.write("secrets/redis", any_redis.url)
        made.write("secrets/database", postgres_url)
        for name, program in {
            "make-report": MAKE_REPORT,
            "clean-up": MAKE_REPORT,
            "fencing": f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n',
        }.items():
            made.write(name, program)
            (tmp_path / name).chmod(0o755)
        try:
            yield made
        except BaseException as error:
            error.add_note(made.said()[-12000:])
            raise


def times_made(machines: Programs) -> int:
    return (machines.folder / "made").read_text().count("made")


@pytest.mark.parametrize(
    ("command", "times"),
    [(cron_command(), 1), (airflow_command(), 1), (prefect_command(), 1), ("make-report", 3)],
    ids=["cron", "airflow", "prefect", "without"],
)
def test_three_machines(machines: Programs, command: str, times: int) -> None:
    command = command.replace("/run/secrets", str(machines.folder / "secrets"))
    started = [machines.start("/bin/sh", "-c", command) for _ in range(3)]
    assert [each.wait(120) for each in started] == [0, 0, 0]
    assert times_made(machines) == times


def test_a_clean_up_runs_once_for_each_tick(machines: Programs, any_redis: RedisServer) -> None:
    command = CLEAN.replace("/run/secrets", str(machines.folder / "secrets"))
    for _ in range(2):  # the second machine is late, and the first has ended
        machines.run("/bin/sh", "-c", command)
        wait_until((machines.folder / "made").exists)
    assert times_made(machines) == 1
    with RedisCoordinator(any_redis.client()) as coordinator:
        coordinator.force_release("clean")
    machines.run("/bin/sh", "-c", command)
    assert times_made(machines) == 2
