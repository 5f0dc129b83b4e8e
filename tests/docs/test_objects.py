"""The examples of docs/guards/objects.md run against a real Redis and an S3; its numbers are counted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.servers import RedisServer, S3Server
from fencing import Fence
from fencing.kernel.fence import new_token
from storage_guards import ObjectStoreGuard
from storage_guards.objects.keys import escape
from storage_guards.objects.pointer import decode
from tests.support.request_counts import RequestCounts
from tests.support.servers import HttpProxy, Request

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guards" / "objects.md"
STORES = PAGE.with_name("object-stores.md")
POINTER = "fencing/sales/pointer.json"


def blocks(language: str, page: Path = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


@pytest.mark.thorough
@pytest.mark.parametrize("lost", ["nothing", "reply", "request"])
def test_the_examples_work(
    any_redis: RedisServer,
    s3_server: S3Server,
    http_proxy: Callable[[S3Server], HttpProxy],
    lost: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    network = http_proxy(s3_server)
    bucket = s3_server.new_bucket()
    direct = s3_server.store(bucket=bucket)
    names: dict[str, Any] = {"my_store": s3_server.store(bucket=bucket, via=network)}
    names["asked"] = asked = []

    def landed(error: Any) -> Any:  # asked when the network is well again
        network.restore()
        asked.append(names["guard"].landed(error))
        return asked[-1]

    names["landed_later"] = landed
    totals = []
    for example in blocks("python"):
        if "landed(" in example and lost != "nothing":
            lose_what_is_published(network, lost)
        run(example, any_redis.url, names, timeout=60 if lost == "nothing" else 5)
        if "guard" in names:
            current = ObjectStoreGuard(direct).read("sales")
            totals.append(None if current is None else int(current.read("total")))
    # published; read, changed, published; partitions; datasets; restored; deleted; in place; published, whatever was
    # lost; only stores
    assert totals == [100, 105, 105, 105, 100, None, None, 101, 101]
    [part] = names["keys"]
    assert part.endswith("/~/year=2026/month=11/part-0.csv")
    assert bytes(direct.get(part).bytes()) == b"north,40\n"
    months = ObjectStoreGuard(direct).read("months")
    assert months is not None
    assert set(months) == {"month=11/new.csv", "month=12/more.csv", "month=12/part-0.parquet", "readme", "total.csv"}
    assert bytes(direct.get("exports/total").bytes()) == b"0\n"
    assert asked == {"nothing": [], "reply": [True], "request": [False]}[lost]
    assert names["total"] == 0
    assert names["north"] == b"40\n"
    assert len(capsys.readouterr().out.splitlines()) == 6  # publications, a difference, uploads
    names["coordinator"].close()


def run(example: str, redis_url: str, names: dict[str, Any], timeout: float = 60) -> None:
    if "ObjectStoreGuard(" in example:
        example = example.replace(
            'S3Store("acme-data", region="eu-central-1"), timeout=10', f"my_store, timeout={timeout}"
        )
        assert "my_store" in example
    example = example.replace("redis.Redis()", f"redis.Redis.from_url({redis_url!r})")
    example = example.replace("guard.landed(error)", "landed_later(error)")
    exec(example, names)


def lose_what_is_published(network: HttpProxy, lost: str) -> None:
    """The put of the pointer that comes after data, or its reply, and all that is asked about it then."""
    uploaded = put = False

    def pointer_after_data(request: Request) -> bool:
        nonlocal uploaded, put
        uploaded = uploaded or "/data/" in request.path
        to_pointer = uploaded and request.path.endswith("pointer.json")
        put = put or (to_pointer and request.method == "PUT")
        return to_pointer and put

    if lost == "reply":
        network.drop_reply_when(pointer_after_data)
    network.drop_request_when(pointer_after_data, times=None)


@pytest.mark.thorough
def test_late_uploaders_are_refused(
    any_redis: RedisServer, s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"my_store": s3_server.store()}
    newer = Fence("sales", 2**52, new_token())
    example = blocks("python")[0].replace(
        "        guard.publish(", "        guard.claim(newer)\n        guard.publish("
    )
    run(example, any_redis.url, {**names, "newer": newer})
    assert "a newer uploader has claimed" in capsys.readouterr().out


@pytest.mark.thorough
def test_the_pointer_is_as_shown(s3_server: S3Server) -> None:
    [shown] = blocks("json")
    least, policy = blocks("json", STORES)
    pointer = decode(shown.encode(), "sales")
    assert pointer.kept.number == 1795265474046641
    assert escape("orders:42") == "orders=3A42"  # as the page says
    store = s3_server.store()
    guard = ObjectStoreGuard(store)
    guard.publish(Fence("sales", 1, new_token()), {"total": b"100\n", "a/b": b"1"}, claim=True)
    real = bytes(store.get(POINTER).bytes())
    assert kinds(json.loads(real)) == kinds({**json.loads(shown), "published": json.loads(shown)["published"]})

    assert {statement["Effect"] for statement in json.loads(least)["Statement"]} == {"Allow"}
    statements = json.loads(policy)["Statement"]
    assert [statement["Effect"] for statement in statements] == ["Deny", "Deny"]
    assert all(statement["Resource"].endswith("/fencing/*/pointer.json") for statement in statements)

    if shutil.which("jq"):
        [console] = [block for block in blocks("console") if "jq" in block]
        [command] = re.findall(r"jq -r '(.*)'", console)
        done = subprocess.run(["jq", "-r", command], input=real, capture_output=True, timeout=300, check=True)
        found = dict(line.split("\t") for line in done.stdout.decode().splitlines())
        assert {name: bytes(store.get(key).bytes()) for name, key in found.items()} == {"total": b"100\n", "a/b": b"1"}


def kinds(value: Any) -> Any:
    """The same without what differs from pointer to pointer."""
    if isinstance(value, dict):
        fields = {key: kinds(item) for key, item in value.items()}
        return next(iter(fields.values())) if "total" in fields else fields
    return [kinds(each) for each in value[:1]] if isinstance(value, list) else type(value)


@pytest.mark.thorough
def test_the_costs(s3_server: S3Server, http_proxy: Callable[[S3Server], HttpProxy]) -> None:
    network = http_proxy(s3_server)
    counts = RequestCounts(network)
    guard = ObjectStoreGuard(s3_server.store(via=network), timeout=120)  # a late reply would be asked for again
    one, two, three = (Fence("sales", number, new_token()) for number in (1, 2, 3))

    def in_place(data: bytes = b"x") -> Any:
        return guard.write(two, "key", data)

    measured = [
        counts.during(guard.verify),
        counts.during(lambda: guard.claim(one)),
        counts.during(lambda: guard.publish(one, {"x": b"1"})),
        counts.during(lambda: guard.publish(one, {str(number): b"1" for number in range(10)})),
        counts.during(lambda: guard.publish(one, {"x": bytes(20 * 2**20)})),
        counts.during(lambda: guard.open("sales", "x").read()),
    ]
    guard.publish(two, {"x": b"1"}, claim=True)
    measured.append(counts.during(lambda: guard.collect(two)))
    assert counts.during(lambda: guard.delete(two)) == measured[1]
    measured.append(counts.during(in_place))
    stated = [row for row in costs() if row]
    assert len(stated) == len(measured)
    for counted, row in zip(measured, stated, strict=True):
        assert dict(counted) == row
    assert counts.during(lambda: in_place(b"y")) == measured[-1]
    there = guard.get("key")
    replacing = counts.during(lambda: guard.write(two, "key", b"z", replacing=there))
    assert replacing + Counter(head=1) == measured[-1]
    assert counts.during(lambda: guard.claim(three)) == measured[1]


def costs() -> list[dict[str, int]]:
    table = PAGE.read_text("utf-8").partition("## What it costs")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    stated = []
    for _, puts, gets, others in rows[2:]:
        row = {"put": int(puts or 0), "get": int(gets or 0)}
        for number, kind in re.findall(r"(\d+) (list|delete|head|to begin and end)", others):
            row["upload" if kind.startswith("to") else kind] = int(number)
        stated.append({kind: number for kind, number in row.items() if number})
    return stated
