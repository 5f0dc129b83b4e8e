"""docs/recipes/queues.md: its tasks run in real workers of RQ, Dramatiq, huey and taskiq, on a real Redis."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from examples.servers import RedisServer
from fencing import RedisCoordinator
from storage_guards import SQLAlchemyGuard
from tests.support import wait_until
from tests.support.programs import Programs, blocks

pytestmark = pytest.mark.thorough

PAGE = {block.split("\n")[0].removeprefix("# "): block for block in blocks("queues")}
PRICE = "return len(item)  # in truth a service that may take minutes\n"
HELD = """
    import pathlib, time, uuid
    pathlib.Path(f"price.{uuid.uuid4()}").touch()
    while item == "held" and not pathlib.Path("go").exists():
        WAIT
    return 3
"""
"""In the place of the price: it takes as long as the test wants. Each call leaves a file."""


@dataclass(frozen=True)
class Queue:
    """How a queue runs the page's tasks, and how two of them are sent, or one twice."""

    name: str
    module: str
    changes: dict[str, str]
    worker: tuple[str, ...]
    workers: int
    two: str
    same: str
    put_off: str


BIN = Path(sys.executable).parent

RQ = Queue(
    "rq", "rq_jobs.py", {"interval=5": "interval=1"},
    (str(BIN / "rq"), "worker", "--with-scheduler", "--verbose", "--url", "URL"), 2,
    """
import os, redis, rq
queue = rq.Queue(connection=redis.Redis.from_url(os.environ["REDIS_URL"]))
for _ in range(2):
    queue.enqueue("rq_jobs.add", 42, "held")
""",
    """
import os, redis, rq
queue = rq.Queue(connection=redis.Redis.from_url(os.environ["REDIS_URL"]))
job = queue.enqueue("rq_jobs.add", 42, "tea", job_id="x")
queue.enqueue_job(job)
""",
    "returns a Retry",
)  # fmt: skip
DRAMATIQ = Queue(
    "dramatiq", "dramatiq_tasks.py", {"delay=5000": "delay=100"},
    (str(BIN / "dramatiq"), "dramatiq_tasks", "--processes", "1", "--threads", "2"), 1,
    """
from dramatiq_tasks import add
for _ in range(2):
    add.send(42, "held")
""",
    """
from dramatiq_tasks import add, broker
message = add.message(42, "tea")
for _ in range(2):
    broker.enqueue(message)
""",
    "Retrying message",
)  # fmt: skip
HUEY = Queue(
    "huey", "huey_tasks.py", {"delay=5": "delay=0.1"},
    (str(BIN / "huey_consumer"), "huey_tasks.huey", "-w", "2"), 1,
    """
from huey_tasks import add
for _ in range(2):
    add(42, "held")
""",
    """
from huey_tasks import add, huey
task = add.s(42, "tea")
for _ in range(2):
    huey.enqueue(task)
""",
    "raised RetryTask",
)  # fmt: skip
TASKIQ = Queue(
    "taskiq", "taskiq_tasks.py", {},
    (str(BIN / "taskiq"), "worker", "taskiq_tasks:broker", "--workers", "1"), 1,
    """
import asyncio
from taskiq_tasks import add, broker
async def main():
    await broker.startup()
    for _ in range(2):
        await add.kiq(42, "held")
    await broker.shutdown()
asyncio.run(main())
""",
    """
import asyncio
from taskiq_tasks import add, broker
async def main():
    await broker.startup()
    for _ in range(2):
        await add.kicker().with_task_id("x").kiq(42, "tea")
    await broker.shutdown()
asyncio.run(main())
""",
    "",
)  # fmt: skip

LOCK = "@coordinator.locked("
NO_LOCK = """
import functools
def unlocked(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(None, *arguments)
    return call
@unlocked
#"""
CHECKED = "guard.begin(lease, once=key)"


class Shop(Programs):
    """The page's programs in a folder, their servers and their data."""

    def __init__(self, stack: ExitStack, folder: Path, redis: RedisServer, database: str) -> None:
        super().__init__(stack, folder, FENCING_URL=redis.url, REDIS_URL=redis.url, DATABASE_URL=database)
        self.engine = create_engine(database)
        stack.callback(self.engine.dispose)
        SQLAlchemyGuard(self.engine).create_tables()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders AS SELECT 42 AS id, 0 AS total"))

    def serve(self, queue: Queue, *, locked: bool = True) -> None:
        """Write the page's programs, and start the workers."""
        module = PAGE[queue.module]
        for old, new in queue.changes.items():
            assert old in module
            module = module.replace(old, new)
        shop = PAGE["shop.py"].replace(PRICE, HELD.lstrip().replace("WAIT", "time.sleep(0.01)"))
        module = module.replace(PRICE, HELD.lstrip().replace("WAIT", "import asyncio; await asyncio.sleep(0.01)"))
        if not locked:
            shop, module = shop.replace(CHECKED, "engine.begin()"), module.replace(LOCK, NO_LOCK)
        self.write("shop.py", shop)
        self.write(queue.module, module)
        for _ in range(queue.workers):
            self.start(*[self.environment["REDIS_URL"] if each == "URL" else each for each in queue.worker])

    def send(self, program: str) -> None:
        self.run(sys.executable, "-c", program)

    @property
    def total(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT total FROM orders")).scalar_one())


@pytest.fixture
def shop(any_redis: RedisServer, postgres_url: str, tmp_path: Path) -> Iterator[Shop]:
    with ExitStack() as stack:
        made = Shop(stack, tmp_path, any_redis, postgres_url)
        try:
            yield made
        except BaseException as error:
            error.add_note(made.said()[-12000:])
            raise


@pytest.mark.parametrize("queue", [RQ, DRAMATIQ, HUEY, TASKIQ], ids=lambda queue: queue.name)
def test_tasks_for_one_order(shop: Shop, any_redis: RedisServer, queue: Queue) -> None:
    if find_spec(queue.name) is None:
        pytest.skip(f"{queue.name} is not installed with this Python")
    shop.serve(queue)
    with RedisCoordinator(any_redis.client()) as coordinator:
        shop.send(queue.two)
        if queue.put_off:
            shop.wait_for(queue.put_off)
        else:
            wait_until(lambda: (holder := coordinator.holder("orders:42")) and holder.waiting, interval=0.02)
        wait_until(lambda: shop.made("price.*"), interval=0.02)
        assert shop.made("price.*") == 1
        shop.touch("go")
        wait_until(lambda: shop.total == 6, interval=0.02)
        shop.send(queue.same)
        wait_until(lambda: shop.made("price.*") == 4, interval=0.02)  # each under the lock
        wait_until(lambda: coordinator.holder("orders:42") is None, interval=0.02)
    assert shop.total == 6 + 3


def test_tasks_for_one_order_without_lock_and_guard(shop: Shop) -> None:
    pytest.importorskip("rq")
    shop.serve(RQ, locked=False)
    shop.send(RQ.two)
    wait_until(lambda: shop.made("price.*") == 2, interval=0.02)
    shop.touch("go")
    shop.wait_for(r"Successfully completed|Job OK", 2)
    assert shop.total == 3
