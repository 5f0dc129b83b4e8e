"""All parsers with generated and damaged input; ``make torture ARGS="parsers"`` does it for longer."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest

from tests.torture import parsers
from tests.torture.parsers import PARSERS, Parser, attack

SEED = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**32)


@pytest.mark.parametrize("cases", [40, pytest.param(4000, marks=pytest.mark.deep)])
def test_what_is_written_is_read_and_what_is_damaged_is_refused(cases: int) -> None:
    print(f"FENCING_SEED={SEED}")
    tallies, faults = attack(SEED, cases=cases)
    assert not faults, "\n".join(faults)
    for name, tally in tallies.items():
        assert tally.read >= cases, name
        assert tally.refused or not PARSERS[name].refused_with, f"{name}: the damage is too small"


def a_number(chance: random.Random) -> int:
    return chance.randrange(1000)


def wait(text: str) -> int:
    began = time.thread_time()
    while time.thread_time() - began < 0.01:
        pass
    return int(text)


FAULTY: dict[str, Parser] = {
    "an error that is not documented": Parser(a_number, str, lambda text: int(text) if text.isascii() else {}[text]),
    "a value that is not read back": Parser(a_number, str, lambda text: int(text[:2]), (ValueError,)),
    "a valid text that is refused": Parser(a_number, lambda number: f"<{number}>", int, (ValueError,)),
    "a second text of a value": Parser(a_number, str, int, (ValueError,), is_exact=True),
    "damage that is read as another value each time": Parser(
        a_number, str, lambda text: int(text) if text.isdecimal() and len(text) < 4 else len(text) + 1000
    ),
    "a slow one": Parser(a_number, str, wait, (ValueError,)),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_attack_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsers, "LONGEST_SECONDS", 0.01 if name == "a slow one" else 1.0)
    monkeypatch.setitem(PARSERS, name, FAULTY[name])
    _, faults = attack(7, cases=100, names=(name,))
    assert faults
    assert faults[0].startswith(f"{name}, case ")


def test_the_seed_alone_decides_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setitem(PARSERS, "seen", Parser(a_number, str, lambda text: seen.append(text)))
    for _ in range(2):
        attack(3, cases=5, names=("seen",))
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
    first = len(seen)
    attack(4, cases=5, names=("seen",))
    assert seen[:10] != seen[first : first + 10]
