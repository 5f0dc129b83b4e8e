"""Names become keys, and no two names the same one."""

from __future__ import annotations

import random

import pytest

from fencing.kernel.fence import MAX_RESOURCE_BYTES, Fence
from storage_guards.objects.keys import (
    MAX_ESCAPED,
    DataKey,
    Directory,
    Layout,
    check_key,
    check_name,
    check_new_name,
    escape,
    key_to_name,
    name_to_key,
)

FENCE = Fence("r", 7, "a" * 22)
AWKWARD = [
    "..", ".", "...", "a//b", "/x", "x/", "/", "//", "a/../b", "./a", "a/.", "a.b", ".a", "a.", "=", "==", "=2E", "=~",
    "a=~b", " ", "a b", "ä", "a\u0308", "\U0001f512", "\n", "\0", "%2F", "%", "?", "#", "*", "\\", "'", '"', "A", "a",
    "a=b", "a%20b", "a b%20", "a%20b ", "!", "!escaped", "!*'()", "a=1/ä=2", "a=" + "x" * 300, "a=" + "x" * 301,
    "x" * 200, "x" * 201, "x" * 1024, "ä" * 512, "a/" * 500, "." * 300, "/" * 300,
]  # fmt: skip


@pytest.mark.parametrize("how", [escape, name_to_key])
def test_no_two_names_share_a_key(how: object) -> None:
    assert callable(how)
    keys = {how(name) for name in AWKWARD}
    assert len(keys) == len(AWKWARD)


@pytest.mark.parametrize("name", AWKWARD)
def test_a_key_is_plain_and_stays_in_its_directory(name: str) -> None:
    upload = "u" * 16
    key = Directory.data_key(FENCE, upload, name)
    parsed = DataKey.parse(key)
    assert parsed is not None
    assert (parsed.number, parsed.token, parsed.upload) == (7, FENCE.token, upload)
    assert len(key) <= len(Directory.data_key(FENCE, upload, "x")) - 1 + MAX_ESCAPED
    assert key.isascii()
    assert key.isprintable()
    assert " " not in key
    assert all(part not in ("", ".", "..") for part in key.split("/"))
    assert "/" not in escape(name)
    assert parsed.name == name or "%" in name or (len(key) > 200 and "~" in (parsed.name or ""))


def test_random_names_come_back() -> None:
    chance = random.Random(7)
    for _ in range(2000):
        name = "".join(chance.choice("ab./=2~ä") for _ in range(chance.randint(1, 12)))
        found = key_to_name(name_to_key(name))
        assert found == name


def test_readable_names_stay_readable() -> None:
    assert Layout("fencing/").directory("orders:42").pointer == "fencing/orders=3A42/pointer.json"
    assert name_to_key("reports/2026-01.csv") == "reports/2026-01.csv"
    partition = "year=2026/month=11/it's(1)!*.parquet"
    assert name_to_key(partition) == partition
    assert name_to_key("city=S%C3%A3o%20Paulo/x") == "city=S%C3%A3o%20Paulo/x", "as others have escaped it"
    assert name_to_key("city=São Paulo/x") == "!escaped/city=S%C3%A3o%20Paulo/x", "as others would escape it"
    assert name_to_key("city=São%20Paulo").endswith("/city=S%C3%A3o%20Paulo"), "half escaped by others"


def test_a_partition_that_is_cut_is_none() -> None:
    """Its value would be read, and would be wrong."""
    for name in (f"city={'x' * 300}/y=1/z", "city=ä/" * 100):
        assert "=" not in name_to_key(name)


def test_no_name_begins_as_an_escaped_one() -> None:
    for name in ("!escaped/", "!escaped/x", "!escaped/ä"):
        with pytest.raises(ValueError, match="reserved"):
            check_new_name(name)
    assert check_new_name("!escaped") == "!escaped"


def test_no_object_has_the_key_of_a_manifest() -> None:
    key = Directory.manifest_key(7, "a" * 22, "u" * 16)
    parsed = DataKey.parse(key)
    assert parsed is not None
    assert (parsed.key, parsed.number, parsed.upload, parsed.name) == (key, 7, "u" * 16, None)
    fence = Fence("r", 7, "a" * 22)
    for name in ("manifest.jsonl", "../manifest.jsonl", "~/manifest.jsonl"):
        assert Directory.data_key(fence, "u" * 16, name) != key


def test_everything_fits_in_a_key() -> None:
    layout = Layout("p" * 199 + "/")
    directory = layout.directory("ä" * (MAX_RESOURCE_BYTES // 2))
    longest = Fence("r", 2**53 - 1, "a" * 128)
    assert len(directory.full(directory.data_key(longest, "u" * 16, "ä" * 512))) <= 1024 - 200


DATA = "data/0000000000000007." + "a" * 22 + "/" + "u" * 16


@pytest.mark.parametrize(
    "key",
    ["", "pointer.json", "data/7.token/u/x", "data/../x", "/data/x", DATA, f"/{DATA}", f"{DATA}".replace("7", "0")],
)
@pytest.mark.parametrize(
    "end", ["", "/", "/..", "/a//b", "/a/", "/.a", "/a b", "/a/../../b", "/a", "/manifest.json", "/manifest.jsonl/x"]
)
def test_foreign_keys_are_not_parsed(key: str, end: str) -> None:
    assert DataKey.parse(key + end) is None


@pytest.mark.parametrize("prefix", ["", "/", "a", "a//", "/a/", "../", "a/./", "a b/", "ä/", "=/", "x" * 201 + "/"])
def test_a_prefix_is_a_plain_directory(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        Layout(prefix)
    with pytest.raises(TypeError):
        Layout(7)  # type: ignore[arg-type]


def test_no_resource_is_at_the_probe() -> None:
    layout = Layout("fencing/")
    assert not any(layout.directory(name).path.startswith(layout.probe) for name in [*AWKWARD, "=probe", "probe"])


def test_names_and_keys_are_checked() -> None:
    for bad in ("", "x" * 1025, "\ud800"):
        with pytest.raises(ValueError, match="name"):
            check_name(bad)
    with pytest.raises(TypeError):
        check_name(b"x")
    for bad in (
        "a//b",
        "/a",
        "a/",
        "..",
        "a/./b",
        "a./b",
        "a\nb",
        "fencing\\orders=3A1\\pointer.json",
        "fencing./x",
        "fencing/x",
        "fencing/",
        "fencing",
    ):
        with pytest.raises(ValueError, match="key"):
            check_key(bad, "fencing/")
    assert check_key("fencing-reports/today.csv", "fencing/") == "fencing-reports/today.csv"
