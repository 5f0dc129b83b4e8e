"""Programs that read tables see exactly one publication: through fsspec, by URLs, and by the pointer alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import fsspec
import pytest
from obstore.store import LocalStore, MemoryStore

from examples.servers import S3Server
from fencing import Fence, StaleRead
from storage_guards import FencedFileSystem, ObjectStoreGuard
from tests.support.object_copies import on_disk
from tests.support.object_guards import probed

pytestmark = pytest.mark.thorough

duckdb = pytest.importorskip("duckdb")
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")
dataset = pytest.importorskip("pyarrow.dataset")
parquet = pytest.importorskip("pyarrow.parquet")

R = "sales"
OLD, NEW = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)
ROWS = 1000
CITIES = ("Aix", "São Paulo", "50%", "a=b")


def table(value: int) -> bytes:
    packed = io.BytesIO()
    columns = {"n": [value] * ROWS, "text": [f"{row:01000d}" for row in range(ROWS)]}
    parquet.write_table(pyarrow.table(columns), packed, compression="none", row_group_size=100)
    return packed.getvalue()


def partitions(value: int, cities: tuple[str, ...] = CITIES) -> dict[str, bytes]:
    data = table(value)
    return {f"year=2026/city={quote(city)}/part-{part}.parquet": data for city in cities for part in range(2)}


class Desk:
    """A publication on disk, which reads are of, and one that replaces it while they are under way."""

    def __init__(self, folder: Path) -> None:
        self.memory = MemoryStore()
        self.folder = folder
        self.writer = probed(ObjectStoreGuard(self.memory))
        self.publish(OLD, partitions(1))
        self.current: Any = ObjectStoreGuard(LocalStore(folder)).read(R)
        self.files: Any = FencedFileSystem(self.current)

    def publish(self, fence: Fence, objects: dict[str, bytes]) -> None:
        self.writer.publish(fence, objects, claim=True)
        on_disk(self.memory, self.folder)

    @property
    def options(self) -> dict[str, Any]:
        return {"store": f"file://{self.folder}"}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    fsspec.register_implementation("fenced", FencedFileSystem, clobber=True)
    return Desk(tmp_path)


def with_duckdb(desk: Desk) -> tuple[int, set[str]]:
    connection = duckdb.connect()
    connection.register_filesystem(desk.files)
    found = connection.sql(
        "select sum(n), list(distinct city) from read_parquet('fenced://sales/**/*.parquet', hive_partitioning=true)"
    ).fetchall()[0]
    return int(found[0]), set(found[1])


def with_duckdb_by_urls(desk: Desk) -> tuple[int, set[str]]:
    urls = [unquote(urlsplit(url).path) for url in desk.current.urls().values()]  # it decodes no URL of a file
    found = duckdb.execute(
        "select sum(n), list(distinct city) from read_parquet($urls, hive_partitioning=true)", {"urls": urls}
    ).fetchall()[0]
    return int(found[0]), set(found[1])


def with_pyarrow(desk: Desk) -> tuple[int, set[str]]:
    found = dataset.dataset("sales/", filesystem=desk.files, partitioning="hive").to_table(columns=["n", "city"])
    return sum(found["n"].to_pylist()), set(found["city"].to_pylist())


def with_pyarrow_by_file(desk: Desk) -> tuple[int, set[str]]:
    total = sum(sum(parquet.read_table(desk.current.open(name))["n"].to_pylist()) for name in desk.current)
    return total, set(CITIES)


def with_pandas(desk: Desk) -> tuple[int, set[str]]:
    found = pandas.read_parquet("fenced://sales/", storage_options={"publication": desk.current})
    return int(found["n"].sum()), set(found["city"].astype(str))


def with_polars(desk: Desk) -> tuple[int, set[str]]:
    scanned = polars.scan_pyarrow_dataset(dataset.dataset("sales/", filesystem=desk.files, partitioning="hive"))
    found = scanned.select("n", "city").collect()
    return int(found["n"].sum()), set(found["city"])


def with_polars_by_urls(desk: Desk) -> tuple[int, set[str]]:
    found = polars.scan_parquet(list(desk.current.urls().values()), hive_partitioning=True).collect()
    return int(found["n"].sum()), set(found["city"])


READERS = {
    reader.__name__.removeprefix("with_"): reader
    for reader in (
        with_duckdb,
        with_duckdb_by_urls,
        with_pyarrow,
        with_pyarrow_by_file,
        with_pandas,
        with_polars,
        with_polars_by_urls,
    )
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_sees_the_publication_that_was_read(desk: Desk, reader: str) -> None:
    expected = ROWS * 2 * len(CITIES), set(CITIES)
    assert READERS[reader](desk) == expected
    desk.publish(NEW, {**partitions(5, ("Aix",)), "year=2027/city=Lyon/part-0.parquet": table(7)})
    assert READERS[reader](desk) == expected, "though another one is current, with objects of the same names"


@pytest.mark.parametrize("reader", sorted({*READERS} - {"duckdb_by_urls", "polars_by_urls"}))
def test_no_reader_takes_a_rest_for_the_whole(desk: Desk, reader: str) -> None:
    """Half of the data are collected meanwhile."""
    for name in list(desk.current)[::2]:
        (desk.folder / desk.current.bucket_keys([name])[name]).unlink()
    with pytest.raises(Exception, match=r"replaced|StaleRead|collected") as raised:
        READERS[reader](desk)
    causes = list(chain_of(raised.value))
    assert any(isinstance(each, StaleRead) or "StaleRead" in str(each) for each in causes), causes


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def test_pandas_and_polars_read_what_is_current_by_the_stores_url(desk: Desk) -> None:
    one = "fenced://sales/year=2026/city=Aix/part-0.parquet"
    readers: list[Callable[[], int]] = [
        lambda: int(pandas.read_parquet(one, storage_options=desk.options)["n"].sum()),
        lambda: int(polars.read_parquet(one, storage_options=desk.options, use_pyarrow=True)["n"].sum()),
        lambda: int(polars.read_parquet(FencedFileSystem(**desk.options).open(one))["n"].sum()),
    ]
    assert [read() for read in readers] == [ROWS] * 3
    desk.publish(NEW, partitions(5, ("Aix",)))
    assert [read() for read in readers] == [ROWS * 5] * 3, "each call makes a filesystem of its own"


def test_a_column_is_read_without_the_others(desk: Desk) -> None:
    """The text is nine tenths of each file, and a filter leaves most files out."""
    asked = []
    opened = desk.files._open

    def note(path: str, **options: Any) -> Any:
        stream = opened(path, **options)
        read = stream.read

        def count(size: int | None = -1, /) -> bytes:
            data: bytes = read(size)
            asked.append((path, len(data)))
            return data

        stream.read = count
        return stream

    desk.files._open = note
    read = dataset.dataset("sales/", filesystem=desk.files, partitioning="hive")
    found = read.to_table(columns=["n"], filter=dataset.field("city") == "Aix")
    assert found.num_rows == 2 * ROWS
    size = desk.current["year=2026/city=Aix/part-0.parquet"].size
    of_files = {path for path, _ in asked}
    assert of_files <= {f"sales/{name}" for name in desk.current if "Aix" in name or name == next(iter(desk.current))}
    assert sum(count for _, count in asked) < size


@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # of Dask, with pandas 3.1
def test_dask_reads_one_publication_in_other_processes(desk: Desk) -> None:
    dask = pytest.importorskip("dask")
    frames = pytest.importorskip("dask.dataframe")
    planned = frames.read_parquet("fenced://sales/", storage_options=desk.options)["n"].sum()
    desk.publish(NEW, partitions(5))
    newer = frames.read_parquet("fenced://sales/", storage_options=desk.options)["n"].sum()
    assert planned._name != newer._name, "or the result of one would be taken for that of the other"
    with dask.config.set(scheduler="processes", num_workers=1):
        assert int(planned.compute()) == ROWS * 2 * len(CITIES)
    with dask.config.set(scheduler="threads"):
        assert int(newer.compute()) == 5 * ROWS * 2 * len(CITIES)


# Without this library: the pointer, or the manifest, is the list of what belongs together

BY_POINTER = """
SET VARIABLE files = (
    SELECT list($root || 'fencing/sales/' || objects.value.key)
    FROM (SELECT unnest(map_entries(published.objects)) AS objects
          FROM read_json($root || 'fencing/sales/pointer.json', columns = {
              published: 'STRUCT(objects MAP(VARCHAR, STRUCT("key" VARCHAR)))'})))
