"""``manage.py locked_migrate``: three processes migrate once, and a process that lost its lock migrates no further."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

import fencing
from examples.servers import RedisServer
from tests.support import wait_until
from tests.support.django_project import added

ROOT = Path(__file__).resolve().parents[2]

SETTINGS = """
import os

from tests.support.django_project import database

DATABASES = {"default": database(os.environ["SHOP_DATABASE"])}
INSTALLED_APPS = ["fencing.contrib.django", "shop", *os.environ.get("MORE_APPS", "").split()]
FENCING_COORDINATOR = "shop.locks.coordinator"
SECRET_KEY = "of tests"
USE_TZ = True
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
PROCESSORS = ["django.template.context_processors.request", "django.contrib.auth.context_processors.auth"]
PROCESSORS += ["django.contrib.messages.context_processors.messages"]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {"context_processors": PROCESSORS},
}]
"""
LOCKS = """
import os

import fencing

coordinator = fencing.connect(os.environ["FENCING_URL"], ttl=2.0)
"""
MODELS = """
from django.db import models

class Account(models.Model):
    id = models.IntegerField(primary_key=True)
    balance = models.IntegerField()
"""
FIRST = """
from django.db import migrations, models

def open_account(apps, schema_editor):
    apps.get_model("shop", "Account").objects.create(id=1, balance=0)

class Migration(migrations.Migration):
    dependencies = []
    operations = [
        migrations.CreateModel("Account", [
            ("id", models.IntegerField(primary_key=True)), ("balance", models.IntegerField()),
        ]),
        migrations.RunPython(open_account),
    ]
"""
BONUS = """
import os, signal, time
from pathlib import Path
from django.db import migrations
from django.db.models import F

def pay(apps, schema_editor):
    Path(f"{number}.{{os.getpid()}}").touch()
    deadline = time.monotonic() + 60
    while len(list(Path().glob("{number}.*"))) < int(os.environ.get("MEET", 1)) and time.monotonic() < deadline:
        time.sleep(0.01)
    if os.environ.get("FREEZE") == "{number} behind":
        apps.get_model("shop", "Account").objects.count()
    if os.environ.get("FREEZE", "").startswith("{number}"):
        os.kill(os.getpid(), signal.SIGSTOP)
    apps.get_model("shop", "Account").objects.update(balance=F("balance") + 100)

class Migration(migrations.Migration):
    dependencies = [("shop", "{before}")]
    operations = [migrations.RunPython(pay)]
"""
ORDERS = """
import os, signal
import django.db.models.deletion
from django.db import migrations, models, transaction

def freeze(apps, schema_editor):
    if os.environ.get("FREEZE") == "before the note":
        transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGSTOP))

class Migration(migrations.Migration):
    dependencies = [("shop", "0003_bonus")]
    operations = [
        migrations.CreateModel("Order", [
            ("id", models.IntegerField(primary_key=True)),
            ("account", models.ForeignKey("shop.Account", django.db.models.deletion.CASCADE)),
        ]),
        migrations.RunPython(freeze),
    ]
"""
ONE_BY_ONE = """
from django.db import connection, migrations, models

def each_in_its_own(apps, schema_editor):
    log = apps.get_model("shop", "Log").objects
    assert [log.create(text=text).pk for text in "abc"] == [1, 2, 3]
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO shop_log (text) VALUES ('d'), ('e'), ('f'), ('g') RETURNING text")
        said = [cursor.fetchone(), *cursor.fetchmany(2), *cursor, cursor.fetchone()]
        cursor.execute("SELECT count(*) FROM shop_log")
        said += cursor.fetchall()
    assert said == [("d",), ("e",), ("f",), ("g",), None, (7,)], said

class Migration(migrations.Migration):
    atomic = False
    dependencies = [("shop", "0003_bonus")]
    operations = [
        migrations.CreateModel("Log", [
            ("id", models.AutoField(primary_key=True)), ("text", models.CharField(max_length=9)),
        ]),
        migrations.RunPython(each_in_its_own),
    ]
