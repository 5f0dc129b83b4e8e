"""docs/guide/slots.md: its code runs as it stands."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from fencing import AsyncCoordinator, AsyncMemoryCoordinator, MemoryCoordinator, NotAcquired, StaleFence
from storage_guards import SQLAlchemyGuard

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "slots.md").read_text("utf-8")
HOLD, SHARED, ASYNCIO, OUT_OF_USE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def database(folder: Path, *statements: str) -> tuple[Engine, SQLAlchemyGuard]:
    """Return a database in which these statements have run, and its guard."""
    engine = create_engine(f"sqlite:///{folder}/data.db")
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    return engine, guard


def test_what_holders_share_is_said_first() -> None:
    assert PAGE.split("\n\n")[1].startswith("**Slots do not protect data that their holders share.**")


def test_the_write_of_a_holder_is_checked_by_its_slot(tmp_path: Path) -> None:
    engine, guard = database(
        tmp_path,
        "CREATE TABLE devices (slot INTEGER PRIMARY KEY, job INTEGER)",
        "INSERT INTO devices VALUES (0, 0), (1, 0), (2, 0), (3, 0)",
    )
    with MemoryCoordinator(guards=[guard]) as coordinator:
        names: dict[str, Any] = {"coordinator": coordinator, "guard": guard, "text": text}
        exec(HOLD, names)
        late = names["lease"]
        with engine.connect() as connection:
            jobs = connection.execute(text("SELECT slot FROM devices WHERE job = 7")).scalars().all()
        assert jobs == [late.slot]
        leases = [coordinator.slots("gpu", 4).acquire(timeout=5) for _ in range(4)]
        with pytest.raises(StaleFence):
            guard.write(late.fence, text("UPDATE devices SET job = 8"))
        for lease in leases:
            guard.write(lease, text("UPDATE devices SET job = 9 WHERE slot = :slot"), {"slot": lease.slot})
            lease.release()


def test_what_holders_share_has_a_lock_of_its_own(tmp_path: Path) -> None:
    engine, guard = database(
        tmp_path,
        "CREATE TABLE jobs (job INTEGER PRIMARY KEY, slot INTEGER)",
        "INSERT INTO jobs VALUES (7, NULL), (8, NULL)",
    )
    with MemoryCoordinator(guards=[guard]) as coordinator:
        names: dict[str, Any] = {"coordinator": coordinator, "guard": guard, "text": text}
        exec(SHARED, names)
        exec(SHARED, names)
        for lease in (names["gpu"], names["queue"]):
            mark = guard.mark(lease.fence.resource)
            assert mark is not None
            assert mark.is_of(lease.fence)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(slot) FROM jobs")).scalar_one() == 2


def test_with_asyncio() -> None:
    names: dict[str, Any] = {"AsyncCoordinator": AsyncCoordinator}
    exec(ASYNCIO, names)

    async def main() -> list[int]:
        async with AsyncMemoryCoordinator() as coordinator:
            return [await names["render"](coordinator) for _ in range(3)]

    assert set(asyncio.run(main())) <= {0, 1, 2, 3}


def test_a_slot_out_of_use_is_given_to_nobody() -> None:
    with MemoryCoordinator() as coordinator:
        names: dict[str, Any] = {"coordinator": coordinator}
        exec(OUT_OF_USE, names)
        *leases, nothing = names["others"]
        assert sorted(lease.slot for lease in leases) == [0, 1, 2]
        assert nothing is None
        with pytest.raises(NotAcquired):
            coordinator.slots("gpu", 3).acquire(timeout=0)
        for lease in leases:
            lease.release()
