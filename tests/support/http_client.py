"""The client that test_trace.py freezes: it claims, reads, and is frozen in the middle of the body of its write."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import httpx2

from fencing import Fence, StaleFence
from storage_guards import HTTPGuard, fenced


def main(url: str) -> None:
    fence = Fence("r", 1, "a" * 22)
    client = httpx2.Client(base_url=url, timeout=60)
    HTTPGuard("/fencing/claims", client).claim(fence)
    value = b"%d" % (int(client.get("/data", params={"resource": "r"}).text) + 10)

    def body() -> Iterator[bytes]:
        yield value[:1]
        print("half", flush=True)
        sys.stdin.readline()  # frozen (SIGSTOP) here
        yield value[1:]

    try:
        with fenced(client, fence):
            print(client.put("/data", params={"resource": "r"}, content=body()).text, flush=True)
    except StaleFence:
        print("refused", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
