"""gevent: after ``monkey.patch_all()``, locks, waits in order, renewal and guards work, before or after the import."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.servers import RedisServer
from tests.runtimes import greenlets

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("when", ["first", "late"])
@pytest.mark.parametrize("story", [*greenlets.STORIES, "redlock", "threadpool"])
def test_a_story(when: str, story: str, request: pytest.FixtureRequest) -> None:
    greenlets.require("gevent")
    assert greenlets.play("gevent", when, story, request) == f"{story}: played\n"


def test_a_handler_of_greenlets_beside_threads_is_refused() -> None:
    greenlets.require("gevent")
    said = greenlets.refusal_without_patch("gevent")
    assert said.count("patch the threads first") == 2, said


def test_celery(any_redis: RedisServer, postgres_url: str, tmp_path: Path) -> None:
    greenlets.require("gevent", "celery")
    greenlets.run_celery("gevent", any_redis, postgres_url, tmp_path)


@pytest.mark.parametrize("preload", [False, True], ids=["each worker imports", "preload"])
def test_gunicorn(preload: bool, any_redis: RedisServer, postgres_url: str, tmp_path: Path) -> None:
    greenlets.require("gevent", "gunicorn")
    greenlets.run_gunicorn(preload, any_redis, postgres_url, tmp_path)
