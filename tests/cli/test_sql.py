"""The functions that ``fencing sql`` prints: one rule with the guards, on one mark table."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.servers import RedisServer
from fencing import Fence, Mark, StaleFence, UnclaimedFence
from storage_guards import PsycopgGuard
from storage_guards.continuity import ID_CHARACTERS
from storage_guards.sql.schema import POSTGRESQL_VISIBLE_TABLES, read_visible_tables
from storage_guards.sql.table import VERSION
from storage_guards.sql.text_functions import NESTED, STALE, UNCLAIMED, functions_of_texts
from tests.support.command_line import started
from tests.support.commands import fencing
from tests.support.enforced import connect, dsn, two_roles
from tests.support.lock_waits import until_locks_are_waited_for

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations" / "command-line.md").read_text("utf-8")
NAME = "orders:42"
T = "t" * 22
OLD, NEW = (Fence(NAME, number, str(number) * 22) for number in (5, 6))
SCRIPT = functions_of_texts("public", is_named=False, made_by="Made by a test")


class Shop:
    """A database with a mark table, the functions, a guard, and a table of orders."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.guard = PsycopgGuard(dsn(url))
        self.guard.create_tables()
        self.connection = self.connect()
        self.connection.execute(SCRIPT.encode())
        self.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
        self.connection.execute("INSERT INTO orders VALUES (42, 100)")

    def connect(self) -> psycopg.Connection[Any]:
        return connect(self.url)

    def claim(self, fence: Fence) -> None:
        self.connection.execute("SELECT fencing_claim(%s)", [str(fence)])

    def check(self, fence: Fence) -> None:
        self.connection.execute("SELECT fencing_check(%s)", [str(fence)])

    @property
    def total(self) -> int:
        [total] = self.connection.execute("SELECT total FROM orders").fetchone() or [None]
        assert isinstance(total, int)
        return total


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Shop]:
    shop = Shop(postgres_url)
    with shop.connection:
        yield shop


def refused(state: str) -> Any:
    return pytest.raises(psycopg.Error, match="fencing: ", check=lambda error: error.sqlstate == state)


def test_what_python_has_claimed_shuts_out_psql(shop: Shop) -> None:
    shop.claim(OLD)
    shop.check(OLD)
    shop.guard.claim(NEW)
    with refused(STALE):
        shop.check(OLD)
    with refused(STALE):
        shop.claim(OLD)
    shop.check(NEW)


def test_what_psql_has_claimed_shuts_out_python(shop: Shop) -> None:
    shop.guard.claim(OLD)
    shop.guard.write(OLD, "UPDATE orders SET total = 101")
    shop.claim(NEW)
    with pytest.raises(StaleFence):
        shop.guard.write(OLD, "UPDATE orders SET total = 102")
    with pytest.raises(StaleFence):
        shop.guard.claim(OLD)
    shop.guard.write(NEW, "UPDATE orders SET total = 103")
    assert shop.total == 103
    assert shop.guard.mark(NAME) == Mark(NEW.number, NEW.token, seq=1)


def test_a_claim_may_be_repeated(shop: Shop) -> None:
    shop.claim(NEW)
    shop.check(NEW)
    shop.claim(NEW)
    assert shop.guard.mark(NAME) == Mark(NEW.number, NEW.token, seq=1)


def test_one_fence_may_write_by_turns(shop: Shop) -> None:
    """The guard knows what was acknowledged, and each check leaves an id of its own for it."""
    shop.guard.claim(NEW)
    for _ in range(3):
        shop.guard.write(NEW, "UPDATE orders SET total = total + 1")
        shop.check(NEW)
    assert shop.guard.mark(NAME) == Mark(NEW.number, NEW.token, seq=6)
    [[recent]] = shop.connection.execute("SELECT recent_writes FROM fencing_marks WHERE seq = 6").fetchall()
    ids = recent.split()
    assert len(set(ids)) == 8  # those of the claim and of the table, too
    assert {len(each) for each in ids} == {ID_CHARACTERS}


