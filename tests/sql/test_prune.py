"""``prune``: marks go, and no stale claim comes in for it, on every database and with every guard."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, event, text

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, OutcomeUnknown, StaleFence, UnclaimedFence
from fencing.kernel.fence import MAX_NUMBER
from storage_guards import SQLAlchemyGuard
from storage_guards.sql import pruning as pruning_module
from storage_guards.sql.outcome import FLOOR
from storage_guards.sql.pruning import Pruning
from storage_guards.sqlalchemy.marks import Marks
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.psycopg_database import dsn_of
from tests.support.sql_ways import OVER_A_NETWORK, TO_SERVERS, Way, WayLender, ways

DAY = 86400.0
ADD = "UPDATE orders SET total = total + 1"


def fence(name: str, number: int) -> Fence:
    return Fence(name, number, f"{number:022d}")


class Shop:
    """A guard of one kind; ``beside`` is a plain guard of the same database, for all others."""

    def __init__(self, way: Way) -> None:
        self.way, self.side, self.url, self.kind = way, way.side, way.url, way.database
        self.direct = way.outside
        self.beside = SQLAlchemyGuard(self.direct, timeout=30.0)
        self.guard: Any = way.guard_class(way.direct) if way.is_psycopg else way.guard

    def prune(self, **options: Any) -> int:
        return int(self.side.call(self.guard.prune, **options))

    def claim(self, *fences: Fence) -> None:
        self.beside.claim(*fences)

    def _key(self, resource: str) -> str:
        return f"UNHEX('{resource.encode().hex()}')" if self.way.is_mariadb else f"'{resource}'"

    def floor(self) -> int:
        [[number]] = self.way.sql(f"SELECT number FROM fencing_marks WHERE resource = {self._key(FLOOR)}")
        return int(number)

    def grow_old(self, resource: str, seconds: int) -> None:
        old = {
            "mariadb": f"claimed_at - INTERVAL {seconds} SECOND",
            "sqlite": f"datetime(claimed_at, '-{seconds} seconds')",
        }.get(self.kind, f"claimed_at - interval '{seconds} seconds'")
        self.way.sql(f"UPDATE fencing_marks SET claimed_at = {old} WHERE resource = {self._key(resource)}")


OFTEN = ("psycopg", "aiosqlite", "AsyncPsycopgGuard")


@pytest.fixture(params=ways(*OFTEN))
def shop(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Shop]:
    with sql_ways.lend(request.param) as way:
        yield Shop(way)


not_on_sqlite = pytest.mark.parametrize("shop", ways(*OFTEN, of=OVER_A_NETWORK), indirect=True)


def test_marks_go_and_older_fences_stay_out(shop: Shop) -> None:
    shop.claim(fence("a", 5), fence("b", 6), fence("c", 7))
    assert shop.prune(below=7) == 2
    assert [shop.beside.mark(name) is None for name in "abc"] == [True, True, False]
    assert shop.floor() == 6
    for late in (fence("a", 5), fence("b", 5), fence("new", 6)):
        with pytest.raises(StaleFence) as refused:
            shop.claim(late)
        assert refused.value.floor == 6
    with pytest.raises(UnclaimedFence):
        shop.beside.write(fence("a", 5), text(ADD))
    shop.beside.write(fence("c", 7), text(ADD))
    shop.claim(fence("a", 7), fence("new", 8))
    assert shop.prune(below=7) == 0


def test_the_floor_is_no_higher_than_what_was_there(shop: Shop) -> None:
    """Or one call would shut out everybody, for ever."""
    shop.claim(fence("a", 5))
    assert shop.prune(below=MAX_NUMBER) == 1
    assert shop.floor() == 5
    assert shop.prune(below=MAX_NUMBER) == 0
    assert shop.floor() == 5
    shop.claim(fence("a", 6))


def test_it_never_falls(shop: Shop) -> None:
    shop.claim(fence("a", 50))
    shop.prune(below=51)
    shop.claim(fence("b", 60))
    assert shop.prune(below=10) == 0
    assert shop.floor() == 50


def test_marks_not_claimed_for_long(shop: Shop) -> None:
    """A young mark stays, though its number is under the floor: it is there, and counts."""
    shop.claim(fence("old", 9), fence("young", 4), fence("older", 5))
    assert shop.prune(older_than=DAY) == 0
    shop.grow_old("old", 2 * 86400)
    shop.grow_old("older", 300 * 86400)
    assert shop.prune(older_than=400 * DAY) == 0
    assert shop.prune(older_than=DAY, below=9) == 1
    assert shop.floor() == 5
    assert shop.prune(older_than=DAY) == 1
    assert shop.floor() == 9
    shop.beside.write(fence("young", 4), text(ADD))
    shop.claim(fence("young", 5))
    with pytest.raises(StaleFence):
        shop.claim(fence("old", 9))


def test_more_marks_than_one_transaction_takes(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning_module, "BATCH", 3)
    if shop.way.database == "postgres":
        shop.way.sql("ANALYZE fencing_marks")  # a plan for the one row that it has now, as the first plans of a table
    names = [f"many:{number}'\\é " for number in range(1, 11)]
    shop.claim(*(fence(name, number) for number, name in enumerate(names, 1)))
    deleted, next_batch = [], Pruning.next_batch

    def note(left: Pruning, floor: int, count: int) -> Pruning | None:
        deleted.append(count)
        return next_batch(left, floor, count)

    monkeypatch.setattr(Pruning, "next_batch", note)
    assert shop.prune(below=10) == 9
    assert deleted == [3, 3, 3, 0], "so many in one transaction"
    assert shop.floor() == 9
    assert shop.beside.mark(names[-1]) is not None


def test_a_connection_that_breaks_between_two_transactions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one would be opened without a bound. The next call has one of its own."""
    monkeypatch.setattr(pruning_module, "BATCH", 3)
    shop.claim(*(fence(f"many:{number}", number) for number in range(1, 11)))
    pruning = Marks._pruning

    @contextmanager
    def breaking(marks: Marks, connection: Any, seconds: float) -> Iterator[None]:
        with pruning(marks, connection, seconds):
            yield
        connection.invalidate()

    with monkeypatch.context() as patch:
        patch.setattr(Marks, "_pruning", breaking)
        with pytest.raises(GuardUnavailable, match="between two transactions; what was deleted stays so; retry"):
            shop.beside.prune(below=10)
    assert shop.beside.prune(below=10) == 6


