"""Many objects: `python -m tests.benchmarks.many_objects [many|urls] [--quick]`.

many: a publication of 100,000 objects, beside a plain upload of the same with as many puts at a time.
urls: the requests and the memory of `urls()` of such a publication.

`--quick` takes a tenth of it.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from obstore.store import MemoryStore

from fencing import Fence
from storage_guards import AsyncObjectStoreGuard
from tests.benchmarks.object_store import DELAY, SlowStore

AT_ONCE = 16
BODY = b"x" * 2**10
MINE = Fence("sales", 1, "a" * 22)


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


def _peak() -> int:
    """Return the peak memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("many", "urls"), nargs="?")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    share = 10 if options.quick else 1
    for what, measure, amount in (("many", many, 100_000), ("urls", urls, 100_000)):
        if options.what in (None, what):
            asyncio.run(measure(amount // share))


if __name__ == "__main__":
    main()