def test_a_number_with_another_token_is_stale(shop: Shop) -> None:
    shop.claim(OLD)
    other = Fence(NAME, OLD.number, "o" * 22)
    with refused(STALE):
        shop.claim(other)
    with refused(STALE):
        shop.check(other)


def test_a_check_needs_a_claim_before_it(shop: Shop) -> None:
    with refused(UNCLAIMED):
        shop.check(OLD)
    shop.claim(OLD)
    with refused(UNCLAIMED):
        shop.check(NEW)
    with pytest.raises(UnclaimedFence):  # as the guard has it
        shop.guard.write(NEW, "UPDATE orders SET total = 1")


def test_a_newer_reader_shuts_out(shop: Shop) -> None:
    shop.claim(OLD)
    shop.connection.execute("UPDATE fencing_marks SET readers = %s WHERE resource = %s", [OLD.number, NAME])
    with refused(STALE):
        shop.check(OLD)
    with refused(STALE):
        shop.claim(OLD)
    shop.claim(NEW)


def test_the_floor_counts_where_there_is_no_mark(shop: Shop) -> None:
    shop.claim(OLD)
    assert shop.guard.prune(below=NEW.number) == 1
    with refused(STALE):
        shop.claim(OLD)
    shop.claim(NEW)
    shop.connection.execute("DELETE FROM fencing_marks")
    with refused("55000"):
        shop.claim(NEW)


def test_neither_is_in_a_savepoint(shop: Shop) -> None:
    shop.claim(OLD)
    for function in (shop.check, shop.claim):
        with refused(NESTED), shop.connection.transaction(), shop.connection.transaction():
            function(OLD)


TEXTS = ["a", "ä ö/€", "a.b~c%41", "%", "{gpu}#2", 'it\'s "quoted" \\', "\t\n\x01", "!$&'()*+,/:;=@-_.~", "😀" * 128]


@pytest.mark.thorough
def test_the_text_of_each_fence_is_read_as_the_fence(shop: Shop) -> None:
    for number, name in enumerate([*TEXTS, *map(chr, range(1, 256))], 1):
        fence = Fence(name, number, T)
        assert shop.connection.execute("SELECT fencing_claim(%s)", [str(fence)]).fetchone() == (name,)
        if name in TEXTS:
            assert shop.guard.mark(name) == Mark(fence.number, fence.token)


NO_TEXTS = [
    *(
        "",
        "5",
        f"5.{T}",
        f"5.{T}.",
        f"0.{T}.a",
        f"05.{T}.a",
        f"5s.{T}.a",
        f"5.{T[1:]}.a",
        f"{2**53}.{T}.a",
        f"5.{T}.a b",
    ),
    *(
        f"5.{T}.fencing:floor",
        f"5.{T}.%41",
        f"5.{T}.%c3%a4",
        f"5.{T}.%2",
        f"5.{T}.ä",
        f"5.{T}.{'a' * 513}",
        f"5.{T}.a\n",
    ),
]


def test_what_is_no_text_of_a_fence_is_refused(shop: Shop) -> None:
    for text in NO_TEXTS:
        with pytest.raises(ValueError, match="fence"):
            Fence.parse(text)
    given: list[str | None] = [*NO_TEXTS, None]
    for each in given:
        for function in (b"claim", b"check"):
            with refused("22023"):
                shop.connection.execute(b"SELECT fencing_%s(%%s::text)" % function, [each])


@pytest.mark.thorough
@pytest.mark.parametrize("quoted", ["%FF", "%00"])
def test_bytes_that_are_no_text_are_refused(shop: Shop, quoted: str) -> None:
    with pytest.raises(psycopg.DataError):
        shop.connection.execute("SELECT fencing_claim(%s)", [f"5.{T}.{quoted}"])


def test_the_check_locks_the_mark_until_the_transaction_ends(shop: Shop) -> None:
    shop.claim(OLD)
    claimed = threading.Thread(target=shop.guard.claim, args=[NEW])
    with shop.connection.transaction():
        shop.check(OLD)
        claimed.start()
        until_locks_are_waited_for(shop.url)
        shop.connection.execute("UPDATE orders SET total = 101")
    claimed.join()
    with refused(STALE):
        shop.check(OLD)


