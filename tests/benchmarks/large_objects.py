"""Many objects, and big ones: `python -m tests.benchmarks.large_objects [many|urls|big] [--quick]`.

many: a publication of 100,000 objects, beside a plain upload of the same with as many puts at a time.
urls: the requests and the memory of `urls()` of such a publication.
big: 5 GB of an object of 50 GB go to an S3 that counts the bytes and throws them away; then its source breaks off.

`--quick` takes a tenth of it.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import resource
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from typing import Any

from obstore.store import MemoryStore, S3Store

from fencing import Fence, GuardUnavailable
from storage_guards import AsyncObjectStoreGuard
from tests.benchmarks.object_store import DELAY, SlowStore

AT_ONCE = 16
BODY = b"x" * 2**10
MINE = Fence("sales", 1, "a" * 22)
PIECE = bytes(2**20)
PLANNED = 50 * 10**9


async def many(count: int) -> None:
    plain, slow = SlowStore(), SlowStore()
    names = iter([f"part-{number:06}" for number in range(count)])

    async def put_all() -> None:
        for name in names:
            await plain.put_async(name, BODY)

    began = time.perf_counter()
    await asyncio.gather(*(put_all() for _ in range(AT_ONCE)))
    upload = time.perf_counter() - began
    guard = AsyncObjectStoreGuard(slow, upload_timeout=600)
    await guard.claim(MINE)
    slow.requests.clear()
    began = time.perf_counter()
    await guard.publish(MINE, ((f"part-{number:06}", BODY) for number in range(count)))
    publish = time.perf_counter() - began
    print(f"{count:,} objects, {DELAY * 1e3:.0f} ms a request: plain upload {upload:.1f} s, publish {publish:.1f} s")
    print(f"  {publish / upload:.3f} times as long; {dict(slow.requests)}; peak memory with the store's {_peak()} MB")


async def _published(count: int) -> dict[str, bytes]:
    """Publish, and return the pointer and the manifest: all that a reader of names gets."""
    store = MemoryStore()
    guard = AsyncObjectStoreGuard(store)
    await guard.publish(MINE, ((f"part-{number:06}", b"x") for number in range(count)), claim=True)
    paths = [each["path"] for page in store.list("fencing/sales/") for each in page]
    return {path: bytes(store.get(path).bytes()) for path in paths if path.endswith(("pointer.json", "manifest.jsonl"))}


def published(count: int) -> dict[str, bytes]:
    return asyncio.run(_published(count))


async def urls(count: int) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as elsewhere:  # its memory does not count
        objects = elsewhere.submit(published, count).result()
    memory = SlowStore()
    for path, data in objects.items():
        await memory.put_async(path, data)
    memory.requests.clear()
    before, began = _peak(), time.perf_counter()
    current = await AsyncObjectStoreGuard(memory).read("sales")
    assert current is not None
    read = time.perf_counter() - began
    began = time.perf_counter()
    found = current.urls(base="s3://acme-data")
    assert len(found) == count
    took = time.perf_counter() - began
    print(f"{count:,} objects: read {read:.2f} s, {dict(memory.requests)}; urls() {took:.2f} s, no request")
    print(f"  peak memory before {before} MB, after {_peak()} MB")


class _Counts(BaseHTTPRequestHandler):
    """The multipart upload of an S3 that keeps nothing."""

    protocol_version = "HTTP/1.1"
    parts = 0
    received = 0
    largest = 0

    def do_POST(self) -> None:
        self._drain()
        self._answer(b"<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>")

    def do_PUT(self) -> None:
        size = self._drain()
        assert re.search(r"partNumber=\d+", self.path)
        _Counts.parts, _Counts.received = _Counts.parts + 1, _Counts.received + size
        _Counts.largest = max(_Counts.largest, size)
        self._answer(b"")

    def do_DELETE(self) -> None:
        self._answer(b"")

    def log_message(self, *_: Any) -> None: ...

    def _drain(self) -> int:
        left = size = int(self.headers.get("Content-Length") or 0)
        while left:
            left -= len(self.rfile.read(min(left, 2**20)))
        return size

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _BigGoesElsewhere(SlowStore):
    """A store in memory whose multipart uploads go to a store that throws them away."""

    def __init__(self, away: S3Store) -> None:
        super().__init__()
        self._away = away

    async def put_async(self, *arguments: Any, **options: Any) -> Any:
        if options.get("use_multipart"):
            return await self._away.put_async(*arguments, **options)
        return await super().put_async(*arguments, **options)


class _BrokeOff(Exception):
    pass


async def big(size: int) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Counts)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    away = S3Store(
        "big",
        endpoint=f"http://127.0.0.1:{server.server_port}",
        region="us-east-1",
        access_key_id="x",
        secret_access_key="x",
        unsigned_payload=True,
        client_options={"allow_http": True},
    )
    guard = AsyncObjectStoreGuard(_BigGoesElsewhere(away))
    await guard.claim(MINE)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size // len(PIECE)):
            yield PIECE
        raise _BrokeOff

    before, began = _peak(), time.perf_counter()
    try:
        await guard.publish(MINE, {"big": pieces()})
    except (_BrokeOff, GuardUnavailable) as error:
        print(f"  broke off as planned: {type(error).__name__}")
    assert await guard.read("sales") is None
    took = time.perf_counter() - began
    print(
        f"{_Counts.received / 1e9:.2f} GB in {_Counts.parts} parts of {_Counts.largest / 2**20:.0f} MiB, {took:.1f} s"
    )
    print(f"  {PLANNED / 1e9:.0f} GB are {-(-PLANNED // _Counts.largest):,} parts; memory {before} to {_peak()} MB")
    server.shutdown()


def _peak() -> int:
    """Return the peak memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("many", "urls", "big"), nargs="?")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    share = 10 if options.quick else 1
    for what, measure, amount in (("many", many, 100_000), ("urls", urls, 100_000), ("big", big, 5 * 10**9)):
        if options.what in (None, what):
            asyncio.run(measure(amount // share))


if __name__ == "__main__":
    main()
