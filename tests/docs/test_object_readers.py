"""The examples of docs/guards/object-readers.md run on an S3."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import fsspec
import pytest
from obstore.store import MemoryStore

from examples.servers import S3Server
from fencing import Fence
from storage_guards import FencedFileSystem, ObjectStoreGuard
from tests.support.object_copies import on_disk
from tests.support.object_guards import probed

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guards" / "object-readers.md").read_text("utf-8")
FENCE = Fence("sales", 1, "a" * 22)
ROWS = 100

pytestmark = pytest.mark.thorough


def objects() -> dict[str, bytes]:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    packed = io.BytesIO()
    parquet.write_table(pyarrow.table({"total": [1.5] * ROWS}), packed)
    return {f"year=2026/month={month}/part-0.parquet": packed.getvalue() for month in (10, 11)}


@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # of Dask, with pandas 3.1
def test_the_examples_work(s3_server: S3Server) -> None:
    for package in ("dask.dataframe", "duckdb", "pandas", "polars"):
        pytest.importorskip(package)
    fsspec.register_implementation("fenced", FencedFileSystem, clobber=True)
    bucket = s3_server.new_bucket()
    store = s3_server.store(bucket=bucket)
    probed(ObjectStoreGuard(store), s3_server).publish(FENCE, objects(), claim=True)
    page = PAGE.replace('S3Store("acme-data", region="eu-central-1")', "my_store").replace(
        '"s3://acme-data", "region": "eu-central-1"', f'"s3://{bucket}", **my_options'
    )
    options = {"region": "us-east-1", "endpoint": s3_server.url, "access_key_id": "x", "secret_access_key": "x"}
    names: dict[str, Any] = {"my_store": store, "my_options": {**options, "client_options": {"allow_http": True}}}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        assert not re.search(r'S3Store\(|: "s3://acme-data"', block), "the store is one of this test"
        exec(compile(block, "object-readers.md", "exec"), names)
    assert names["urls"][1].startswith(f"s3://{bucket}/fencing/sales/data/")
    assert names["urls"][1].endswith("/~/year=2026/month=11/part-0.parquet")
    assert names["table"]["total"].sum() == names["total"] == 3.0 * ROWS
    assert (names["november"].num_rows, names["rows"]) == (ROWS, ROWS)
    assert dict(names["by_month"]) == {10: 1.5 * ROWS, 11: 1.5 * ROWS}
    assert names["lazy"].collect()["total"].sum() == 3.0 * ROWS
    probed(names["guard"], s3_server)
    names["write_symlinks"](FENCE, names["current"])
    assert bytes(store.get("athena/sales/manifest").bytes()).decode().split() == names["urls"]


def test_the_sql_works(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    store = MemoryStore()
    probed(ObjectStoreGuard(store)).publish(FENCE, objects(), claim=True)
    on_disk(store, tmp_path)
    [sql] = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    variable, query = sql.replace("s3://acme-data", str(tmp_path)).split(";\n")[:2]
    connection = duckdb.connect()
    connection.execute(variable)
    assert connection.execute(query).fetchall() == [(3.0 * ROWS,)]


def test_the_tried_versions_are_those_that_are_installed() -> None:
    for package, name in (("duckdb", "DuckDB"), ("pandas", "pandas"), ("pyarrow", "pyarrow"), ("polars", "Polars")):
        version = pytest.importorskip(package).__version__
        [stated] = re.findall(rf"\| .*\b{name} ([0-9.]*[0-9]).*`make thorough`, through", PAGE)
        assert version.split(".")[0] == stated.split(".")[0], f"{name} {version}: try it, and change the page"
