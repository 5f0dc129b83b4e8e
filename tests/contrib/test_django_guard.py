"""The guard on Django's connections: which transactions it joins, and what it says where it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.db.utils import OperationalError

from examples.servers import PostgresServer
from fencing import Fence, GuardNotEnforceable, GuardUnavailable, Lease, MemoryCoordinator, OutcomeUnknown, StaleFence
from fencing.contrib.django import DjangoGuard
from fencing.contrib.django.marks import marks_of
from fencing.kernel.errors import AlreadyDone, UnclaimedFence
from tests.support.django_project import added
from tests.support.fixtures import ProxyFactory
from tests.support.sql_ways import is_commit

WAL = {"init_command": "PRAGMA journal_mode = WAL"}
ADD = "UPDATE orders SET total = total + 1"


class Shop:
    """A database of Django's with one row, and its guard."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.guard = DjangoGuard(alias, timeout=2.0)
        self.coordinator = MemoryCoordinator(guards=[self.guard])

        self.leases: list[Lease] = []  # a lease that is dropped warns

    def take(self, name: str = "orders:42") -> Lease:
        self.leases.append(self.coordinator.acquire(name))
        return self.leases[-1]

    def execute(self, text: str, alias: str = "") -> Any:
        with connections[alias or self.alias].cursor() as cursor:
            cursor.execute(text)
            return cursor.fetchone()[0] if cursor.description else None

    @property
    def total(self) -> Any:
        return self.execute("SELECT total FROM orders")

    def atomic(self, **options: Any) -> Any:
        return transaction.atomic(using=self.alias, **options)


SQLITE = "sqlite"
OTHERS = [pytest.param(name, marks=pytest.mark.thorough) for name in ("postgres", "mariadb")]


@pytest.fixture(params=[SQLITE, *OTHERS])
def shop(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Shop]:
    options: Any = {}
    if request.param == SQLITE:
        url, options = f"sqlite:///{tmp_path}/data.db", {"OPTIONS": WAL}
    else:
        url = request.getfixturevalue(f"{request.param}_url")
    with added("shop", url, **options) as alias, added("beside", url, **options):
        made = Shop(alias)
        made.guard.create_tables()
        made.execute("CREATE TABLE orders (id int, total int)")
        made.execute("INSERT INTO orders VALUES (42, 0)")
        yield made
        made.coordinator.close()


@pytest.fixture(params=["postgres", OTHERS[1]])
def server_shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    with added("shop", request.getfixturevalue(f"{request.param}_url")) as alias:
        made = Shop(alias)
        made.guard.create_tables()
        made.execute("CREATE TABLE orders (id int, total int)")
        made.execute("INSERT INTO orders VALUES (42, 0)")
        yield made
        made.coordinator.close()


def test_a_late_holder_is_refused(shop: Shop) -> None:
    late = shop.take()
    shop.coordinator.force_release("orders:42")
    with shop.coordinator.hold("orders:42") as lease, shop.guard.begin(lease):
        shop.execute(ADD)
    with pytest.raises(StaleFence), shop.guard.begin(late):
        shop.execute("UPDATE orders SET total = 100")
    with pytest.raises(StaleFence), shop.atomic():
        shop.guard.advance(late)
    assert shop.total == 1


def test_advance_needs_a_transaction(shop: Shop) -> None:
    lease = shop.take()
    with pytest.raises(GuardNotEnforceable, match=r"outside transaction.atomic\(\)"):
        shop.guard.advance(lease)


def test_a_savepoint_is_refused(shop: Shop) -> None:
    lease = shop.take()
    with shop.atomic(), pytest.raises(ValueError, match="nested atomic"), shop.atomic():
        shop.guard.advance(lease)
    with shop.atomic(), shop.atomic(savepoint=False):  # which is none
        shop.guard.advance(lease)
    with (
        pytest.raises(ValueError, match=r"begin\(\) opens a transaction of its own"),
        shop.atomic(),
        shop.guard.begin(lease),
    ):
        pass


def test_a_transaction_that_has_read_is_refused(server_shop: Shop) -> None:
    lease = server_shop.take()
    with server_shop.atomic():
        assert server_shop.total == 0
        with pytest.raises(ValueError, match="has sent statements before the guard's"):
            server_shop.guard.advance(lease)
        with pytest.raises(ValueError, match="non_atomic_requests"):
            server_shop.coordinator.acquire("orders:43")
    assert server_shop.coordinator.holder("orders:43") is None
    with server_shop.atomic():  # the note of a refusal is not there any more
        server_shop.guard.advance(lease)