"""
BY_MANIFEST = """
SET VARIABLE files = (
    SELECT list($root || 'fencing/sales/' || "key")
    FROM read_json($root || 'fencing/sales/' || $manifest, format = 'newline_delimited',
                   columns = {name: 'VARCHAR', "key": 'VARCHAR'})
    WHERE name IS NOT NULL)
"""
TOTAL = "SELECT sum(n), list(DISTINCT city) FROM read_parquet(getvariable('files'), hive_partitioning = true)"


def test_sql_alone_reads_a_publication_by_its_pointer(desk: Desk) -> None:
    connection = duckdb.connect()
    connection.execute(BY_POINTER, {"root": f"{desk.folder}/"})
    desk.publish(NEW, partitions(5))
    total, cities = connection.execute(TOTAL).fetchall()[0]
    assert (int(total), set(cities)) == (ROWS * 2 * len(CITIES), set(CITIES))
    connection.execute(BY_POINTER, {"root": f"{desk.folder}/"})
    assert int(connection.execute(TOTAL).fetchall()[0][0]) == 5 * ROWS * 2 * len(CITIES)


def test_sql_alone_reads_a_publication_by_its_manifest(desk: Desk) -> None:
    manifest = f"data/{desk.current.number:016d}.{desk.current.token}/{desk.current.id}/manifest.jsonl"
    connection = duckdb.connect()
    connection.execute(BY_MANIFEST, {"root": f"{desk.folder}/", "manifest": manifest})
    total, cities = connection.execute(TOTAL).fetchall()[0]
    assert (int(total), set(cities)) == (ROWS * 2 * len(CITIES), set(CITIES))


# On S3


def test_polars_and_pyarrow_read_the_urls_of_s3(s3_server: S3Server) -> None:
    store = s3_server.store(prefix="own")
    published = probed(ObjectStoreGuard(store), s3_server).publish(OLD, partitions(1), claim=True)
    urls = published.urls()
    options = {
        "aws_access_key_id": "x",
        "aws_secret_access_key": "x",
        "aws_region": "us-east-1",
        "aws_endpoint_url": s3_server.url,
        "aws_allow_http": "true",
    }
    found = polars.scan_parquet(list(urls.values()), storage_options=options, hive_partitioning=True).collect()
    assert (int(found["n"].sum()), set(found["city"])) == (ROWS * 2 * len(CITIES), set(CITIES))
    filesystem = pytest.importorskip("pyarrow.fs").S3FileSystem(
        access_key="x", secret_key="x", scheme="http", endpoint_override=f"{s3_server.host}:{s3_server.port}"
    )
    paths = [url.removeprefix("s3://") for url in urls.values()]
    read = dataset.dataset(paths, filesystem=filesystem, partitioning="hive").to_table()
    assert set(read["city"].to_pylist()) == set(CITIES)
    [signed] = published.signed_urls(60, [next(iter(published))]).values()
    assert int(polars.read_parquet(signed)["n"].sum()) == ROWS
