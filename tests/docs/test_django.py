"""docs/guards/psycopg.md: the recipe for Django works, and a late holder's write is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
[RECIPE] = [
    block
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/guards/psycopg.md").read_text("utf-8"), re.DOTALL)
    if "django" in block
]

PROGRAM = """
import sys
from urllib.parse import urlsplit

import django
from django.conf import settings

from fencing import MemoryCoordinator, StaleFence
from storage_guards import PsycopgGuard

url = urlsplit(sys.argv[1])
database = {{
    "ENGINE": "django.db.backends.postgresql",
    "NAME": url.path[1:],
    "USER": url.username,
    "PASSWORD": url.password or "",
    "HOST": url.hostname or "",
    "PORT": url.port or "",
}}
settings.configure(DATABASES={{"default": database}})
django.setup()
guard = PsycopgGuard(sys.argv[1])
guard.create_tables()
coordinator = MemoryCoordinator(guards=[guard])
from django.db import connection, transaction

with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE orders (id int, total int)")
    cursor.execute("INSERT INTO orders VALUES (42, 0)")
for source in (guard.advance, PsycopgGuard):
    try:
        source(connection)
    except TypeError as error:
        print(error)
{recipe}
late = coordinator.acquire("orders:42")
coordinator.force_release("orders:42")
try:
    with transaction.atomic():
        guard.advance(connection.connection, late)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE orders SET total = 100")
except StaleFence:
    print("refused")
with connection.cursor() as cursor:
    cursor.execute("SELECT total FROM orders")
    print("total", *cursor.fetchone())
"""


@pytest.mark.thorough
def test_the_recipe(postgres_url: str) -> None:
    program = PROGRAM.format(recipe=RECIPE)
    url = postgres_url.replace("postgresql+psycopg", "postgresql")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, url], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    hint = "with Django, use fencing.contrib.django.DjangoGuard. Or give the guard a connection string"
    lines = done.stdout.splitlines()
    assert [hint in line for line in lines] == [True, True, False, False], done.stdout
    assert lines[2:] == ["refused", "total 1"]