@pytest.mark.parametrize("shop", [SQLITE], indirect=True)
def test_an_old_snapshot_of_sqlite_is_refused(shop: Shop) -> None:
    lease = shop.take()
    with shop.atomic():
        assert shop.total == 0
        shop.guard.advance(lease)  # nobody has written since
        shop.execute(ADD)
    with shop.atomic():
        assert shop.total == 1
        shop.execute(ADD, "beside")
        with pytest.raises(GuardUnavailable, match="older than the mark"):
            shop.guard.advance(lease)
    assert shop.total == 2


def test_a_lock_inside_a_transaction(shop: Shop) -> None:
    """As under ATOMIC_REQUESTS: the claim is the transaction's first statement, and the check follows."""
    with shop.atomic(), shop.coordinator.hold("orders:42") as lease:
        shop.guard.advance(lease)
        assert shop.total == 0
        shop.execute(ADD)
        shop.guard.advance(lease)  # it was claimed before all reads
    assert shop.total == 1
    mark = shop.guard.mark("orders:42")
    assert mark is not None
    assert (mark.number, mark.seq) == (lease.fence.number, 2)


def test_another_lock_behind_a_read_is_refused(server_shop: Shop) -> None:
    with server_shop.atomic(), server_shop.coordinator.hold("orders:42") as lease:
        server_shop.guard.advance(lease)
        other = Fence("orders:43", 5, "t" * 22)
        server_shop.guard.claim(other)  # nothing was read yet
        assert server_shop.total == 0
        server_shop.guard.advance(other)
        with pytest.raises(ValueError, match="older than the claim"):
            server_shop.guard.claim(Fence("orders:44", 5, "t" * 22))


def test_a_claim_inside_a_transaction_may_be_repeated_after_a_refusal(shop: Shop) -> None:
    """As a lock does that mints anew above the mark."""
    shop.guard.claim(Fence("orders:42", 9, "n" * 22))
    with shop.atomic():
        with pytest.raises(StaleFence):
            shop.guard.claim(Fence("orders:42", 5, "t" * 22))
        shop.guard.claim(Fence("orders:42", 10, "t" * 22))
        shop.guard.advance(Fence("orders:42", 10, "t" * 22))


def test_a_statement_of_the_block_ends_the_note(server_shop: Shop) -> None:
    wrappers = connections["shop"].execute_wrappers
    with server_shop.atomic():
        server_shop.guard.claim(Fence("orders:42", 5, "t" * 22))
        assert wrappers
        assert server_shop.total == 0
        assert not wrappers
    with server_shop.atomic():
        assert server_shop.total == 0
        with pytest.raises(ValueError, match="has sent statements"):
            server_shop.guard.advance(Fence("orders:42", 5, "t" * 22))


@pytest.mark.parametrize("text", ["COMMIT", "ROLLBACK"])
def test_a_block_that_ends_its_transaction_is_refused(shop: Shop, text: str) -> None:
    lease = shop.take()
    with pytest.raises(GuardNotEnforceable, match="not sound at the block's end"), shop.guard.begin(lease):
        shop.execute(text)
    with shop.guard.begin(lease):
        shop.execute(ADD)


@pytest.mark.parametrize("server_shop", ["mariadb"], indirect=True)
@pytest.mark.thorough
def test_an_implicit_commit_of_mariadb_is_noticed(server_shop: Shop) -> None:
    lease = server_shop.take()
    with pytest.raises(GuardNotEnforceable, match="commits implicitly"), server_shop.guard.begin(lease):
        server_shop.execute("CREATE TABLE implicit (id int)")


def test_a_block_that_asks_for_a_rollback_writes_nothing(shop: Shop) -> None:
    lease = shop.take()
    with shop.guard.begin(lease):
        shop.execute(ADD)
        transaction.set_rollback(True, using="shop")
    mark = shop.guard.mark("orders:42")
    assert mark is not None
    assert (shop.total, mark.seq) == (0, 0)
    with shop.guard.begin(lease):
        shop.execute(ADD)
    assert shop.total == 1


def test_once(shop: Shop) -> None:
    lease = shop.take("report")
    with shop.guard.begin(lease, once="2026-11-28"):
        shop.execute(ADD)
    with pytest.raises(AlreadyDone), shop.guard.begin(lease, once="2026-11-28"):
        shop.execute(ADD)
    with pytest.raises(AlreadyDone), shop.atomic():
        shop.guard.advance(lease, once="2026-11-28")
    assert shop.total == 1


