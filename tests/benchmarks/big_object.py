"""One big object, through a writer, to an S3 that counts its parts and throws the bytes away.

python -m tests.benchmarks.big_object --gigabytes 5

It says how many parts there were, how long it took, and the most memory of this process. No temporary file is made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from obstore.store import S3Store

from fencing import Fence
from storage_guards import ObjectStoreGuard
from storage_guards.objects.probe import ProbeReport

MIB = 2**20
FENCE = Fence("big", 1, "a" * 22)


class Sink(ThreadingHTTPServer):
    """As much of S3 as a publication needs, with plain puts in memory.

    Attributes:
        parts: the bytes of each part, by its number.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.parts: dict[int, int] = {}
        self.objects: dict[str, bytes] = {}
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Sink

    def do_POST(self) -> None:
        """Begin an upload in parts, or end it."""
        self._drop()
        if "uploads" in self.path:
            self._answer(b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
        else:
            self._answer(b"<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>")

    def do_PUT(self) -> None:
        """Take a part, or a whole object."""
        key, _, query = self.path.partition("?")
        if "partNumber" in query:
            number = int(query.partition("partNumber=")[2].partition("&")[0])
            self.server.parts[number] = self._drop()
        else:
            self.server.objects[key] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"", ETag=hashlib.md5(self.server.objects.get(key, b"")).hexdigest())

    def do_GET(self) -> None:
        """Give an object that was put whole."""
        data = self.server.objects.get(self.path.partition("?")[0])
        etag = hashlib.md5(data or b"").hexdigest()
        modified = "Sat, 31 Jan 2026 12:00:00 GMT"
        self._answer(data or b"", 404 if data is None else 200, **{"ETag": etag, "Last-Modified": modified})

    def _drop(self) -> int:
        left = size = int(self.headers.get("Content-Length") or 0)
        while left:
            left -= len(self.rfile.read(min(left, MIB)))
        return size

    def _answer(self, data: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[tuple[Sink, ObjectStoreGuard]]:
    """Give a sink, and a guard that writes into it and has claimed."""
    sink = Sink()
    thread = threading.Thread(target=sink.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{sink.server_address[1]}"
    store = S3Store(
        "bucket",
        endpoint=url,
        region="us-east-1",
        access_key_id="any",
        secret_access_key="any",
        client_options={"allow_http": True},
    )
    guard = ObjectStoreGuard(store)
    guard._report = ProbeReport("as given", versions_return=True, races=0, seconds=0.0)  # the sink keeps no conditions
    guard.claim(FENCE)
    try:
        yield sink, guard
    finally:
        sink.shutdown()
        thread.join()
        sink.server_close()


def send(size: int) -> dict[str, float]:
    """Publish one object of so many bytes. Return what was found."""
    piece = bytes(range(256)) * 4096
    with serving() as (sink, guard):
        begun = time.perf_counter()
        with guard.writer(FENCE, "big") as file:
            for _ in range(size // MIB):
                file.write(piece)
            file.write(piece[: size % MIB])
        seconds = time.perf_counter() - begun
        [pointer] = [data for key, data in sink.objects.items() if key.endswith("pointer.json")]
    assert sum(sink.parts.values()) == json.loads(pointer)["published"]["objects"]["big"]["size"] == size
    return {
        "bytes": size,
        "parts": len(sink.parts),
        "seconds": round(seconds, 1),
        "MB a second": round(size / seconds / 1e6),
        "most memory, MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=5.0)
    for name, value in send(int(parser.parse_args().gigabytes * 1e9)).items():
        print(f"{name:>16} {value:,}")


if __name__ == "__main__":
    main()
