"""The catalog of seeded faults fits the code as it is now. Whether each is found: ``make mutants``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalog import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]


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
