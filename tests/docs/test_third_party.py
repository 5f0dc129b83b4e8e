"""A third party has the package with what it declares, pytest, and a folder of its own: the contract runs there."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "coordinators" / "your-own.md"

SUITE = """
import sys
sys.path[:0] = {path!r}
assert not [each for each in sys.path if "site-packages" in each or "dist-packages" in each], sys.path
import pytest
sys.exit(pytest.main(["-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", {folder!r}, {folder!r}]))
"""


def declared(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Return a distribution, and what it requires without extras, by their names."""
    name = canonicalize_name(name)
    if name not in found:
        found[name] = importlib.metadata.distribution(name)
        for line in found[name].requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                declared(needed.name, found)
    return found


def install(distributions: dict[str, Distribution], target: Path) -> None:
    """Copy the files of distributions, as an installer of wheels writes them."""
    for name, each in distributions.items():
        for file in each.files or ():
            if ".." in file.parts or file.is_absolute() or "__pycache__" in file.parts or file.suffix == ".pth":
                continue
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(each.locate_file(file)), target / file)
        if name == "fencing" and not (target / "fencing").exists():  # of an editable installation
            for package in ("fencing", "storage_guards"):
                shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.thorough
def test_the_suite_of_a_third_party_runs_without_this_project(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "theirs"
    folder.mkdir()
    found = declared("fencing", declared("pytest", {}))
    assert {"fencing", "redis", "pytest"} <= set(found)
    assert not {"sqlalchemy", "psycopg", "pytest-xdist", "pytest-asyncio"} & set(found)
    install(found, site)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (folder / "test_their_coordinator.py").write_text("\n\n".join(blocks), "utf-8")
    program = SUITE.format(path=[str(site)], folder=str(folder))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 4 * 40
    assert "skipped" in done.stdout, "what the service has not is skipped"
    assert "failed" not in done.stdout
