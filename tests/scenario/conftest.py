"""Both colours, so that a story is told once and tested twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from fencing import AsyncRedisCoordinator, RedisCoordinator
from fencing.contract import Contract


class Side(Contract):
    """Makes coordinators of one colour; ``call`` runs their methods, whatever the colour. Closes what it made."""

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.made: list[Any] = []

    def client(self, url: str, **options: Any) -> Any:
        return (redis.asyncio.Redis if self.asynchronous else redis.Redis).from_url(url, **options)

    def coordinator(self, url_or_client: Any, **settings: Any) -> Any:
        client = self.client(url_or_client) if isinstance(url_or_client, str) else url_or_client
        made = (AsyncRedisCoordinator if self.asynchronous else RedisCoordinator)(client, **settings)
        self.made.append(made)
        return made


@pytest.fixture(params=["sync", "async"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    side = Side(request.param == "async")
    yield side
    for coordinator in side.made:
        side.call(coordinator.close)
