"""docs/recipes/celery.md: its tasks run in real workers, on a real Redis, and its table of what it prevents is true."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from examples.servers import RedisServer
from fencing import Lease, NotAcquired, RedisCoordinator
from storage_guards import SQLAlchemyGuard
from tests.support import wait_until
from tests.support.commands import COMMAND

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(find_spec("celery") is None, reason="celery is not installed with this Python"),
]

ROOT = Path(__file__).resolve().parents[2]
(PAGE,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/recipes/celery.md").read_text("utf-8"), re.DOTALL)
(BEAT,) = re.findall(r"(?m)^\$ (fencing run .*)$", (ROOT / "docs/recipes/celery.md").read_text("utf-8"))

PRICE = "    return len(item)  # in truth a service that may take minutes\n"

HELD = """
    import pathlib, time
    if item == "held":
        pathlib.Path(str(os.getpid())).touch()
    while item == "held" and not pathlib.Path("go").exists():
        time.sleep(0.01)
    return 3
"""
"""In the place of the price: it takes as long as the test wants. Each process that asks for it leaves a file."""

NAIVE = f"""
import os
from celery import Celery
from sqlalchemy import create_engine, text

app = Celery("shop", broker=os.environ["BROKER_URL"])
app.conf.task_acks_late = True
engine = create_engine(os.environ["DATABASE_URL"])
ADD = text("UPDATE orders SET total = total + :price WHERE id = :id")

def price_of(item):
{HELD}

@app.task
def add(order_id, item):
    price = price_of(item)
    with engine.begin() as connection:
        connection.execute(ADD, {{"id": order_id, "price": price}})
"""
"""The page's task without lock and guard."""


def shop_of(page: str, **changes: str) -> str:
    """Return the page's program with these texts changed."""
    for old, new in {PRICE: HELD, "guards=[guard])": "ttl=1, guards=[guard])", "longest=30": "first=0.1"}.items():
        assert old in page
        page = page.replace(old, new)
    return page


