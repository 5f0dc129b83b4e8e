"""The guard on Django's connections through psycopg2, which Django takes where psycopg 3 is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
import threading

class Absent:
    def find_spec(name, *_):
        if name == "psycopg":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent)

from tests.support.django_project import configure, database

configure(DATABASES={"default": database(sys.argv[1])})

from django.db import connection, transaction

from fencing import AlreadyDone, Fence, GuardNotEnforceable, GuardUnavailable, StaleFence
from fencing.contrib.django import DjangoGuard

def execute(text):
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchone()[0] if cursor.description else None

def expect(kind, said, work):
    try:
        work()
    except kind as error:
        assert said in str(error), error
    else:
        raise AssertionError(f"{kind.__name__} was expected")

def atomic(*steps):
    with transaction.atomic():
        for step in steps:
            step()

def block(fence, text, **options):
    with guard.begin(fence, **options):
        execute(text)

with connection.cursor() as cursor:
    assert "psycopg2" in type(cursor.cursor).__module__
guard = DjangoGuard(timeout=2.0)
guard.create_tables()
execute("CREATE TABLE orders (total int)")
execute("INSERT INTO orders VALUES (0)")
ADD = "UPDATE orders SET total = total + 1"
old, new = Fence("orders:42", 1, "a" * 22), Fence("orders:42", 2, "b" * 22)
guard.claim(old)
block(old, ADD, once="today")
expect(AlreadyDone, "today", lambda: block(old, ADD, once="today"))
guard.claim(new)
expect(StaleFence, "", lambda: block(old, ADD))
atomic(lambda: guard.advance(new), lambda: execute(ADD))
check = lambda: guard.advance(new)
expect(ValueError, "has sent statements before", lambda: atomic(lambda: execute("SELECT 1"), check))
expect(ValueError, "nested atomic()", lambda: atomic(lambda: atomic(check)))
for text in ("COMMIT", "ROLLBACK"):
    expect(GuardNotEnforceable, "not sound at the block's end", lambda: block(new, text))

locked, ended = threading.Event(), threading.Event()

def hold():
    with guard.begin(new):
        locked.set()
        ended.wait(60)
    connection.close()

holder = threading.Thread(target=hold)
holder.start()
locked.wait(60)
newest = Fence("orders:42", 3, "c" * 22)
expect(GuardUnavailable, "stayed locked", lambda: guard.claim(newest, timeout=0.05))
ended.set()
holder.join()
guard.claim(newest)
assert execute("SELECT total FROM orders") == 2
connection.close()
print("done")
"""


@pytest.mark.thorough
def test_the_rules_hold_through_psycopg2(postgres_url: str) -> None:
    pytest.importorskip("psycopg2")
    command = [sys.executable, "-c", PROGRAM, postgres_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
