"""uvloop: the contracts of all async coordinators and guards, and the tests of what depends on the order of events."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

_TESTS = ("tests/memory", "tests/redis/test_cluster.py", "tests/locks/test_waiting.py", "tests/locks/test_renewal.py")


@pytest.mark.deep
def test_the_contracts_on_its_loops() -> None:
    pytest.importorskip("uvloop")
    contracts = [f"tests/{name}/test_contract.py" for name in sorted(os.listdir("tests")) if has_contract(name)]
    command = [sys.executable, "-m", "pytest", "-p", "tests.runtimes.on_uvloop", "-p", "no:cacheprovider", "-q", "-v"]
    run = subprocess.run(
        [*command, *contracts, *_TESTS, "-k", "async"], capture_output=True, text=True, timeout=600, check=False
    )
    assert "event loops: uvloop" in run.stdout
    assert run.returncode == 0, run.stdout
    [passed] = re.findall(r"(\d+) passed", run.stdout)
    assert int(passed) > 300


def has_contract(folder: str) -> bool:
    return os.path.exists(f"tests/{folder}/test_contract.py")