def test_what_is_no_limit_is_refused(shop: Shop) -> None:
    no_limit: list[dict[str, Any]] = [{}, {"below": "5"}, {"older_than": "5"}, {"below": 5.0}]
    for options in no_limit:
        shop.side.expect(TypeError, shop.guard.prune, **options)
    out_of_range: list[dict[str, Any]] = [{"below": 0}, {"older_than": 0}, {"older_than": float("inf")}]
    for options in (*out_of_range, {"below": 2**53}):
        shop.side.expect(ValueError, shop.guard.prune, **options)


def test_without_the_floor_row_nothing_goes(shop: Shop) -> None:
    shop.way.spoil()
    shop.claim(fence("a", 5))
    shop.way.sql("DELETE FROM fencing_marks WHERE number = 0")
    shop.side.expect(GuardNotEnforceable, shop.guard.prune, below=9)
    assert shop.beside.mark("a") is not None


# Outcomes


def test_landed_is_right_after_a_prune(shop: Shop) -> None:
    """Of a write under a deleted mark it is not known; of one above the floor it is."""
    shop.claim(fence("a", 5), fence("b", 6), fence("c", 9))

    def unknown(of: Fence, *, landed: bool) -> OutcomeUnknown:
        """What a lost reply would have left, of a write that was committed, or rolled back."""
        error: list[OutcomeUnknown] = []
        with pytest.raises(ZeroDivisionError) if not landed else nullcontext(), shop.beside.begin(of) as connection:
            key = {"resource": of.resource.encode().hex() if shop.way.is_mariadb else of.resource}
            column = "CAST(recent_writes AS CHAR)" if shop.way.is_mariadb else "recent_writes"
            where = "UNHEX(:resource)" if shop.way.is_mariadb else ":resource"
            recent = connection.execute(text(f"SELECT {column} FROM fencing_marks WHERE resource = {where}"), key)
            error.append(OutcomeUnknown(fence=of, seq=1, recent_writes=recent.scalar_one()))
            if not landed:
                raise ZeroDivisionError
        return error[0]

    happened, undone = unknown(fence("a", 5), landed=True), unknown(fence("b", 6), landed=False)
    above = [unknown(fence("c", 9), landed=False), unknown(fence("c", 9), landed=True)]
    landed = shop.side.call
    assert [landed(shop.guard.landed, one) for one in (happened, undone, *above)] == [True, False, False, True]
    assert shop.prune(below=7) == 2
    assert [landed(shop.guard.landed, one) for one in (happened, undone, *above)] == [None, None, False, True]
    shop.beside.write(fence("a", 8), text(ADD), claim=True)  # the mark begins anew
    shop.beside.write(fence("b", 8), text(ADD), claim=True)
    assert [landed(shop.guard.landed, one) for one in (happened, undone)] == [None, None]


