"""Our Google Cloud Storage does what the documentation of the real one says, beyond test_object_stores.py."""

import http.client
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import obstore
import pytest
from obstore.exceptions import NotModifiedError, PreconditionError

from tests.support import wait_until
from tests.support.servers import GCSServer, start_gcs

pytestmark = pytest.mark.thorough  # it tests only what other tests use


GENERATION = "x-goog-if-generation-match"
METAGENERATION = "x-goog-if-metageneration-match"


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def generation(self) -> int:
        return int(self.headers["x-goog-generation"])

    @property
    def metageneration(self) -> int:
        return int(self.headers["x-goog-metageneration"])


class Bucket:
    """Requests as they go over the wire, for what obstore does not send."""

    def __init__(self, server: GCSServer) -> None:
        self.server = server
        self.name = server.new_bucket()

    def __call__(self, method: str, target: str, body: bytes = b"", headers: Mapping[str, object] = {}) -> Reply:
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=120)
        try:
            named = {name: str(value) for name, value in headers.items()}
            connection.request(method, f"/{self.name}/{target}", body, named)
            reply = connection.getresponse()
            return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            connection.close()


@pytest.fixture
def bucket(gcs_server: GCSServer) -> Bucket:
    return Bucket(gcs_server)


def test_the_same_bytes_make_a_new_generation_with_the_old_etag(gcs_server: GCSServer) -> None:
    store = gcs_server.store()
    first = obstore.put(store, "key", b"same")
    second = obstore.put(store, "key", b"same")
    assert first["e_tag"] == second["e_tag"]
    assert first["version"] is not None
    assert second["version"] is not None
    assert int(second["version"]) > int(first["version"])
    with pytest.raises(PreconditionError):
        obstore.put(store, "key", b"new", mode={"version": first["version"]})


def test_a_generation_comes_back_neither_by_deletion_nor_elsewhere(bucket: Bucket) -> None:
    one = bucket("PUT", "one", b"x").generation
    assert bucket("DELETE", "one").status == 204
    two = bucket("PUT", "two", b"x").generation
    assert one < two < bucket("PUT", "one", b"x").generation


def test_generation_must_match(bucket: Bucket) -> None:
    assert bucket("PUT", "key", b"1", headers={GENERATION: 1}).status == 412
    assert bucket("GET", "key").status == 404
    made = bucket("PUT", "key", b"1", headers={GENERATION: 0})
    assert made.status == 200
    assert bucket("PUT", "key", b"2", headers={GENERATION: 0}).status == 412
    assert bucket("PUT", "key", b"2", headers={GENERATION: made.generation + 1}).status == 412
    assert bucket("PUT", "key", b"2", headers={GENERATION: made.generation}).status == 200
    assert bucket("PUT", "key", b"3", headers={GENERATION: made.generation}).status == 412
    assert bucket("GET", "key").body == b"2"


def test_metageneration_must_match(bucket: Bucket) -> None:
    made = bucket("PUT", "key", b"1")
    assert made.metageneration == 1
    changed = bucket("PUT", "key?acl", b"<AccessControlList/>")
    assert (changed.generation, changed.metageneration) == (made.generation, 2)
    both = {GENERATION: made.generation, METAGENERATION: 1}
    assert bucket("PUT", "key", b"2", headers=both).status == 412
    assert bucket("PUT", "key", b"2", headers={METAGENERATION: 2}).status == 400
    new = bucket("PUT", "key", b"2", headers={**both, METAGENERATION: 2})
    assert (new.status, new.metageneration) == (200, 1)


def test_conditions_on_deleting_and_on_reading(bucket: Bucket) -> None:
    made = bucket("PUT", "key", b"content")
    other, same = {GENERATION: made.generation + 1}, {GENERATION: made.generation}
    for method in ("GET", "HEAD", "DELETE"):
        assert bucket(method, "key", headers=other).status == 412
        assert bucket(method, "key", headers={METAGENERATION: 2}).status == 412
    assert bucket("GET", "key", headers=same).body == b"content"
    assert bucket("DELETE", "key", headers=same).status == 204
    assert bucket("DELETE", "key").status == 404
    assert bucket("GET", f"key?generation={made.generation}").status == 404


def test_a_condition_that_is_no_number_is_refused(bucket: Bucket) -> None:
    for value in ("", "-1", "one"):
        assert bucket("PUT", "key", headers={GENERATION: value}).status == 400
    assert bucket("GET", "key").status == 404


