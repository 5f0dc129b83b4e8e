"""Which package may import which, and what an import must not drag in."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNEL = {
    "fencing.kernel.fence",
    "fencing.kernel.errors",
    "fencing.kernel.guard",
    "fencing.testing.contract",
    "fencing.kernel.effects",
}


def imports_of(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # "from fencing import errors" names the module fencing.kernel.errors, where there is one
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if (ROOT / (inner.replace(".", "/") + ".py")).is_file() else node.module)
    return found


def modules_of(package: str) -> list[Path]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"there is nothing in {package}"
    return files


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@pytest.mark.parametrize("file", modules_of("fencing"), ids=lambda file: file.stem)
def test_the_lock_side_does_not_know_the_guards(file: Path) -> None:
    for module in imports_of(file):
        assert not is_in(module, "storage_guards"), f"{file.name} imports {module}"
        assert not is_in(module, "examples"), f"{file.name} imports {module}"
        assert not is_in(module, "tests"), f"{file.name} imports {module}"


@pytest.mark.parametrize("file", modules_of("storage_guards"), ids=lambda file: file.stem)
def test_the_guards_stand_on_the_kernel_alone(file: Path) -> None:
    for module in imports_of(file):
        assert not is_in(module, "redis"), f"{file.name} imports {module}"
        if is_in(module, "fencing"):
            assert module in KERNEL, f"{file.name} imports {module}"


@pytest.mark.parametrize("module", sorted(KERNEL))
def test_the_kernel_depends_on_the_standard_library_alone(module: str) -> None:
    for imported in imports_of(ROOT / (module.replace(".", "/") + ".py")):
        top = imported.partition(".")[0]
        assert imported in KERNEL or top in sys.stdlib_module_names, f"{module} imports {imported}"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("import storage_guards.sqlalchemy.guard, fencing.kernel.fence", "redis"),
        ("from storage_guards import SQLAlchemyGuard; from fencing import Fence, StaleFence", "redis"),
        ("from storage_guards import MemoryGuard", "sqlalchemy"),
        ("from storage_guards import MemoryGuard", "obstore"),
        ("from storage_guards import ObjectStoreGuard", "sqlalchemy"),
        ("from storage_guards import PsycopgGuard, AsyncPsycopgGuard", "sqlalchemy"),
        ("from storage_guards import PsycopgGuard, AsyncPsycopgGuard", "redis"),
        ("from storage_guards import PsycopgGuard, AsyncPsycopgGuard", "psycopg_pool"),
        ("import storage_guards.sql.enforcement", "psycopg"),
        ("import storage_guards.sql.enforcement", "sqlalchemy"),
        ("from fencing import RedisCoordinator", "sqlalchemy"),
        ("import fencing, storage_guards", "asyncio"),
    ],
)
def test_an_import_brings_only_what_it_needs(imported: str, absent: str) -> None:
    assert run(f"import sys; {imported}; print({absent!r} in sys.modules)") == "False\n"


@pytest.mark.parametrize(
    ("guard", "absent", "extra"),
    [
        ("SQLAlchemyGuard", "sqlalchemy", "sqlalchemy"),
        ("AsyncPsycopgGuard", "psycopg", "psycopg"),
        ("ObjectStoreGuard", "obstore", "objectstore"),
    ],
)
def test_a_guard_whose_driver_is_not_installed_names_the_extra(guard: str, absent: str, extra: str) -> None:
    code = f"""
import sys

class Absent:
    def find_spec(name, *_):
        if name == {absent!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent)
try:
    from storage_guards import {guard}
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    said = run(code)
    assert said.startswith(f"{absent} {guard} needs {absent}, which is not installed")
    assert f"the extra [{extra}]" in said


def test_the_public_names_are_all_there() -> None:
    code = "import fencing; print(len([getattr(fencing, name) for name in fencing.__all__]), 'Fence' in dir(fencing))"
    count, listed = run(code).split()
    assert int(count) >= 20
    assert listed == "True"
    assert run("import fencing\ntry: fencing.nothing\nexcept AttributeError as e: print(e)").startswith("module")
