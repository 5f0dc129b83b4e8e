"""The filesystem of fsspec: it reads one publication of each resource, and changes nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import tomllib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import fsspec
import pytest
from obstore.store import MemoryStore

from fencing import Fence, GuardUnavailable
from storage_guards import AsyncObjectStoreGuard, FencedFileSystem, ObjectStoreGuard
from tests.support.object_copies import on_disk
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import probed

ROOT = Path(__file__).resolve().parents[2]
R = "sales"
A, B = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)
JANUARY, MARCH = "year=2026/month=1/part-0.csv", "year=2026/month=3/part-0.csv"


@pytest.fixture(autouse=True)
def registered() -> None:
    """As the entry point does it, which has a test below: a checkout may have been installed before it had one."""
    fsspec.register_implementation("fenced", FencedFileSystem, clobber=True)


@pytest.fixture
def guard() -> ObjectStoreGuard:
    guard: ObjectStoreGuard = probed(ObjectStoreGuard(MemoryStore()))
    guard.publish(A, {JANUARY: b"1\n", MARCH: b"3\n", "total.csv": b"4\n"}, claim=True)
    return guard


@pytest.fixture
def files(guard: ObjectStoreGuard) -> Any:
    return FencedFileSystem(store=guard._io.store)


def test_an_installed_package_names_it_for_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["fsspec.specs"]
    installed = tmp_path / "installed-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n", "utf-8")
    lines = [f"{name} = {place}" for name, place in specs.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[fsspec.specs]", *lines]), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    found = {each.name: each.load() for each in entry_points(group="fsspec.specs") if each.name == "fenced"}
    assert found == {FencedFileSystem.protocol: FencedFileSystem}


def test_it_is_a_tree_of_names(files: Any) -> None:
    assert files.ls(R, detail=False) == ["sales/total.csv", "sales/year=2026"]
    assert files.ls("fenced://sales/year=2026/", detail=False) == ["sales/year=2026/month=1", "sales/year=2026/month=3"]
    assert files.find(R) == [f"sales/{name}" for name in ("total.csv", JANUARY, MARCH)]
    assert files.glob("fenced://sales/**/month=3/*.csv") == [f"sales/{MARCH}"]
    assert files.ls(f"sales/{MARCH}", detail=False) == [f"sales/{MARCH}"]
    publication = files.publication(R)
    assert files.info(f"sales/{MARCH}") == {
        "name": f"sales/{MARCH}",
        "type": "file",
        "size": 2,
        "sha256": publication[MARCH].sha256,
        "key": publication.bucket_keys()[MARCH],
    }
    kinds = {path: (files.isfile(path), files.isdir(path)) for path in (R, f"{R}/year=2026", f"/{R}/total.csv", "")}
    assert list(kinds.values()) == [(False, True), (False, True), (True, False), (False, True)]
    assert files.ls("", detail=False) == [R], "those that were used"
    assert files.modified(f"sales/{MARCH}") == publication.published_at
    assert files.unstrip_protocol(f"sales/{MARCH}") == f"fenced://sales/{MARCH}"


def test_it_reads_files_and_parts_of_them(files: Any, guard: ObjectStoreGuard) -> None:
    assert files.cat(f"sales/{MARCH}") == b"3\n"
    assert files.cat(["sales/total.csv", f"sales/{JANUARY}"]) == {"sales/total.csv": b"4\n", f"sales/{JANUARY}": b"1\n"}
    assert files.cat_file("sales/total.csv", start=1) == b"\n"
    assert files.tail("sales/total.csv", 1) == b"\n"
    assert files.read_text("sales/total.csv") == "4\n"
    with fsspec.open("fenced://sales/total.csv", "rt", store=guard._io.store) as file:
        assert file.read() == "4\n"


def test_all_that_it_reads_is_of_one_publication(files: Any, guard: ObjectStoreGuard) -> None:
    assert files.cat("sales/total.csv") == b"4\n"
    guard.publish(B, {"total.csv": b"9\n"}, claim=True)
    assert files.cat(f"sales/{JANUARY}") == b"1\n", "though there is a newer one"
    newer = FencedFileSystem(store=guard._io.store)
    assert newer.cat("sales/total.csv") == b"9\n"
    assert newer != files
    assert newer._fs_token != files._fs_token, "Dask would take the results of one for those of the other"
    assert files.ukey("sales/total.csv") != newer.ukey("sales/total.csv")
    with fsspec.open("fenced://sales/total.csv", store=guard._io.store) as file:
        assert file.read() == b"9\n", "each call has its own"
    assert FencedFileSystem(files.publication(R)).cat("sales/total.csv") == b"4\n"


def test_two_threads_get_the_same_publication(files: Any, guard: ObjectStoreGuard) -> None:
    read = guard.read
    own: list[Any] = []

    def slow(resource: str) -> Any:
        if not own:
            own.append(None)
            own[0] = files.publication(resource)  # another thread is faster
            guard.publish(B, {"total.csv": b"9\n"}, claim=True)
        return read(resource)

    files._guard.read = slow
    assert files.publication(R) == own[0] == files.publication(R)
    assert files.publication(R).number == A.number


def test_a_pickled_one_reads_the_same(guard: ObjectStoreGuard, tmp_path: Path) -> None:
    store: Any = guard._io.store
    folder = on_disk(store, tmp_path)
    files = FencedFileSystem(store=f"file://{tmp_path}")
    assert files.cat("sales/total.csv") == b"4\n"
    guard.publish(B, {"total.csv": b"9\n"}, claim=True)
    on_disk(store, tmp_path)
    assert ObjectStoreGuard(folder).read(R) != files.publication(R)
    again = pickle.loads(pickle.dumps(files))
    assert again.cat("sales/total.csv") == b"4\n"
    assert again == files
    assert again.find(R) == files.find(R)
    opened = fsspec.open("fenced://sales/total.csv", store=f"file://{tmp_path}")
    on_disk(store, tmp_path)
    with pickle.loads(pickle.dumps(opened)) as file:
        assert file.read() == b"9\n"


@pytest.mark.parametrize(
    "write",
    [
        lambda it: it.open("sales/new", "wb"),
        lambda it: it.open("sales/total.csv", "ab"),
        lambda it: it.pipe("sales/new", b"1"),
        lambda it: it.touch("sales/new"),
        lambda it: it.mkdir("sales/new"),
        lambda it: it.makedirs("sales/new", exist_ok=True),
        lambda it: it.rm("sales/total.csv"),
        lambda it: it.rm_file("sales/total.csv"),
        lambda it: it.rmdir("sales/year=2026"),
        lambda it: it.cp_file("sales/total.csv", "sales/new"),
        lambda it: it.mv("sales/total.csv", "sales/new"),
        lambda it: it.put_file(__file__, "sales/new"),
    ],
)
def test_it_changes_nothing(files: Any, write: Callable[[Any], object]) -> None:
    with pytest.raises(OSError, match="publish a new one") as refused:
        write(files)
    assert refused.value.errno == errno.EROFS


def test_what_is_not_there_is_not_found(files: Any) -> None:
    for path in ("sales/other.csv", "sales/year=2025", "orders/x", "orders"):
        assert not files.exists(path)
        assert not files.isdir(path)
        assert not files.isfile(path)
        for read in (files.open, files.info, files.ls):
            with pytest.raises(FileNotFoundError):
                read(path)


def test_a_store_that_does_not_answer_is_not_an_empty_one() -> None:
    store = FaultyStore()
    store.deaf = True
    files = FencedFileSystem(store=store)
    for ask in (files.exists, files.isdir, files.isfile, files.find, files.cat):
        with pytest.raises(GuardUnavailable):
            ask("sales/total.csv")


@pytest.mark.parametrize(
    ("resource", "path"), [("orders:42", "orders:42"), ("a/b", "a%2Fb"), ("50%2F", "50%252F"), ("Ä b", "Ä b")]
)
def test_every_resource_has_a_path(resource: str, path: str) -> None:
    store = MemoryStore()
    probed(ObjectStoreGuard(store)).publish(Fence(resource, 1, "a" * 22), {"x/y": b"1"}, claim=True)
    files = FencedFileSystem(store=store)
    assert files.cat(f"fenced://{path}/x/y") == b"1"
    assert files.find(path) == [f"{path}/x/y"]


def test_names_that_no_directory_can_show_are_opened_by_name() -> None:
    """A listing that left them out would be of less than the publication."""
    guard = probed(ObjectStoreGuard(MemoryStore()))
    names = {"/x": b"1", "a//b": b"2", "file": b"3", "file/below": b"4"}
    files = FencedFileSystem(guard.publish(A, names, claim=True))
    assert {name: files.cat_file(f"sales/{name}") for name in names} == names
    with pytest.raises(ValueError, match="'/x' has an empty part"):
        files.ls("sales")
    slashed = FencedFileSystem(guard.publish(A, {"file": b"3", "file/": b"5"}))
    for path in ("sales/file/", "fenced://sales/file/"):
        with pytest.raises(IsADirectoryError, match=r"use publication\(resource\)\.open\(name\)"):
            slashed.open(path)
    assert slashed.publication("sales").open("file/").read() == b"5"
    both = FencedFileSystem(guard.publish(A, {"file": b"3", "file/below": b"4"}))
    assert both.find("sales") == ["sales/file", "sales/file/below"]


def test_wrong_arguments_are_refused(guard: ObjectStoreGuard) -> None:
    current: Any = guard.read(R)
    store: Any = guard._io.store
    for arguments in ({}, {"store": store, "region": "x"}, {"publication": current, "store": store}):
        with pytest.raises(TypeError):
            FencedFileSystem(**arguments)
    with pytest.raises(TypeError, match="not AsyncPublication"):
        FencedFileSystem(asyncio.run(AsyncObjectStoreGuard(store).read(R)))  # type: ignore[arg-type]


def test_options_are_the_stores(tmp_path: Path) -> None:
    where = os.fspath(tmp_path / "new")
    FencedFileSystem(store=f"file://{where}", mkdir=True)
    assert (tmp_path / "new").is_dir()