def add_one(shop: Shop, fence: Fence, *, reads_first: bool, has_read: threading.Event) -> None:
    """Do what the page's script does, in its order or in the wrong one."""
    read = "SELECT total FROM orders"
    with shop.connect() as connection, connection.transaction():
        if reads_first:
            [total] = connection.execute(read).fetchone() or [0]
            has_read.set()
        connection.execute("SELECT fencing_check(%s)", [str(fence)])
        if not reads_first:
            [total] = connection.execute(read).fetchone() or [0]
        connection.execute("UPDATE orders SET total = %s", [total + 1])


@pytest.mark.parametrize(("reads_first", "total"), [(False, 102), (True, 101)])
def test_an_update_is_lost_where_the_check_is_not_first(shop: Shop, reads_first: bool, total: int) -> None:
    """Two sessions with one fence. The page says so."""
    shop.claim(OLD)
    has_read = threading.Event()
    second = threading.Thread(
        target=add_one, args=[shop, OLD], kwargs={"reads_first": reads_first, "has_read": has_read}
    )
    with shop.connection.transaction():
        shop.check(OLD)
        second.start()
        until_locks_are_waited_for(shop.url)
        shop.connection.execute("UPDATE orders SET total = total + 1")
    second.join()
    assert has_read.is_set() == reads_first
    assert shop.total == total


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_an_update_is_lost_where_the_claim_comes_after_the_read(shop: Shop, level: str) -> None:
    """The page says so, and that REPEATABLE READ finds it out."""
    shop.claim(OLD)

    def read_claim_and_write() -> None:
        with shop.connect() as late, late.transaction():
            late.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
            [total] = late.execute("SELECT total FROM orders").fetchone() or [0]
            shop.guard.write(OLD, "UPDATE orders SET total = 200")
            late.execute("SELECT fencing_claim(%s)", [str(NEW)])
            late.execute("SELECT fencing_check(%s)", [str(NEW)])
            late.execute("UPDATE orders SET total = %s", [total + 1])

    if level == "READ COMMITTED":
        read_claim_and_write()
        assert shop.total == 101  # the acknowledged 200 is lost
    else:
        with pytest.raises(psycopg.errors.SerializationFailure):
            read_claim_and_write()
        assert shop.total == 200


def test_the_functions_tell_the_version_which_guards_ask_for(shop: Shop) -> None:
    [[found]] = shop.connection.execute(POSTGRESQL_VISIBLE_TABLES.encode()).fetchall()
    assert read_visible_tables(found).everywhere["public"].functions == str(VERSION)


@pytest.mark.thorough
def test_a_script_without_its_mark_table_says_what_to_do(postgres_url: str) -> None:
    with connect(postgres_url) as connection:
        with pytest.raises(psycopg.errors.RaiseException, match="make it with fencing create-tables"):
            connection.execute(SCRIPT.encode())
        PsycopgGuard(dsn(postgres_url)).create_tables()
        connection.execute("CREATE SCHEMA other")
        connection.execute("CREATE TABLE other.fencing_marks (LIKE fencing_marks)")
        with pytest.raises(psycopg.errors.RaiseException, match="several mark tables"):
            connection.execute(SCRIPT.encode())
        connection.execute("ALTER TABLE fencing_marks ALTER version SET DEFAULT 2")
        with pytest.raises(psycopg.errors.RaiseException, match="of version 2"):
            connection.execute(functions_of_texts("public", is_named=True, made_by="Made by a test").encode())


@pytest.mark.thorough
def test_on_a_database_that_enforces_the_functions_let_the_application_write(postgres_url: str) -> None:
    with two_roles(postgres_url) as roles, roles.as_owner() as owner:
        roles.owners_guard().create_tables()
        owner.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
        owner.execute("INSERT INTO orders VALUES (42, 100)")
        owner.execute(SCRIPT.encode())
        roles.owners_guard().enforce("orders", resource="'orders:' || id", role=roles.app)
        with roles.as_app() as app:
            add = b"UPDATE orders SET total = total + 1"
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is enforced"):
                app.execute(add)
            app.execute("SELECT fencing_claim(%s)", [str(OLD)])
            with app.transaction():
                app.execute("SELECT fencing_check(%s)", [str(OLD)])
                app.execute(add)
            roles.apps_guard().claim(NEW)
            with refused(STALE):
                app.execute("SELECT fencing_check(%s)", [str(OLD)])
            with refused(STALE):
                app.execute("SELECT fencing_claim(%s)", [str(OLD)])
            with refused(NESTED), app.transaction(), app.transaction():
                app.execute("SELECT fencing_check(%s)", [str(NEW)])