class Shop:
    """The folder of a program, its servers, and the processes that run it."""

    def __init__(self, stack: ExitStack, folder: Path, redis: RedisServer, database: str, engine: Engine) -> None:
        self.stack, self.folder, self.redis, self.engine = stack, folder, redis, engine
        self.environment = {
            **os.environ,
            "BROKER_URL": redis.url,
            "REDIS_URL": redis.url,
            "FENCING_REDIS_URL": redis.url,
            "DATABASE_URL": database,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
        }
        self.logs: list[Path] = []

    def write(self, program: str) -> None:
        (self.folder / "shop.py").write_text(program)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"log-{len(self.logs)}"
        self.logs.append(log)
        process = subprocess.Popen(
            command,
            env=self.environment, cwd=self.folder, stdout=self.stack.enter_context(log.open("wb")),
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.stack.callback(self.end, process)
        return process

    @staticmethod
    def end(process: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def worker(self, pool: str, concurrency: int = 1) -> subprocess.Popen[bytes]:
        """Start a worker, and wait until it takes tasks."""
        options = ["-P", pool, "-c", str(concurrency), "-l", "INFO", "--without-mingle", "--without-gossip"]
        options += ["-n", f"worker-{len(self.logs)}@localhost"]
        started = self.start(sys.executable, "-W", "ignore", "-m", "celery", "-A", "shop", "worker", *options)
        self.wait_for(r"ready\.", log=-1)
        return started

    def send(self, *calls: tuple[Any, ...], task: str = "add", count: int = 1) -> None:
        from celery import Celery

        with Celery(broker=self.redis.url) as app:
            for arguments in calls:
                for _ in range(count):
                    app.send_task(f"shop.{task}", args=arguments)

    def text(self, log: int | None = None) -> str:
        logs = self.logs if log is None else [self.logs[log]]
        return "\n".join(each.read_text("utf-8", errors="replace") for each in logs)

    def wait_for(self, pattern: str, count: int = 1, *, log: int | None = None) -> None:
        wait_until(lambda: len(re.findall(pattern, self.text(log))) >= count, interval=0.02)

    def workers_at_the_price(self) -> set[int]:
        """Return the processes that have asked for the price that the test holds."""
        return {int(each.name) for each in self.folder.iterdir() if each.name.isdigit()}

    def totals(self) -> dict[int, int]:
        with self.engine.connect() as connection:
            return {row.id: row.total for row in connection.execute(text("SELECT id, total FROM orders"))}

    def reported(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT count FROM report")).scalar_one())

    def deliver_again(self) -> None:
        """Put the messages that wait for an acknowledgement back, as any worker does after the visibility time-out."""
        from celery import Celery

        with Celery(broker=self.redis.url) as app:
            app.conf.broker_transport_options = {"visibility_timeout": -60}
            with app.connection_for_read() as broker, broker.channel() as channel:
                channel.qos.restore_visible()


@pytest.fixture
def shop(any_redis: RedisServer, postgres_url: str, tmp_path: Path) -> Iterator[Shop]:
    engine = create_engine(postgres_url)
    SQLAlchemyGuard(engine).create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, total int)"))
        connection.execute(text("INSERT INTO orders VALUES (42, 0), (43, 0)"))
        connection.execute(text("CREATE TABLE report (count int)"))
        connection.execute(text("INSERT INTO report VALUES (0)"))
    with ExitStack() as stack:
        made = Shop(stack, tmp_path, any_redis, postgres_url, engine)
        stack.callback(engine.dispose)
        try:
            yield made
        except BaseException as error:
            error.add_note(made.text()[-12000:])
            raise


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_tasks_that_find_the_lock_busy_leave_the_worker_to_others(shop: Shop, pool: str) -> None:
    if pool == "gevent":
        pytest.importorskip("gevent")
    shop.write(shop_of(PAGE))
    shop.worker(pool, 2)
    shop.send((42, "held"))
    wait_until(shop.workers_at_the_price)
    shop.send((42, "tea"), count=6)  # three times the processes of the pool
    shop.wait_for("Retry in", 6)
    shop.send((43, "tea"))
    wait_until(lambda: shop.totals()[43] == 3)
    assert shop.totals()[42] == 0
    (shop.folder / "go").touch()
    shop.wait_for(r"Task shop\.add\S* succeeded", 8)
    assert shop.totals() == {42: 7 * 3, 43: 3}
    assert "raised unexpected" not in shop.text()


@pytest.mark.parametrize("guarded", [False, True], ids=["without", "with lock and guard"])
def test_a_task_that_is_delivered_again_while_its_first_worker_is_frozen(shop: Shop, guarded: bool) -> None:
    shop.write(shop_of(PAGE) if guarded else NAIVE)
    first = shop.worker("solo")
    shop.send((42, "held"))
    wait_until(lambda: shop.workers_at_the_price() == {first.pid})
    os.killpg(first.pid, signal.SIGSTOP)
    second = shop.worker("solo")
    shop.deliver_again()
    wait_until(lambda: second.pid in shop.workers_at_the_price())  # behind the ttl of the lock, if there is one
    (shop.folder / "go").touch()
    shop.wait_for(r"Task shop\.add\S* succeeded", log=1)
    assert shop.totals()[42] == 3
    os.killpg(first.pid, signal.SIGCONT)
    if guarded:
        shop.wait_for(r"Task shop\.add\[\S+\] raised unexpected: StaleFence\(", log=0)
    else:
        shop.wait_for(r"Task shop\.add\S* succeeded", log=0)
    assert shop.totals()[42] == (3 if guarded else 6)


def test_a_copy_of_a_task_that_takes_long_is_put_off_and_then_finds_its_key_done(shop: Shop) -> None:
    shop.write(shop_of(PAGE))
    shop.worker("threads", 2)
    shop.send((42, "held"))
    wait_until(shop.workers_at_the_price)
    shop.deliver_again()
    shop.wait_for("Retry in", 2)
    (shop.folder / "go").touch()
    shop.wait_for(r"Task shop\.add\S* succeeded", 2)
    assert shop.totals()[42] == 3


KILLED = """

@app.task
@coordinator.locked("report", busy=BUSY)
def count(lease: Lease) -> None:
    import pathlib, signal
    if not pathlib.Path("killed").exists():
        pathlib.Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    guard.write(lease, text("UPDATE report SET count = count + 1"))
"""


@pytest.mark.parametrize(
    ("busy", "pool"),
    [
        ('"skip"', "solo"),
        ("skip_unless_redelivered(first=0.1)", "solo"),
        pytest.param("skip_unless_redelivered(first=0.1)", "prefork", marks=pytest.mark.deep),  # it notices after 10 s
    ],
)
def test_a_task_whose_process_was_killed_is_lost_or_done(shop: Shop, busy: str, pool: str) -> None:
    shop.write(shop_of(PAGE).replace("ttl=1", "ttl=300") + KILLED.replace("BUSY", busy))
    first = shop.worker(pool, 2)
    shop.send((), task="count")
    wait_until((shop.folder / "killed").exists)
    if pool == "solo":
        first.wait(60)
        shop.worker(pool)
        shop.deliver_again()
    if busy == '"skip"':
        shop.wait_for(r"Task shop\.count\S* succeeded")
        assert shop.reported() == 0
        return
    shop.wait_for(r"Task shop\.count\S* retry: Retry in", 2)
    with RedisCoordinator(shop.redis.client()) as coordinator:
        coordinator.force_release("report")  # as the end of the ttl does
    shop.wait_for(r"Task shop\.count\S* succeeded")
    assert shop.reported() == 1


def test_a_task_that_was_not_delivered_before_is_left_out(shop: Shop) -> None:
    shop.write(shop_of(PAGE))
    shop.worker("threads", 2)
    with RedisCoordinator(shop.redis.client(), ttl=300) as coordinator, coordinator.hold("report"):
        shop.send((), task="report")
        shop.wait_for(r"Task shop\.report\S* succeeded in \S+ None")
        assert shop.reported() == 0
    shop.send((), task="report")
    shop.wait_for(r"Task shop\.report\S* succeeded in \S+ None", 2)
    assert shop.reported() == 2


LIMITED = """

app.conf.result_backend = os.environ["REDIS_URL"]

@app.task(bind=True, autoretry_for=(ZeroDivisionError,), max_retries=1, default_retry_delay=0)
@coordinator.locked("limited", busy=retry(first=0.05, limit=3))
def limited(self, lease: Lease) -> None:
    1 / 0

@app.task(bind=True)
@coordinator.locked("ends", busy=retry(first=0.05))
def result(self, lease: Lease, before: str) -> str:
    return f"{before} {self.request.retries} {self.request.headers}"
"""


def test_tries_for_the_lock_are_counted_apart_from_those_of_failures(shop: Shop) -> None:
    from celery import Celery

    shop.write(shop_of(PAGE) + LIMITED)
    shop.worker("threads", 1)
    with (
        RedisCoordinator(shop.redis.client(), ttl=300) as coordinator,
        Celery(broker=shop.redis.url, backend=shop.redis.url) as app,
    ):
        with coordinator.hold("limited"), coordinator.hold("ends"):
            given_up = app.send_task("shop.limited")
            with pytest.raises(Exception, match=r"limited.* is held") as caught:
                given_up.get(timeout=60)
            assert caught.type is Exception  # its fields are lost
            assert len(re.findall(r"shop\.limited\S* retry: Retry in", shop.text())) == 3
            first = app.signature("shop.result", ["a"], headers={"trace": "7"})
            kept = (first | app.signature("shop.result")).apply_async()
            shop.wait_for(r"shop\.result\S* retry: Retry in", 3)
        failed = app.send_task("shop.limited")
        with pytest.raises(ZeroDivisionError):
            failed.get(timeout=60)
        assert len(re.findall(r"shop\.limited\S* retry: Retry in", shop.text())) == 3 + 1  # by autoretry_for
        said = kept.get(timeout=60)
        assert re.fullmatch(r"a 0 \{.*'trace': '7', 'fencing_tries': \d+.*\} 0 .*", said), said


def test_a_call_without_a_worker_raises(any_redis: RedisServer) -> None:
    from celery import Celery

    from fencing.contrib.celery import retry, skip_unless_redelivered

    app = Celery(broker=any_redis.url)
    with RedisCoordinator(any_redis.client()) as coordinator:

        @app.task  # type: ignore[untyped-decorator, unused-ignore]
        @coordinator.locked("r", busy=retry())
        def tried(lease: Lease) -> int:
            return lease.fence.number

        @app.task  # type: ignore[untyped-decorator, unused-ignore]
        @coordinator.locked("r", busy=skip_unless_redelivered())
        def skipped(lease: Lease) -> int:
            return lease.fence.number

        assert tried() > 0
        with coordinator.hold("r"):
            for call in (tried, lambda: tried.apply().get(), coordinator.locked("r", busy=retry())(lambda: None)):
                with pytest.raises(NotAcquired):
                    call()
            app.conf.task_always_eager = True
            assert tried.delay().failed()
            assert skipped() is None
            assert skipped.delay().get() is None
    app.close()


def test_wrong_arguments_are_refused() -> None:
    from fencing.contrib.celery import retry, skip_unless_redelivered

    for make in (retry, skip_unless_redelivered):
        for wrong in ({"first": 0}, {"first": 2, "longest": 1}, {"limit": -1}, {"longest": float("inf")}):
            with pytest.raises(ValueError):
                make(**wrong)
        for kinds in ({"first": "1"}, {"longest": None}, {"limit": 1.0}, {"limit": True}):
            with pytest.raises(TypeError):
                make(**kinds)


def test_a_celery_that_is_not_installed_is_named() -> None:
    program = "import sys; sys.modules['celery'] = None\n"
    program += "try: import fencing.contrib.celery\nexcept ImportError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (
        done.stdout
        == "fencing.contrib.celery needs celery, which is not installed: install fencing with the extra [celery]\n"
    )


SCHEDULE = """
from celery import Celery
import os

app = Celery("shop", broker=os.environ["BROKER_URL"])
app.conf.beat_schedule = {"tick": {"task": "shop.tick", "schedule": 0.1}}
"""


@pytest.mark.deep
def test_one_beat_among_three(shop: Shop) -> None:
    """The messages of one beat come before those of the next: two never send at the same time."""
    shop.write(SCHEDULE)
    client = shop.redis.client()
    words = BEAT.replace('"$HOSTNAME"', "LABEL").replace("run beat", "run beat --ttl 2").split()[1:]
    command = words.index("--") + 1
    replicas: list[subprocess.Popen[bytes]] = []
    for number in range(3):
        beat = [sys.executable, "-W", "ignore", "-m", *words[command:], "-s", f"schedule-{number}", "--pidfile="]
        options = [word.replace("LABEL", str(number)) for word in words[:command]]
        replicas.append(shop.start(*COMMAND, *options, *beat))

    def senders() -> list[str]:
        """Return who has sent, in the order of the messages."""
        found = [json.loads(each)["headers"]["origin"] for each in reversed(client.lrange("celery", 0, -1))]
        return [origin for place, origin in enumerate(found) if not place or found[place - 1] != origin]

    with RedisCoordinator(client) as coordinator:
        election = coordinator.election("beat")

        def leader(*former: int) -> int:
            wait_until(lambda: (found := election.leader()) is not None and int(found.value or -1) not in former)
            found = election.leader()
            assert found is not None
            return int(found.value or -1)

        wait_until(lambda: client.llen("celery") >= 10)
        assert len(senders()) == 1
        first = leader()
        replicas[first].terminate()  # as a rolling update does
        wait_until(lambda: len(senders()) == 2)
        second = leader(first)
        replicas[second].kill()
        wait_until(lambda: len(senders()) == 3)
        third = leader(first, second)
        sent = client.llen("celery")
        wait_until(lambda: client.llen("celery") >= sent + 10)
        assert len(senders()) == len({*senders()}) == len({first, second, third}) == 3
