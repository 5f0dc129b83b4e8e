"""Names of objects as keys in real stores: a reader of partitions finds the values in them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from obstore.store import MemoryStore

from fencing import Fence
from storage_guards import ObjectStoreGuard
from storage_guards.objects.keys import Directory, escape
from tests.support.object_guards import PublicationDesk as Desk

R = "orders:1"
A, B = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)

PLAIN = ("year=2026/month=11/part-0.parquet", "year=2026/city=S%C3%A3o%20Paulo/part-0.parquet", "a!*'()=%_-.b/x")
ESCAPED = {"city=São Paulo/x+y.csv": "!escaped/city=S%C3%A3o%20Paulo/x%2By.csv", "/~": "!escaped/%/%7E"}


def keys_in(desk: Desk) -> list[str]:
    return [each["path"] for page in desk.store.list("fencing/orders=3A1/data/") for each in page]


@pytest.mark.thorough
def test_partitions_keep_their_names(http: Desk) -> None:
    objects = {name: name.encode() for name in (*PLAIN, *ESCAPED)}
    http.publish(A, objects, claim=True)
    assert sorted(key.partition("/~/")[2] for key in keys_in(http)) == sorted([*PLAIN, *ESCAPED.values()])
    assert http.current == objects
    [found] = http.call(http.guard.history, R)
    assert set(found.sizes) == set(objects)
    http.call(http.guard.delete, B, claim=True)
    [collected] = http.call(http.guard.collect, B)
    assert collected.sizes == found.sizes
    assert keys_in(http) == []


def test_a_reserved_name_is_refused(desk: Desk) -> None:
    desk.publish(A, {"x": b"1"}, claim=True)
    assert "reserved" in desk.refused(ValueError, A, {"x": b"2", "!escaped/x": b"3"})


def earlier_data_key(fence: Fence, upload: str, name: str) -> str:
    parts = ("=" if part == "" else escape(part) for part in name.split("/"))
    return f"data/{fence.number:016d}.{fence.token}/{upload}/{'/'.join(parts)}"


def test_what_an_earlier_version_has_stored_is_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"year=2026/ä b.csv": b"1", "!escaped/x": b"2", "/": b"3"}
    with monkeypatch.context() as earlier:
        earlier.setattr(Directory, "data_key", staticmethod(earlier_data_key))
        earlier.setattr("storage_guards.objects.base.check_new_name", lambda name: name)
        desk.publish(A, stored, claim=True)
    assert any("year=3D2026/=C3=A4=20b.csv" in key for key in keys_in(desk))
    assert desk.current == stored
    current = desk.call(desk.guard.read, R)
    desk.publish(A, {**current, "new": b"4"}, replacing=current)
    assert desk.current == {**stored, "new": b"4"}, "carried over, with their keys"
    names = [set(found.sizes) for found in desk.call(desk.guard.history, R)]
    assert sorted(names, key=len) == [{"new"}, set(stored)]


@pytest.mark.thorough
def test_duckdb_reads_the_values_of_partitions(tmp_path: Path) -> None:
    """Names as programs write partitions: escaped by them, by half, or not at all."""
    duckdb = pytest.importorskip("duckdb", reason="no DuckDB, 70 MB: pip install duckdb")
    store, fence = MemoryStore(), Fence("sales", 1, "a" * 22)
    cities = {}
    for city in ("São Paulo", "50%", "a=b", "it's", "Aix"):
        half = city.replace("%", "%25").replace("=", "%3D")
        for each in (half, half.replace(" ", "%20"), quote(city)):
            cities[f"year=2026/city={each}/part.csv"] = city
    published = ObjectStoreGuard(store).publish(fence, dict.fromkeys(cities, b"total\n7\n"), claim=True)
    for name, city in cities.items():
        path = tmp_path / published[name].key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(store.get(f"fencing/sales/{published[name].key}").bytes()))
        rows = duckdb.read_csv(str(path), hive_partitioning=True)
        assert rows.project("year, city, total").fetchall() == [(2026, city, 7)], name
