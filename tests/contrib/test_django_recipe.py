"""docs/recipes/django.md: its code is a project, whose own tests run on each database."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connections

from examples.servers import RedisServer
from tests.support.django_project import added, database

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/recipes/django.md").read_text("utf-8")

SETTINGS = """
import os

from tests.support.django_project import added, database

DATABASES = {"default": database(os.environ["SHOP_DATABASE"])}
DATABASES["default"]["TEST"] = {"NAME": os.environ.get("SHOP_TEST_DATABASE")}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "shop"]
ROOT_URLCONF = "shop.urls"
SECRET_KEY = "of tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""
MODELS = """
from django.db import models

class Product(models.Model):
    left = models.IntegerField()
"""
URLS = """
from django.db import transaction
from django.urls import path
from shop import views

urlpatterns = [
    path("buy/<int:pk>", views.buy),
    path("buy_in_the_request/<int:pk>", transaction.atomic(views.buy_in_the_request)),
]
"""
MANAGE = """
import os, sys
from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
execute_from_command_line(sys.argv)
"""


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def environment(request: pytest.FixtureRequest, tmp_path: Path, any_redis: RedisServer) -> Iterator[dict[str, str]]:
    blocks = dict(re.findall(r"```python\n# (shop/\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
    assert set(blocks) == {f"shop/{name}.py" for name in ("settings", "locks", "views", "tests")}
    (tmp_path / "shop").mkdir()
    made = {"shop/__init__.py": "", "shop/models.py": MODELS, "shop/urls.py": URLS, "manage.py": MANAGE, **blocks}
    made["shop/settings.py"] = SETTINGS + blocks["shop/settings.py"]
    for name, text in made.items():
        (tmp_path / name).write_text(text, "utf-8")
    url = f"sqlite:///{tmp_path}/data.db"
    if request.param != "sqlite":
        url = request.getfixturevalue(f"{request.param}_url")
    yield {**os.environ, "SHOP_DATABASE": url, "FENCING_URL": any_redis.url, "PYTHONPATH": str(ROOT)}
    if request.param == "mariadb":  # whose foreign keys stand in the way of the next test
        with added("emptied", url), connections["emptied"].cursor() as cursor:
            cursor.execute("SET foreign_key_checks = 0")
            for table in connections["emptied"].introspection.table_names():
                cursor.execute(f"DROP TABLE `{table}`")


def manage(environment: dict[str, str], where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.thorough
def test_the_projects_own_tests(environment: dict[str, str], tmp_path: Path) -> None:
    options = ["--noinput"]
    if "mysql" in environment["SHOP_DATABASE"]:  # where the test may create no other database
        environment["SHOP_TEST_DATABASE"] = database(environment["SHOP_DATABASE"])["NAME"]
        options = ["--keepdb"]
    done = manage(environment, tmp_path, "test", *options)
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr
    assert manage(environment, tmp_path, "makemigrations", "--check", "fencing").returncode == 0
