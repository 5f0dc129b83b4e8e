"""docs/guide/election.md and docs/operations/ending.md: their programs run as processes, and hand over at once."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from examples.servers import RedisServer
from examples.servers.local import free_port
from fencing import Election, RedisCoordinator, on_sigterm
from tests.support import wait_until

ROOT = Path(__file__).resolve().parents[2]
PROCESS, ORDERLY, ASYNC_PROCESS, LIFESPAN, OBSERVER = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "guide" / "election.md").read_text("utf-8"), re.DOTALL
)
(ENDING,) = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "operations" / "ending.md").read_text("utf-8"), re.DOTALL
)

ASGI = f"""
{LIFESPAN}

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def leader(request):
    found = await request.state.election.leader()
    return PlainTextResponse("" if found is None else found.value)

app = Starlette(lifespan=lifespan, routes=[Route("/leader", leader)])
"""

WSGI = """
import os
import threading

import redis

from fencing import RedisCoordinator, on_sigterm

coordinator = RedisCoordinator(redis.Redis.from_url(os.environ["REDIS_URL"]), ttl=TTL)
on_sigterm(coordinator)
election = coordinator.election("scheduler", value=f"host:{os.getpid()}")

def lead(lease):
    while not (election.stopped or lease.lost.wait(0.05)):
        pass

threading.Thread(target=election.run, args=(lead,), daemon=True).start()

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"served"]
"""

LONG = 300.0
"""A ttl that outlasts the test: whoever leads after another one has been handed the lock."""


class Fleet:
    """Processes of one command, and who of them leads."""

    def __init__(self, stack: ExitStack, url: str, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self._environment = {**os.environ, "REDIS_URL": url, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
        self.coordinator = stack.enter_context(RedisCoordinator(redis.Redis.from_url(url), ttl=LONG))
        self.election: Election = self.coordinator.election("scheduler")

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._folder / f"log-{len(list(self._folder.iterdir()))}").open("wb"))
        process = subprocess.Popen(
            [sys.executable, *command],
            env=self._environment,
            cwd=self._folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._stack.callback(self._end, process)
        return process

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def leader(self, *former: int) -> int:
        """Return the process id of the leader, as soon as there is one that is none of these."""

        def pid() -> int:
            leader = self.election.leader()
            return 0 if leader is None or leader.value is None else int(leader.value.rpartition(":")[2])

        wait_until(lambda: pid() not in (0, *former))
        return pid()

    def logs(self) -> str:
        return "\n".join(each.read_text(errors="replace")[-4000:] for each in sorted(self._folder.glob("log-*")))


@pytest.fixture
def fleet(any_redis: RedisServer, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        made = Fleet(stack, any_redis.url, tmp_path)
        with _with_logs(made):
            yield made


@contextmanager
def _with_logs(fleet: Fleet) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(fleet.logs())
        raise


def with_ttl(code: str) -> str:
    """Return the code of the page with a ttl that outlasts the test."""
    changed = re.sub(r"guards=\[guard\]\)", f"guards=[guard], ttl={LONG})", code)
    assert changed != code
    return changed


@pytest.mark.thorough
@pytest.mark.parametrize("program", [PROCESS, ASYNC_PROCESS], ids=["threads", "asyncio"])
def test_three_replicas_under_a_rolling_restart(
    fleet: Fleet, tmp_path: Path, any_redis: RedisServer, program: str
) -> None:
    (tmp_path / "scheduler.py").write_text(with_ttl(program))
    replicas = {each.pid: each for each in (fleet.start("scheduler.py") for _ in range(3))}
    leaders = [fleet.leader()]
    for _ in range(3):
        replica = replicas.pop(leaders[-1])
        started = fleet.start("scheduler.py")
        replicas[started.pid] = started
        replica.send_signal(signal.SIGTERM)
        assert replica.wait(60) == -signal.SIGTERM
        leaders.append(fleet.leader(leaders[-1]))
    assert len(set(leaders)) == 4
    wait_until(lambda: int(any_redis.client().get("{scheduler}:ticks") or 0) > 0)


@pytest.mark.thorough
def test_a_replica_that_ends_behind_its_tick(fleet: Fleet, tmp_path: Path) -> None:
    """The election alone is stopped: the function returns with its lease, and what stands behind `run` is done."""
    orderly = (
        with_ttl(PROCESS)
        .replace("on_sigterm(coordinator)", ORDERLY + "#")
        .replace("    while not", "    print('leads', flush=True)\n    while not")
    )
    (tmp_path / "scheduler.py").write_text(orderly + "\nprint('ended in order', flush=True)\n")
    replica = fleet.start("scheduler.py")
    assert fleet.leader() == replica.pid
    replica.send_signal(signal.SIGTERM)
    assert replica.wait(60) == 0
    assert "ended in order" in fleet.logs()
    assert fleet.election.leader() is None


@pytest.mark.thorough
def test_the_first_process_of_a_container(any_redis: RedisServer) -> None:
    """The kernel ignores a signal for which it has no handler, and its tasks would go on for ever."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("no process can be the first one here")
    holder = [sys.executable, "-m", "tests.support.busy_holder", any_redis.url]
    with subprocess.Popen(
        [unshare, "--pid", "--fork", "--kill-child", *holder], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "works\n"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.thorough
def test_four_workers_of_uvicorn(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "asgi.py").write_text(with_ttl(ASGI))
    port = free_port()
    server = fleet.start("-m", "uvicorn", "asgi:app", "--workers", "4", "--port", str(port), "--log-level", "warning")
    first = fleet.leader()
    os.kill(first, signal.SIGTERM)
    second = fleet.leader(first)
    os.kill(second, signal.SIGTERM)
    third = fleet.leader(first, second)
    assert third not in (server.pid, first, second)
    server.send_signal(signal.SIGTERM)
    server.wait(60)
    wait_until(lambda: fleet.election.leader() is None)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["sync", "gthread"])
def test_workers_of_gunicorn(fleet: Fleet, tmp_path: Path, kind: str) -> None:
    (tmp_path / "wsgi.py").write_text(WSGI.replace("TTL", str(LONG)))
    options = ("-b", f"127.0.0.1:{free_port()}", "-w", "3", "-k", kind)
    server = fleet.start("-m", "gunicorn", *options, "wsgi:app")
    first = fleet.leader()
    os.kill(first, signal.SIGTERM)
    second = fleet.leader(first)
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
    wait_until(lambda: fleet.election.leader() is None)
    assert second != first


def test_who_leads(any_redis: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    with RedisCoordinator(any_redis.client()) as coordinator:
        election = coordinator.election("scheduler", value="10.0.0.7:8000")
        with election.lead():
            number = election.leader().number  # type: ignore[union-attr]
            observing = OBSERVER.replace("print(", "election.stop(); print(")
            exec(observing, {"election": election})
    assert capsys.readouterr().out == f"10.0.0.7:8000 leads, term {number}\n"


def test_the_handler_is_set_and_put_back(any_redis: RedisServer) -> None:
    before = signal.getsignal(signal.SIGTERM)
    namespace: dict[str, Any] = {"client": any_redis.client()}
    try:
        exec(ENDING, namespace)
        assert signal.getsignal(signal.SIGTERM) is not before
        remove = on_sigterm(namespace["coordinator"])
        remove()
    finally:
        signal.signal(signal.SIGTERM, before)
        namespace["coordinator"].close()