# Claims at the same time


def test_it_waits_for_a_claim_on_an_absent_mark(shop: Shop) -> None:
    """Which has read the floor: were it raised now, that claim would come in under it."""
    shop.claim(fence("a", 7))
    with ThreadPoolExecutor() as pool:
        with shop.beside.begin(fence("new", 5), claim=True):
            pruned = pool.submit(shop.prune, below=8)
            until_locks_are_waited_for(shop.url)
            assert not pruned.done()
        assert pruned.result(60) in (1, 2)
    assert shop.floor() == 7


def test_a_claim_that_waits_for_it_sees_the_new_floor(shop: Shop) -> None:
    shop.claim(fence("a", 7))
    deleting, go_on = threading.Event(), threading.Event()
    other = create_engine(shop.direct.url)
    holder = SQLAlchemyGuard(other, timeout=5.0)

    @event.listens_for(other, "before_cursor_execute")
    def stop(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("DELETE"):
            deleting.set()
            assert go_on.wait(60)

    with ThreadPoolExecutor() as pool:
        pruned = pool.submit(holder.prune, below=8)
        assert deleting.wait(60)
        late = pool.submit(shop.side.call, shop.guard.claim, fence("new", 6))
        newer = pool.submit(shop.claim, fence("newer", 8))
        until_locks_are_waited_for(shop.url, sessions=2)
        assert not late.done()
        go_on.set()
        assert pruned.result(60) == 1
        assert isinstance(late.exception(60), StaleFence)
        newer.result(60)
    other.dispose()


@not_on_sqlite
def test_a_mark_that_rises_meanwhile_stays(shop: Shop) -> None:
    """It was not there when the floor was raised, so it may be above it: deleted, it would let an older one in."""
    shop.claim(fence("a", 5), fence("b", 3))
    other = create_engine(shop.direct.url)

    @event.listens_for(other, "before_cursor_execute")
    def claim_first(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith(("DELETE", "SELECT HEX")) and shop.beside.mark("b").number == 3:  # type: ignore[union-attr]
            shop.claim(fence("b", 7))

    assert SQLAlchemyGuard(other, timeout=5.0).prune(below=8) == 1
    assert shop.floor() == 5
    with pytest.raises(StaleFence):
        shop.claim(fence("b", 6))
    other.dispose()


@pytest.mark.parametrize("shop", ways("psycopg", "sqlite", of=("psycopg", "pymysql", "sqlite")), indirect=True)
def test_an_autocommit_engine(shop: Shop) -> None:
    shop.claim(fence("a", 5))
    guard = shop.way.new_guard(isolation_level="AUTOCOMMIT")
    with pytest.raises(GuardNotEnforceable, match="autocommit"):
        guard.prune(below=9)
    assert shop.beside.mark("a") is not None


@not_on_sqlite
def test_it_does_not_wait_for_marks_in_use(shop: Shop) -> None:
    """Their users may be about to wait for the floor."""
    assert pruned_beside_a_mark_in_use(shop) == 1


@pytest.mark.parametrize("shop", ways("psycopg", of=TO_SERVERS), indirect=True)
def test_nor_on_a_serializable_engine(shop: Shop) -> None:
    shop.guard = shop.way.new_guard(isolation_level="SERIALIZABLE")
    assert pruned_beside_a_mark_in_use(shop) == 1


def pruned_beside_a_mark_in_use(shop: Shop) -> int:
    shop.claim(fence("used", 5), fence("unused", 6))
    with shop.beside.begin(fence("used", 5)):
        pruned = shop.prune(below=9)  # or it would be refused after the guard's bound
        assert shop.floor() == 6
    shop.beside.write(fence("used", 5), text(ADD))
    assert shop.prune(below=9) == 1
    return pruned


@pytest.mark.thorough
def test_claims_race_with_prunes(shop: Shop) -> None:
    """A fence that was admitted before a claim began, for the same name, has a lower number."""
    print("seed", seed := random.randrange(2**32))
    names, enough, deadline = [f"r{n}" for n in range(4)], threading.Event(), time.monotonic() + 60.0
    admitted: list[tuple[str, int, float, float]] = []
    counter = iter(range(10, 10**9))
    lock = threading.Lock()

    def claims(chance: random.Random) -> None:
        while not enough.is_set():
            with lock:
                newest = next(counter)
            number = max(1, newest - chance.choice([0, 0, 3, 8]))
            begun = time.monotonic()
            name = chance.choice(names)
            time.sleep(chance.uniform(0.005, 0.03))  # SQLite's lock is not fair, and a busy loop proves no more
            try:
                shop.claim(Fence(name, number, f"{chance.getrandbits(80):022d}"[:25]))
            except (StaleFence, GuardUnavailable):
                continue
            admitted.append((name, number, begun, time.monotonic()))

    def prunes(chance: random.Random) -> int:
        count = 0
        while (count < 20 or len(admitted) < 40) and time.monotonic() < deadline:
            with lock:
                newest = next(counter)
            try:
                count += shop.prune(below=max(1, newest - chance.choice([0, 2, 4])))
            except GuardUnavailable:
                continue
        return count

    with ThreadPoolExecutor() as pool:
        claiming = [pool.submit(claims, random.Random(seed + n)) for n in range(3)]
        try:
            pruned = prunes(random.Random(seed - 1))
        finally:
            enough.set()
        for each in claiming:
            each.result()
    assert len(admitted) >= 20
    assert pruned > 0
    for name, number, begun, _ in admitted:
        earlier = [other for same, other, _, ended in admitted if same == name and ended < begun]
        assert number >= max(earlier, default=0), f"{name}: {number} was admitted after {max(earlier)}"


@pytest.mark.parametrize("shop", ways("AsyncPsycopgGuard", of=("PsycopgGuard", "AsyncPsycopgGuard")), indirect=True)
def test_a_role_that_may_not_delete(shop: Shop) -> None:
    shop.claim(fence("a", 5))
    role = f"pruner_of_{shop.direct.url.database}"
    for statement in (f'CREATE ROLE "{role}"', f'GRANT SELECT, INSERT, UPDATE ON fencing_marks TO "{role}"'):
        shop.way.sql(statement)
    dsn = psycopg.conninfo.make_conninfo(dsn_of(shop.url), options=f"-c role={role}")
    error = shop.side.expect(GuardNotEnforceable, shop.way.guard_class(dsn).prune, below=9)
    assert "permission denied" in str(error)
    assert "use a role that has this right, or grant it" in str(error)
    for statement in (f'DROP OWNED BY "{role}"', f'DROP ROLE "{role}"'):
        shop.way.sql(statement)
    assert shop.floor() == 0, "it is all or nothing"
