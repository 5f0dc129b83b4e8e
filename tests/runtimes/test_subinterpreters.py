"""Isolated subinterpreters, as ``InterpreterPoolExecutor`` has them: they may start no daemon thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# A process of its own: some releases of CPython crash as a process ends that had one.
_MAIN = """
import os, sys
try:
    from concurrent import interpreters  # 3.14
except ImportError:
    try:
        import _interpreters as module
    except ImportError:
        import _xxsubinterpreters as module
    failure = module.run_string(module.create(), sys.argv[1])
    assert failure is None, failure
else:
    interpreters.create().exec(sys.argv[1])
sys.stdout.flush()
os._exit(0)
"""
_INSIDE = f"""
import sys
sys.path[:0] = {[str(Path.cwd()), *sys.path]!r}
from fencing import MemoryCoordinator

coordinator = MemoryCoordinator(ttl=10)
for _ in range(2):
    try:
        coordinator.acquire("orders:42", timeout=1)
    except RuntimeError as error:
        print(error)
print(coordinator.holder("orders:42"))
sys.stdout.flush()
"""


def test_a_lock_is_refused_in_words_and_given_back() -> None:
    run = subprocess.run([sys.executable, "-c", _MAIN, _INSIDE], capture_output=True, text=True, timeout=60, check=True)
    first, second, holder = run.stdout.splitlines()
    assert first == second
    assert "subinterpreter has no daemon threads" in first
    assert "main interpreter" in first
    assert holder == "None"
