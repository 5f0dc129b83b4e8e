"""pyarrow, pandas and others write straight into a publication."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest
from obstore.store import MemoryStore

from fencing import Fence
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.sides import Side

pytestmark = pytest.mark.thorough
pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")
pq = pytest.importorskip("pyarrow.parquet")
pd = pytest.importorskip("pandas")
pytest.importorskip("fsspec")

A = Fence("sales", 1, "a" * 22)


@pytest.fixture
def guard() -> Any:
    guard = Desk(Side(False), MemoryStore()).guard
    guard.claim(A)
    return guard


def table(month: int, rows: int = 3) -> Any:
    return pa.table({"month": [month] * rows, "total": list(range(month, month + rows))})


def write(new: Any, data: Any, **options: Any) -> None:
    ds.write_dataset(
        data,
        "",
        filesystem=new.filesystem(),
        format="parquet",
        partitioning=["month"],
        partitioning_flavor="hive",
        **options,
    )


def read(guard: Any) -> dict[str, list[int]]:
    """The totals in each file of the current publication."""
    current = guard.read("sales")
    return {
        name: pq.read_table(pa.BufferReader(data)).column("total").to_pylist()
        for name, data in sorted(current.read_all().items())
    }


def test_pyarrow_writes_a_partitioned_dataset(guard: Any) -> None:
    with guard.publishing(A) as new:
        write(new, pa.concat_tables([table(1), table(2)]))
        assert guard.read("sales") is None, "not yet"
    assert read(guard) == {"month=1/part-0.parquet": [1, 2, 3], "month=2/part-0.parquet": [2, 3, 4]}


def test_pyarrow_replaces_the_partitions_that_it_writes(guard: Any) -> None:
    with guard.publishing(A) as new:
        write(new, pa.concat_tables([table(1), table(11), table(2)]), basename_template="old-{i}.parquet")
    with guard.publishing(A, keeping=guard.read("sales")) as new:
        write(new, table(1, 1), existing_data_behavior="delete_matching")
    assert read(guard) == {
        "month=1/part-0.parquet": [1],
        "month=11/old-0.parquet": [11, 12, 13],
        "month=2/old-0.parquet": [2, 3, 4],
    }


def test_pyarrow_appends(guard: Any) -> None:
    with guard.publishing(A) as new:
        write(new, table(1))
    with guard.publishing(A, keeping=guard.read("sales")) as new:
        write(new, table(1, 1), existing_data_behavior="overwrite_or_ignore", basename_template="run2-{i}.parquet")
    assert read(guard) == {"month=1/part-0.parquet": [1, 2, 3], "month=1/run2-0.parquet": [1]}


def test_a_table_of_many_parts(guard: Any) -> None:
    """More than one part, of bytes that do not compress."""
    import os

    rows = 40
    big = pa.table({"total": list(range(rows)), "bytes": [os.urandom(500_000) for _ in range(rows)]})
    with guard.writer(A, "big.parquet") as file:
        pq.write_table(big, file, row_group_size=4)
    current = guard.read("sales")
    assert current["big.parquet"].size > 20_000_000
    assert pq.read_table(pa.BufferReader(current.read("big.parquet"))).equals(big)


def test_a_dataset_that_fails_is_not_published(guard: Any) -> None:
    def batches() -> Any:
        yield from table(1).to_batches()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), guard.publishing(A) as new:
        write(new, batches(), schema=table(1).schema)
    assert guard.read("sales") is None


def test_pandas_writes_parquet_and_csv(guard: Any) -> None:
    frame = pd.DataFrame({"month": [1, 1, 2], "total": [10, 20, 30]})
    with guard.publishing(A) as new:
        frame.to_parquet("whole.parquet", filesystem=new.filesystem())
        frame.to_parquet("by_month", filesystem=new.filesystem(), partition_cols=["month"])
        with new.open("total.csv", content_type="text/csv") as file:
            frame.to_csv(file, index=False)
    current = guard.read("sales")
    assert {name.rpartition("/")[0] for name in current} == {"", "by_month/month=1", "by_month/month=2"}
    assert current.read("total.csv") == b"month,total\n1,10\n1,20\n2,30\n"
    assert pd.read_parquet(io.BytesIO(current.read("whole.parquet"))).equals(frame)


def test_a_zip_archive(guard: Any) -> None:
    with guard.writer(A, "all.zip") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", b"1")
        archive.writestr("b", b"2")
    with zipfile.ZipFile(io.BytesIO(guard.read("sales").read("all.zip"))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"a": b"1", "b": b"2"}


def test_the_files_of_a_publication_in_the_making(guard: Any) -> None:
    guard.publish(A, {"a/1": b"1", "a/2": b"2", "b": b"3"})
    with guard.publishing(A, keeping=guard.read("sales")) as new:
        files = new.filesystem()
        assert files.ls("", detail=False) == ["a", "b"]
        assert files.ls("/a/", detail=False) == ["a/1", "a/2"]
        assert (files.isdir("a"), files.isfile("b"), files.exists("c")) == (True, True, False)
        assert files.find("") == ["a/1", "a/2", "b"]
        with pytest.raises(FileNotFoundError):
            files.ls("c")
        with pytest.raises(io.UnsupportedOperation):
            files.open("b", "rb")
        files.rm("a/1")
        with files.open("a/2", "wb") as file:
            file.write(b"22")
        with files.open("c/text", "w") as file:
            file.write("ä")
    current = guard.read("sales")
    assert current.read_all() == {"a/2": b"22", "b": b"3", "c/text": b"\xc3\xa4"}
