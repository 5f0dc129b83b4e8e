"""redis-py's own tests of its locks, over ours. They run in a process of their own, with redis-py's options."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import redis

from examples.servers import RedisServer

SUITE = Path(__file__).resolve().parent / "redis_py"
VERSION = "8.1.0"
DIGESTS = {
    "test_lock.py": "4cd97a4aec70d4ab0ed14be79726ef1af4ef3b31737079e168a63420f4656b23",
    "test_asyncio/test_lock.py": "02846bd241d78c04a8479022d035294a25514a0fbc51a6d35277c6bbe27174a8",
}
COLLECTED = {"sync": 32, "async": 60}


@pytest.mark.parametrize("name", DIGESTS)
def test_the_tests_are_those_of_redis_py(name: str) -> None:
    assert hashlib.sha256((SUITE / name).read_bytes()).hexdigest() == DIGESTS[name]


@pytest.mark.thorough
@pytest.mark.parametrize("series", ["8", "7", "6.2"])
def test_redis_pys_own_tests_pass(series: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server: RedisServer = request.getfixturevalue("redis_servers").get(series)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(SUITE / "pytest.ini")]
    for _ in range(3):  # some of them have leases of 0.1 s, for which a busy machine may be too late
        done = subprocess.run(
            [*command, f"--junitxml={report}", "--redis-url", server.url, str(SUITE)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=SUITE.parents[2],
        )
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "deselected" not in done.stdout
    cases = list(ET.parse(report).getroot().iter("testcase"))
    passed = [case for case in cases if not len(case)]  # no failure, error or skip inside
    for kind, count in COLLECTED.items():
        of_kind = [case for case in cases if ("asyncio" in str(case.get("classname"))) is (kind == "async")]
        print(f"{kind}: {len(of_kind)} collected, {sum(case in passed for case in of_kind)} passed")
        assert len(of_kind) == count
    print(f"tests of redis-py {VERSION}, redis-py {redis.__version__}, Redis {series}")
    assert passed == cases