def test_a_restore_under_a_living_holder_is_noticed(shop: Shop) -> None:
    lease = shop.take()
    for _ in range(2):
        with shop.guard.begin(lease):
            shop.execute(ADD)
    shop.execute("UPDATE fencing_marks SET seq = 1")
    with pytest.raises(UnclaimedFence), shop.guard.begin(lease):
        shop.execute(ADD)
    assert shop.total == 2


def test_a_mark_that_stays_locked_ends_the_wait(shop: Shop) -> None:
    beside = DjangoGuard("beside", timeout=2.0)
    with (
        beside.begin(Fence("orders:42", 5, "t" * 22), claim=True),
        pytest.raises(GuardUnavailable, match="stayed locked"),
    ):
        shop.guard.claim(Fence("orders:42", 6, "t" * 22), timeout=0.05)
    shop.guard.claim(Fence("orders:42", 6, "t" * 22))


def test_two_databases_have_their_own_marks(shop: Shop, tmp_path: Any) -> None:
    with added("second", f"sqlite:///{tmp_path}/second.db"):
        second = DjangoGuard("second")
        second.create_tables()
        shop.guard.claim(Fence("orders:42", 5, "t" * 22))
        assert second.mark("orders:42") is None
        with (
            shop.guard.begin(Fence("orders:42", 5, "t" * 22)),
            second.begin(Fence("orders:42", 1, "t" * 22), claim=True),
        ):
            shop.execute(ADD)


@pytest.mark.parametrize("shop", [SQLITE], indirect=True)
def test_a_database_without_tables_is_refused_in_words(shop: Shop, tmp_path: Any) -> None:
    with (
        added("second", f"sqlite:///{tmp_path}/second.db"),
        pytest.raises(GuardNotEnforceable, match="fencing_marks is missing"),
    ):
        DjangoGuard("second").claim(Fence("orders:42", 5, "t" * 22))


def test_oracle_is_refused() -> None:
    oracle = SimpleNamespace(vendor="oracle", alias="old", display_name="Oracle")
    with pytest.raises(GuardNotEnforceable, match="'old' is Oracle, which no guard supports"):
        marks_of(oracle, None)


@pytest.mark.parametrize("shop", [SQLITE], indirect=True)
def test_a_connection_without_autocommit_is_refused(shop: Shop) -> None:
    connections["shop"].set_autocommit(False)
    try:
        with pytest.raises(GuardNotEnforceable, match="autocommit off"):
            shop.guard.claim(Fence("orders:42", 5, "t" * 22))
    finally:
        connections["shop"].set_autocommit(True)


@pytest.mark.parametrize("shop", [SQLITE], indirect=True)
def test_an_event_loop_is_refused_by_django(shop: Shop) -> None:
    async def view() -> None:
        with shop.guard.begin(Fence("orders:42", 5, "t" * 22), claim=True):
            raise AssertionError("the block ran")

    with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
        asyncio.run(view())


@pytest.mark.thorough
def test_a_lost_reply_to_the_commit_is_unknown(
    postgres_url: str, postgres_server: PostgresServer, proxy: ProxyFactory
) -> None:
    between = proxy(postgres_server)
    with added("direct", postgres_url), added("shop", between.url(postgres_url)):
        shop, direct = Shop("shop"), DjangoGuard("direct")
        direct.create_tables()
        shop.execute("CREATE TABLE orders (id int, total int)")
        shop.execute("INSERT INTO orders VALUES (42, 0)")
        lease = shop.take()
        loss = between.drop_reply_when(is_commit)
        with pytest.raises(OutcomeUnknown) as unknown, shop.guard.begin(lease):
            shop.execute(ADD)
        assert loss.fired == 1
        assert direct.landed(unknown.value) is True
        between.drop_request_when(is_commit)
        with pytest.raises(OutcomeUnknown) as unknown, shop.guard.begin(lease):
            shop.execute(ADD)
        assert direct.landed(unknown.value) is False
        lease.ensure_held()
        between.drop_request_when(lambda request: b"UPDATE orders" in request)
        with pytest.raises(OperationalError), shop.guard.begin(lease):
            shop.execute(ADD)
        assert shop.total == 1
        shop.coordinator.close()