@pytest.fixture
def psql() -> str:
    found = shutil.which("psql")
    if found is None:
        pytest.skip("found no psql on PATH")
    return found


@pytest.mark.thorough
def test_the_example_of_the_page_with_psql(postgres_url: str, psql: str, tmp_path: Path) -> None:
    shop = Shop(postgres_url)
    [example] = re.findall(r"```sql\n(.*?)```", PAGE.partition("## Scripts of psql")[2], re.DOTALL)
    script = tmp_path / "total.sql"
    script.write_text(example)

    def run(fence: Fence, *arguments: object, source: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [psql, "-X", "-v", "ON_ERROR_STOP=1", *map(str, arguments), dsn(postgres_url)]
        environment = {**os.environ, "FENCING_TOKEN": str(fence)}
        return subprocess.run(command, input=source, env=environment, text=True, capture_output=True, timeout=60)

    with shop.connection:
        for target in (dsn(postgres_url), "postgresql"):
            printed = fencing("sql", target)
            assert printed.returncode == 0
            assert run(OLD, "-1", source=printed.stdout).returncode == 0
        [[comment]] = shop.connection.execute("SELECT obj_description('fencing_check(text)'::regprocedure)").fetchall()
        assert re.search(r"Made by fencing [0-9.]+, for tables of version 1", comment)
        assert run(OLD, "-f", script).returncode == 0
        assert shop.total == 101
        shop.guard.claim(NEW)
        late = run(OLD, "-f", script)
        assert (late.returncode, shop.total) == (3, 101)
        said = late.stderr.partition("ERROR:")[2].replace(f" {OLD.number} ", " 1763729528000001 ")
        said = said.replace(f": {NEW.number} ", ": 1763729528000002 ").partition("\n")[0]
        assert said in PAGE
        assert run(NEW, "-f", script).returncode == 0
        shop.guard.write(NEW, "UPDATE orders SET total = total + 1")
        assert shop.total == 103


@pytest.mark.thorough
def test_the_example_of_the_page_under_fencing_run(
    postgres_url: str, any_redis: RedisServer, psql: str, tmp_path: Path
) -> None:
    shop = Shop(postgres_url)
    part = PAGE.partition("## Scripts of psql")[2]
    [example] = re.findall(r"```sql\n(.*?)```", part, re.DOTALL)
    [line] = re.findall(r"^\$ fencing (run .*)$", part, re.MULTILINE)
    script = tmp_path / "total.sql"
    script.write_text(example)
    places = {"total.sql": str(script), "shop": dsn(postgres_url), "psql": psql, "--": f"--redis {any_redis.url} --"}
    words = shlex.split(" ".join(places.get(word, word) for word in line.split()))
    with shop.connection:
        assert fencing(*words).returncode == 0
        assert shop.total == 101
        first = shop.guard.mark(NAME)
        assert first is not None
        dashes = words.index("--")
        late = f"echo ready; read x; exec {shlex.join(words[dashes + 1 :])}"
        with started(*words[:dashes], "--shell", "--", late) as running:
            assert running.line() == "ready"
            shop.guard.claim(Fence(NAME, first.number + 10_000_000_000, "n" * 22))
            running.write("")
            assert (running.status(), shop.total) == (3, 101)
            assert "is stale" in running.errors()


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["mysql://me@h/d", "sqlite:///x.db", "oracle"])
def test_other_databases_have_no_such_functions(target: str) -> None:
    ended = fencing("sql", target)
    assert (ended.returncode, ended.stdout) == (64, "")
    assert "is not PostgreSQL" in ended.stderr