def test_what_obstore_asks_when_it_reads(gcs_server: GCSServer) -> None:
    store = gcs_server.store()
    made = obstore.put(store, "key", b"0123456789")
    etag = made["e_tag"]
    meta = obstore.head(store, "key")
    assert (meta["e_tag"], meta["version"], meta["size"]) == (etag, made["version"], 10)
    assert bytes(obstore.get(store, "key", options={"range": {"suffix": 3}}).bytes()) == b"789"
    assert bytes(obstore.get(store, "key", options={"range": {"offset": 7}, "if_match": etag}).bytes()) == b"789"
    assert bytes(obstore.get(store, "key", options={"version": made["version"]}).bytes()) == b"0123456789"
    with pytest.raises(NotModifiedError):
        obstore.get(store, "key", options={"if_none_match": etag})
    with pytest.raises(NotModifiedError):
        obstore.get(store, "key", options={"if_modified_since": meta["last_modified"]})
    with pytest.raises(PreconditionError):
        obstore.get(store, "key", options={"if_match": '"other"'})
    with pytest.raises(FileNotFoundError):
        obstore.get(store, "key", options={"version": "1"})


def test_a_copy_is_a_new_generation_with_the_metadata(gcs_server: GCSServer) -> None:
    store = gcs_server.store()
    made = obstore.put(store, "a/b", b"x", attributes={"fence": "7"})
    obstore.copy(store, "a/b", "ä c")
    assert obstore.get(store, "ä c").attributes["fence"] == "7"
    assert obstore.head(store, "ä c")["version"] != made["version"]


def test_no_conditions_on_uploads_in_parts(bucket: Bucket) -> None:
    assert bucket("POST", "key?uploads", headers={GENERATION: 0}).status == 400
    started = bucket("POST", "key?uploads")
    name = started.body.decode().partition("<UploadId>")[2].partition("</UploadId>")[0]
    assert bucket("PUT", f"key?partNumber=1&uploadId={name}", b"x", headers={GENERATION: 0}).status == 400
    etag = bucket("PUT", f"key?partNumber=1&uploadId={name}", b"x").headers["etag"]
    parts = (
        f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    )
    assert bucket("POST", f"key?uploadId={name}", parts.encode(), headers={GENERATION: 0}).status == 400
    assert bucket("GET", "key").status == 404
    assert bucket("POST", f"key?uploadId={name}", parts.replace("1<", "2<").encode()).status == 400
    assert bucket("POST", f"key?uploadId={name}", parts.encode()).generation
    assert bucket("GET", "key").body == b"x"
    assert bucket("POST", f"key?uploadId={name}", parts.encode()).status == 404


def test_an_aborted_upload_leaves_nothing(bucket: Bucket) -> None:
    name = bucket("POST", "key?uploads").body.decode().partition("<UploadId>")[2].partition("</UploadId>")[0]
    assert bucket("PUT", f"key?partNumber=1&uploadId={name}", b"x").status == 200
    assert bucket("DELETE", f"key?uploadId={name}").status == 204
    assert bucket("PUT", f"key?partNumber=2&uploadId={name}", b"x").status == 404
    assert bucket("GET", "key").status == 404


def test_names_of_all_kinds(bucket: Bucket) -> None:
    for key in ("a b", "ä/ö", "50%", "<&>", "a?b=c", "=2F"):
        assert bucket("PUT", quote(key, safe=""), key.encode()).status == 200
        assert bucket("GET", quote(key, safe="")).body == key.encode()
    assert "&lt;&amp;&gt;" in bucket("GET", "").body.decode()


def test_a_stopped_upload_blocks_no_other_client(bucket: Bucket) -> None:
    head = f"PUT /{bucket.name}/half HTTP/1.1\r\nHost: gcs\r\nContent-Length: 10\r\n\r\n"
    with socket.create_connection((bucket.server.host, bucket.server.port), timeout=120) as client:
        client.sendall(f"{head}half".encode())
        assert bucket("PUT", "whole", b"whole").status == 200
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""  # the server has seen the end
    assert bucket("GET", "half").status == 404


def test_nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with start_gcs() as server:
        obstore.put(server.store(), "key", b"x")
        pid = server.pid
        assert pid is not None
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    wait_until(lambda: not list(tmp_path.iterdir()))
