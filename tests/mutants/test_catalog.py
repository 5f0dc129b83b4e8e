"""The catalog of seeded faults fits the code as it is now. Whether each is found: ``make mutants``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import write
from tests.mutants.catalog import MUTANTS, Mutant
from tools.faces import PAIRS

ROOT = Path(__file__).resolve().parents[2]


def test_a_fault_of_an_async_face_is_put_into_the_sync_one_too(tmp_path: Path) -> None:
    pair = PAIRS[0]
    for name in pair:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    text = (ROOT / pair.source).read_text("utf-8")
    write(tmp_path / pair.source, text + "\n\nfault = True\n", tmp_path)
    assert (tmp_path / pair.face).read_text("utf-8").endswith("\nfault = True\n")
    write(tmp_path / pair.source, text, tmp_path)
    assert (tmp_path / pair.face).read_bytes() == (ROOT / pair.face).read_bytes()


def test_none_is_in_a_file_that_is_made_from_another() -> None:
    assert not {mutant.file for mutant in MUTANTS} & {pair.face for pair in PAIRS}


def test_no_two_have_one_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_text_occurs_once_in_the_code(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text("utf-8").count(mutant.before) == 1
    assert mutant.after != mutant.before


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_that_find_it_are_still_there(mutant: Mutant) -> None:
    for test in mutant.killed_by:
        file, *_, name = test.partition("[")[0].split("::")
        assert (ROOT / file).is_file(), test
        inherited = test.count("::") > 1  # of a contract
        assert inherited or f"def {name}(" in (ROOT / file).read_text("utf-8"), test
