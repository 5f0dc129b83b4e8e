"""eventlet: after ``monkey_patch()``, which comes first, locks, waits in order, renewal and guards work.

Patched late it takes ``select.poll`` away, which redis-py needs. gunicorn 27 has no workers of eventlet any more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.servers import RedisServer
from tests.runtimes import greenlets

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("story", greenlets.STORIES)
def test_a_story(story: str, request: pytest.FixtureRequest) -> None:
    greenlets.require("eventlet")
    assert greenlets.play("eventlet", "first", story, request) == f"{story}: played\n"


def test_a_handler_of_greenlets_beside_threads_is_refused() -> None:
    greenlets.require("eventlet")
    said = greenlets.refusal_without_patch("eventlet")
    assert said.count("patch the threads first") == 2, said


def test_celery(any_redis: RedisServer, postgres_url: str, tmp_path: Path) -> None:
    greenlets.require("eventlet", "celery")
    greenlets.run_celery("eventlet", any_redis, postgres_url, tmp_path)
