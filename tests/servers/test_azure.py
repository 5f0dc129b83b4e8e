"""The Azure Blob Storage that the other tests rely on, beyond test_object_stores.py, and how its program is found."""

import os
import stat
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import PreconditionError

from examples.servers import ServerError
from tests.support import wait_until
from tests.support.object_checks import content, version
from tests.support.servers import AzureServer, find_azurite, npm, start_azure


@pytest.mark.thorough
def test_the_same_bytes_have_a_new_etag(azure_server: AzureServer) -> None:
    store = azure_server.store()
    first = version(obstore.put(store, "key", b"same"))
    assert version(obstore.put(store, "key", b"same")) != first
    with pytest.raises(PreconditionError):
        obstore.put(store, "key", b"new", mode=first)


@pytest.mark.thorough
def test_unsigned_requests_may_be_changed(azure_server: AzureServer) -> None:
    bucket = azure_server.new_bucket()
    store = azure_server.store(bucket=bucket, **azure_server.unsigned)
    first = version(obstore.put(store, "key", b"first", mode="create"))
    obstore.put(store, "key", b"second", mode=first)
    with pytest.raises(PreconditionError):
        obstore.put(store, "key", b"third", mode=first)
    assert content(azure_server.store(bucket=bucket), "key") == b"second"


@pytest.mark.thorough
def test_nothing_is_left(azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with start_azure() as server:
        assert server.port != azure_server.port
        obstore.put(server.store(), "big", bytes(12_000_000), use_multipart=True)
        pid = server.pid
        assert pid is not None
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    wait_until(lambda: not list(tmp_path.iterdir()))


def _program(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\necho 'not what it seems' >&2\nexit 1\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_where_its_program_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named, on_path, installed = tmp_path / "named", tmp_path / "path", tmp_path / "installed"
    _program(on_path, "node")
    monkeypatch.setenv("PATH", str(on_path))
    monkeypatch.delenv("FENCING_TEST_AZURITE", raising=False)
    monkeypatch.setattr(npm, "_INSTALLED", installed)
    assert find_azurite() is None
    with pytest.raises(ServerError, match="make node"):
        start_azure()
    last = _program(installed, "azurite-blob")
    assert find_azurite() == last
    second = _program(on_path, "azurite")
    assert find_azurite() == second
    monkeypatch.setenv("FENCING_TEST_AZURITE", str(_program(named, "mine")))
    assert find_azurite() == named / "mine"
    (on_path / "node").unlink()
    assert find_azurite() is None


def test_a_failed_start_carries_the_log_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("FENCING_TEST_AZURITE", str(_program(tmp_path, "azurite-blob")))
    monkeypatch.setenv("PATH", f"{_program(tmp_path, 'node').parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ServerError, match="not what it seems"):
        start_azure()
    assert list(temporary.iterdir()) == []
