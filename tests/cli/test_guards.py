"""The guards of URLs."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine

from examples.servers import RedisServer
from fencing import Fence, StaleFence
from fencing.cli.guards import guard_of
from storage_guards import SQLAlchemyGuard

OLD, NEW = (Fence("urls", number, str(number) * 22) for number in (1, 2))


def refuses_a_stale_fence(url: str) -> None:
    one, two = guard_of(url), guard_of(url)
    one.claim(NEW)
    with pytest.raises(StaleFence):
        two.claim(OLD)


def test_a_file_of_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/data.db"
    SQLAlchemyGuard(create_engine(url)).create_tables()
    refuses_a_stale_fence(url)


def test_redis(any_redis: RedisServer) -> None:
    refuses_a_stale_fence(any_redis.url)


def test_a_folder(tmp_path: Path) -> None:
    refuses_a_stale_fence(f"file://{tmp_path}")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("etcd://me:s3cr3t@h", r"'etcd://me:\*\*\*@h' is no URL of a guard; their schemes are postgresql, mysql"),
        ("file://folder", "names no folder: three slashes"),
        ("file://me:s3cr3t@host/x", r"'file://me:\*\*\*@host/x' names no folder"),
        ("s3://", "is no URL of a bucket"),
        ("nothing", "is no URL: write its scheme first"),
    ],
)
def test_what_is_no_guard(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        guard_of(url)
