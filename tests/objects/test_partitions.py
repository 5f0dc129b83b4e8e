"""Names of objects as keys in real stores: a reader of partitions finds the values in them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from obstore.store import MemoryStore

from fencing import Fence
from storage_guards import ObjectStoreGuard
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
    names = [key.partition("/~/")[2] for key in keys_in(http) if "/~/" in key]
    assert sorted(names) == sorted([*PLAIN, *ESCAPED.values()])
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