"""
MORE_APPS = " ".join(
    f"django.contrib.{app}"
    for app in ("admin", "auth", "contenttypes", "flatpages", "messages", "redirects", "sessions", "sites")
)
MANAGE = """
import os, sys
from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
execute_from_command_line(sys.argv)
"""


class Deployment:
    """A project, its database, and the processes that migrate it."""

    def __init__(self, where: Path, url: str, redis: RedisServer) -> None:
        self.where = where
        self.redis = redis
        self.environment = {**os.environ, "SHOP_DATABASE": url, "FENCING_URL": redis.url, "PYTHONPATH": str(ROOT)}
        self.started: list[subprocess.Popen[str]] = []
        (where / "shop" / "migrations").mkdir(parents=True)
        for name, text in {
            "manage.py": MANAGE,
            "shop/__init__.py": "",
            "shop/settings.py": SETTINGS,
            "shop/locks.py": LOCKS,
            "shop/models.py": MODELS,
            "shop/migrations/__init__.py": "",
            "shop/migrations/0001_first.py": FIRST,
            "shop/migrations/0002_bonus.py": BONUS.format(number=2, before="0001_first"),
            "shop/migrations/0003_bonus.py": BONUS.format(number=3, before="0002_bonus"),
        }.items():
            (where / name).write_text(text, "utf-8")

    def add_migration(self, name: str, text: str) -> None:
        (self.where / "shop" / "migrations" / f"{name}.py").write_text(text, "utf-8")

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=self.where,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **environment: str) -> str:
        said, code = finish(self.start(*arguments, **environment))
        assert code == 0, said
        return said

    @property
    def balance(self) -> Any:
        with connections["shop"].cursor() as cursor:
            cursor.execute("SELECT balance FROM shop_account")
            return cursor.fetchone()[0]

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


def finish(process: subprocess.Popen[str]) -> tuple[str, int]:
    said, _ = process.communicate(timeout=300)
    return said, process.returncode


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path, any_redis: RedisServer) -> Iterator[Deployment]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/data.db"
    else:
        url = request.getfixturevalue(f"{request.param}_url")
    made = Deployment(tmp_path, url, any_redis)
    with added("shop", url):
        try:
            yield made
        finally:
            made.close()


@pytest.mark.thorough
def test_three_processes_apply_a_migration_once(deployment: Deployment) -> None:
    three = [deployment.start("locked_migrate") for _ in range(3)]
    said = [finish(each) for each in three]
    assert [code for _, code in said] == [0, 0, 0], said
    assert sorted("No migrations to apply" in text for text, _ in said) == [False, True, True]
    assert deployment.balance == 200


@pytest.mark.thorough
@pytest.mark.parametrize("deployment", ["postgres"], indirect=True)
def test_without_the_lock_a_migration_is_applied_by_each(deployment: Deployment) -> None:
    """The failure that the lock prevents: all of them see the migration missing."""
    deployment.run("migrate", "shop", "0001")
    three = [deployment.start("migrate", "shop", "0002", MEET="3") for _ in range(3)]
    said = [finish(each) for each in three]
    assert [code for _, code in said] == [0, 0, 0], said
    assert deployment.balance == 300


@pytest.mark.thorough
@pytest.mark.parametrize("deployment", ["postgres"], indirect=True)
def test_a_process_that_was_frozen_in_a_checked_transaction_ends_it_and_goes_no_further(deployment: Deployment) -> None:
    frozen, second = take_the_lock_from_one_that_freezes(deployment, "2 behind")
    wait_until(waits_for_a_lock, timeout=60)
    os.kill(frozen.pid, signal.SIGCONT)
    assert_refused(frozen)
    said, code = finish(second)
    assert code == 0, said
    assert "Applying shop.0003_bonus" in said
    assert "Applying shop.0002_bonus" not in said
    assert deployment.balance == 200


@pytest.mark.thorough
def test_a_process_that_was_frozen_before_its_check_is_refused(deployment: Deployment) -> None:
    frozen, second = take_the_lock_from_one_that_freezes(deployment, "2")
    said, code = finish(second)
    assert code == 0, said
    assert deployment.balance == 200
    os.kill(frozen.pid, signal.SIGCONT)
    assert_refused(frozen)
    assert deployment.balance == 200


@pytest.mark.thorough
def test_a_fresh_project_with_the_apps_of_django_is_migrated_once(deployment: Deployment) -> None:
    said = deployment.run("locked_migrate", MORE_APPS=MORE_APPS)
    for last in "admin.0003", "auth.0012", "flatpages.0001", "redirects.0002", "sessions.0001", "sites.0002":
        assert f"Applying {last}" in said
    assert "No migrations to apply" in deployment.run("locked_migrate", MORE_APPS=MORE_APPS)
    assert "No planned migration operations" in deployment.run("migrate", "--plan", MORE_APPS=MORE_APPS)


@pytest.mark.thorough
@pytest.mark.parametrize("deployment", ["postgres", "sqlite"], indirect=True)
def test_a_statement_outside_a_transaction_returns_its_rows(deployment: Deployment) -> None:
    deployment.add_migration("0004_log", ONE_BY_ONE)
    assert "Applying shop.0004_log... OK" in deployment.run("locked_migrate")
    assert "No migrations to apply" in deployment.run("locked_migrate")


@pytest.mark.thorough
@pytest.mark.parametrize("deployment", ["postgres", "sqlite"], indirect=True)
def test_a_process_that_was_frozen_before_a_note_of_its_own_leaves_the_migration_without_it(
    deployment: Deployment,
) -> None:
    """The limit that the page names, and its way out."""
    deployment.add_migration("0004_orders", ORDERS)
    frozen, second = take_the_lock_from_one_that_freezes(deployment, "before the note", "0003")
    said, code = finish(second)
    assert code == 1
    assert "already exists" in said
    os.kill(frozen.pid, signal.SIGCONT)
    assert_refused(frozen)
    assert "[ ] 0004_orders" in deployment.run("showmigrations", "shop")
    assert "Applying shop.0004_orders... FAKED" in deployment.run("locked_migrate", "--fake", "shop", "0004")
    assert "No migrations to apply" in deployment.run("locked_migrate")


def take_the_lock_from_one_that_freezes(
    deployment: Deployment, where: str, first: str = "0001"
) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    deployment.run("locked_migrate", "shop", first)
    frozen = deployment.start("locked_migrate", FREEZE=where)
    os.waitid(os.P_PID, frozen.pid, os.WSTOPPED | os.WNOWAIT)
    with fencing.connect(deployment.redis.url) as coordinator:
        wait_until(lambda: coordinator.holder("migrate:default") is None, timeout=60)
    return frozen, deployment.start("locked_migrate", "--wait", "120")


def assert_refused(process: subprocess.Popen[str]) -> None:
    said, code = finish(process)
    assert code == 1
    assert "lost the lock 'migrate:default', so it migrates no further" in said


def waits_for_a_lock() -> bool:
    with connections["shop"].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return bool(cursor.fetchone()[0])


@pytest.mark.thorough
@pytest.mark.parametrize("deployment", ["postgres"], indirect=True)
def test_a_process_that_waits_too_long_says_so(deployment: Deployment) -> None:
    with fencing.connect(deployment.redis.url) as coordinator, coordinator.hold("migrate:default"):
        said, code = finish(deployment.start("locked_migrate", "--wait", "0.1"))
    assert code == 1
    assert "another process has not finished its migration within 0.1 s" in said
