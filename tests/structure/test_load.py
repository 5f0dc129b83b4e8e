"""How many processes share the tests, and which tests may say that they are starved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import load
from tests.support.load import LOAD_AT_START, quotas, starved, usable_cpus, workers_for

ROOT = Path(__file__).resolve().parents[2]

MAY_BE_STARVED = {
    "tests/redlock/test_schedules.py": ["test_under_a_guard_nothing_is_lost_in_any_schedule"],
    "tests/redis/test_renewal_of_thousands.py": ["test_threads", "test_asyncio"],
}
"""The files that use ``starved``, and all their tests."""


@pytest.mark.parametrize(
    ("cpus", "busy", "workers"),
    [
        (2, 0.0, 6),
        (2, 2.0, 6),
        (2, 2.5, 4),
        (2, 15.0, 4),
        (1, 0.5, 3),
        (1, 2.0, 3),
        (0.2, 0.0, 1),
        (0.2, 9.0, 1),
        (1.5, 0.0, 4),
        (3, 0.0, 6),
        (64, 10.0, 6),
        (64, 75.0, 5),
        (64, 100.0, 4),
    ],
)
def test_three_for_each_cpu_six_in_all_and_fewer_on_a_busy_machine(cpus: float, busy: float, workers: int) -> None:
    count, why = workers_for(cpus, busy)
    assert count == workers
    assert f"{cpus:g} CPUs" in why
    assert f"load is {busy:.1f}" in why
    assert ("fewer" in why) is (busy > cpus)


def test_the_quotas_of_control_groups(tmp_path: Path) -> None:
    """Version 1 has a tree for each controller, and version 2 one; a container may see its own group as the root."""
    groups = tmp_path / "cgroup"
    groups.write_text("9:name=systemd:/\n2:cpu,cpuacct:/docker/abc\n1:memory:/\n0::/user/tests\n")
    files = {
        "user/cpu.max": "150000 100000\n",
        "user/tests/cpu.max": "max 100000\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "memory/cpu.max": "1 100000\n",
        "cpu.max": "400000 100000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sorted(quotas(groups, tmp_path)) == [0.5, 1.5, 4.0]
    assert list(quotas(tmp_path / "nowhere", tmp_path)) == []


def test_this_machine_has_cpus() -> None:
    assert 0 < usable_cpus() <= 4096
    assert load.load_now() >= 0


@pytest.mark.parametrize(("required", "before", "fails"), [("", 0, False), ("1", 0.9, True), ("1", 1.5, False)])
def test_a_starved_test_fails_only_in_ci_on_a_quiet_machine(
    monkeypatch: pytest.MonkeyPatch, required: str, before: float, fails: bool
) -> None:
    monkeypatch.setattr(load, "usable_cpus", lambda: 1.0)
    monkeypatch.setenv("FENCING_REQUIRE_CPUS", required)
    monkeypatch.setenv(LOAD_AT_START, str(before))
    with pytest.raises(pytest.fail.Exception if fails else pytest.skip.Exception, match=r"the load is .*a reason"):
        starved("a reason")


def test_at_most_five_tests_may_be_starved() -> None:
    files = {
        str(file.relative_to(ROOT)): file.read_text("utf-8")
        for file in (ROOT / "tests").rglob("*.py")
        if file != Path(__file__)
    }
    assert {name for name, text in files.items() if "import starved" in text} == set(MAY_BE_STARVED)
    for name, tests in MAY_BE_STARVED.items():
        assert re.findall(r"(?m)^def (test_\w+)", files[name]) == tests
    assert sum(map(len, MAY_BE_STARVED.values())) <= 5
