"""What a store keeps beside the bytes of an object: headers, metadata and tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import GCSStore, MemoryStore

from examples.servers import S3Server
from fencing import Fence
from storage_guards import Upload
from storage_guards.objects.uploads import SMALL
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.sides import Side

A = Fence("orders:1", 1, "a" * 22)


@pytest.mark.parametrize("size", [3, pytest.param(SMALL + 1, marks=pytest.mark.thorough)])
def test_a_store_keeps_what_an_upload_says(http: Desk, size: int) -> None:
    upload = Upload(bytes(size), content_type="text/csv", cache_control="max-age=60", metadata={"made_by": "night run"})
    published = http.publish(A, {"x": upload, "y": b""}, claim=True)
    found = obstore.get(http.store, "fencing/orders=3A1/" + published["x"].key).attributes
    assert {name: found.get(name) for name in ("Content-Type", "Cache-Control", "made_by")} == {
        "Content-Type": "text/csv",
        "Cache-Control": "max-age=60",
        "made_by": "night run",
    }
    assert published["x"].size == size


@pytest.mark.parametrize("size", [1, SMALL + 1])
def test_tags_are_for_stores_that_have_them(side: Side, size: int) -> None:
    seen: list[Any] = []

    class Tagged(MemoryStore):
        async def put_async(self, path: str, file: Any, **options: Any) -> Any:
            seen.append(options.pop("tags", None))
            return await super().put_async(path, file, **options)

    desk = Desk(side, Tagged())
    bodies = {"x": Upload(bytes(size), tags={"team": "data"})}
    desk.publish(A, bodies, claim=True)
    assert seen == [{"team": "data"}, None, None], "the manifest and the pointer have none"
    desk.guard._io.store = GCSStore("bucket")
    assert "Google Cloud Storage has none" in desk.refused(ValueError, A, bodies)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, SMALL + 1])
def test_s3_keeps_tags(s3_server: S3Server, size: int) -> None:
    import boto3  # type: ignore[import-untyped]  # takes its time

    desk = Desk(Side(False), s3_server.store(), s3_server)
    entry = desk.publish(A, {"x": Upload(bytes(size), tags={"team": "data"})}, claim=True)["x"]
    config = desk.store.config
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.url,
        region_name="us-east-1",
        aws_access_key_id=config["access_key_id"],
        aws_secret_access_key=config["secret_access_key"],
    )
    tags = client.get_object_tagging(Bucket=config["bucket"], Key="fencing/orders=3A1/" + entry.key)["TagSet"]
    assert tags == [{"Key": "team", "Value": "data"}]


def test_a_body_in_an_upload_is_a_body(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"path")
    bodies: dict[str, Any] = {"bytes": Upload(b"b"), "path": Upload(tmp_path / "file"), "chunks": Upload([b"1", b"2"])}
    published = desk.publish(A, bodies, claim=True)
    assert desk.current == {"bytes": b"b", "path": b"path", "chunks": b"12"}
    spent = iter([b"1"])
    desk.publish(A, {"x": Upload(spent)})
    assert "was read before" in desk.refused(ValueError, A, {"x": Upload(spent)})
    desk.refused(TypeError, A, {"x": Upload("text")})
    desk.refused(TypeError, A, {"x": Upload(published["path"])})


@pytest.mark.parametrize(
    ("error", "given"),
    [
        (TypeError, {"body": Upload(b"")}),
        (TypeError, {"content_type": 7}),
        (ValueError, {"content_type": "text/csv\r\nx-amz-acl: public-read"}),
        (ValueError, {"cache_control": " max-age=1"}),
        (TypeError, {"metadata": ["a"]}),
        (TypeError, {"metadata": {"a": 1}}),
        (ValueError, {"metadata": {"Content-Type": "x"}}),
        (ValueError, {"metadata": {"a": "ü"}}),
        (ValueError, {"metadata": {"a": ""}}),
        (ValueError, {"metadata": {"a": "x" * 2048}}),
        (ValueError, {"tags": {"": "x"}}),
        (ValueError, {"tags": {"a": "x" * 257}}),
        (ValueError, {"tags": {"a": "x&b=y"}}),
        (ValueError, {"tags": {f"a{number}": "" for number in range(11)}}),
    ],
)
def test_what_no_store_would_keep_is_refused(error: type[Exception], given: dict[str, Any]) -> None:
    with pytest.raises(error):
        Upload(**{"body": b"", **given})


def test_the_sha256_of_each_object_is_published(desk: Desk) -> None:
    published = desk.publish(A, {"x": b"abc", "y": [bytes(SMALL), b"1"]}, claim=True)
    assert published["x"].sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert published["y"].sha256 == "f54397852fc5c2e0b572c7de9e8386bd3edb5d42b190f0b3ec4d1f7a053e06bd"
