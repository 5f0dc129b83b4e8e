"""The app in Django, in a process on SQLite: its pages of the admin, its checks, and its messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys, types

from fencing import AsyncMemoryCoordinator, MemoryCoordinator
from tests.support.django_project import configure, database

urls = types.ModuleType("urls")
locks = types.ModuleType("locks")
sys.modules.update(urls=urls, locks=locks)
configure(
    DATABASES={"default": database(f"sqlite:///{sys.argv[1]}/data.db")},
    INSTALLED_APPS=["django.contrib." + name for name in ("admin", "auth", "contenttypes", "sessions", "messages")],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
        "context_processors": [
            "django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]}}],
    ROOT_URLCONF="urls",
    STATIC_URL="/static/",
    FENCING_COORDINATOR="locks.coordinator",
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
)
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client, override_settings
from django.urls import path

from fencing.contrib.django import DjangoGuard
from fencing.contrib.django.checks import check_coordinator, check_tables

urls.urlpatterns = [path("admin/", admin.site.urls)]
guard = DjangoGuard()
locks.coordinator = MemoryCoordinator(guards=[guard])
locks.asynchronous = AsyncMemoryCoordinator()

[missing] = check_tables(None, ["default"])
assert missing.id == "fencing.W001" and "run manage.py migrate" in missing.msg, missing
call_command("migrate", verbosity=0)
assert check_tables(None, ["default"]) == []
call_command("makemigrations", "--check", "fencing", verbosity=0)
call_command("migrate", "fencing", "zero", verbosity=0)  # leaves the marks
assert check_tables(None, ["default"]) == []
call_command("migrate", verbosity=0)

assert check_coordinator(None) == []
for wrong, said in (
    ("locks.asynchronous", "name a sync coordinator"),
    ("locks.nothing", "leads to nothing"),
    ("nothing.at.all", "leads to nothing"),
):
    with override_settings(FENCING_COORDINATOR=wrong):
        [error] = check_coordinator(None)
        assert error.id == "fencing.E001" and said in error.msg, error

def client_of(name, *permissions):
    user = User.objects.create_user(name, password="p", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client

stranger, reader = client_of("a"), client_of("b", "view_mark", "view_lock")
forcer = client_of("c", "view_lock", "force_release")
lease = locks.coordinator.acquire("orders:<42>")
with guard.begin(lease):
    pass
marks, page = "/admin/fencing/mark/", "/admin/fencing/lock/"
assert stranger.get(page).status_code == stranger.get(marks).status_code == 403
shown = reader.get(marks).content.decode()
assert "orders:&lt;42&gt;" in shown and str(lease.fence.number) in shown and "fencing:floor" not in shown
assert "1 mark" in reader.get(marks + "?q=orders").content.decode()
assert reader.get(marks + "add/").status_code == 403
one = reader.get(marks + "orders_3A_3C42_3E/change/")
assert one.status_code == 200 and b'name="_save"' not in one.content
shown = reader.get(page).content.decode()
assert "orders:&lt;42&gt;" in shown and "Force release" not in shown
assert "No lock is held" in reader.get(page + "?pattern=other:*").content.decode()
sent = {"resource": "orders:<42>", "number": str(lease.fence.number)}
assert reader.post(page, sent).status_code == 403
assert lease.held
assert "Force release" in forcer.get(page).content.decode()
said = forcer.post(page, {**sent, "number": "5"}, follow=True).content.decode()
assert "has another holder by now; nothing was done" in said
assert "5" not in forcer.post(page, {**sent, "number": "x"}, follow=True).redirect_chain
assert locks.coordinator.holder("orders:<42>") is not None
said = forcer.post(page, sent, follow=True).content.decode()
assert "is free; its guards refuse the former holder" in said, said
assert locks.coordinator.holder("orders:<42>") is None
try:
    with guard.begin(lease):
        raise AssertionError("a forced out holder was admitted")
except Exception as error:
    assert type(error).__name__ in ("StaleFence", "LeaseLost"), error
with override_settings(FENCING_COORDINATOR=None):
    assert "FENCING_COORDINATOR is not set" in reader.get(page).content.decode()
locks.coordinator.close()
print("done")
"""


@pytest.mark.thorough
def test_the_admin_and_the_checks(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout[-5:]) == (0, "done\n"), done.stderr


def test_without_django_the_import_says_what_to_install() -> None:
    code = """
import sys

class Absent:
    def find_spec(name, *_):
        if name.partition(".")[0] == "django":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent)
try:
    from fencing.contrib.django import DjangoGuard
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "DjangoGuard needs django, which is not installed: install fencing with the extra [django]" in done.stdout
