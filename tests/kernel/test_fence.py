"""The values and the admission rule."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from fencing import Fence, LeaseLost, Mark, StaleFence, UnclaimedFence
from fencing.kernel.admission import admit_claim, admit_write, as_fence, sorted_fences
from fencing.kernel.fence import MAX_NUMBER, MAX_SEQ
from fencing.locks.plans import number_to_exceed

A, B = "a" * 22, "b" * 22


@pytest.mark.parametrize("number", [1, 2, MAX_NUMBER - 1, MAX_NUMBER])
def test_numbers_within_bounds(number: int) -> None:
    assert Fence("r", number, A).number == number
    assert Mark(number, A).number == number


@pytest.mark.parametrize("number", [0, -1, MAX_NUMBER + 1, 2**64])
def test_numbers_out_of_bounds(number: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 2"):
        Fence("r", number, A)
    with pytest.raises(ValueError, match="between 1 and 2"):
        Mark(number, A)


@pytest.mark.parametrize("number", [True, "7", 7.0, math.nan, None, b"7"])
def test_numbers_of_the_wrong_kind(number: Any) -> None:
    with pytest.raises(TypeError, match="must be an int, not"):
        Fence("r", number, A)
    with pytest.raises(TypeError, match="must be an int, not"):
        Mark(number, A)


@pytest.mark.parametrize(
    ("resource", "error", "says"),
    [
        ("", ValueError, "not be empty"),
        ("fencing:1:{0}:counter", ValueError, "begin with 'fencing:'"),
        ("x" * 513, ValueError, "512 bytes"),
        ("ü" * 257, ValueError, "512 bytes"),
        ("a\0b", ValueError, "NUL"),
        ("\ud800", ValueError, "not valid Unicode"),
        (b"bytes", TypeError, "decode"),
        (None, TypeError, "must be a str"),
        (42, TypeError, "must be a str"),
    ],
)
def test_resource_names_that_are_refused(resource: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Fence(resource, 1, A)


@pytest.mark.parametrize("token", ["", "short", "a" * 21, "a" * 129, "a" * 21 + " ", "a" * 21 + "ü", "a" * 22 + "\n"])
def test_tokens_that_are_refused(token: str) -> None:
    with pytest.raises(ValueError, match="22 to 128 characters"):
        Fence("r", 1, token)


def test_a_token_is_text() -> None:
    with pytest.raises(TypeError, match="must be a str"):
        Fence("r", 1, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seq", "error"), [(-1, ValueError), (MAX_SEQ + 1, ValueError), (True, TypeError), ("1", TypeError)]
)
def test_seqs_that_are_refused(seq: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Mark(1, A, seq)


@pytest.mark.parametrize(
    "resource",
    ["orders:42", "a.b.c", "ü/\U0001f512", ' "quoted\\" %20 %', "\n\t\r", "=?;,", "x" * 512, "{tag}", "~-_."],
)
def test_the_text_of_a_fence_is_printable_and_read_back(resource: str) -> None:
    fence = Fence(resource, MAX_NUMBER, "Az09_-" * 4)
    text = str(fence)
    assert text.isascii()
    assert text.isprintable()
    assert not set(text) & set(' "\\')
    assert Fence.parse(text) == fence
    assert Fence.parse(json.loads(json.dumps(text))) == fence


def test_any_text_is_a_fence_or_a_clear_refusal() -> None:
    generator = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")
    text = str(Fence("orders:42/ü", 7, A))
    for _ in range(2000):
        letters = list(text)
        for _ in range(generator.randint(1, 3)):
            letters[generator.randrange(len(letters))] = chr(generator.choice([generator.randrange(128), 0xE9, 0x2460]))
        mutated = "".join(letters)
        try:
            assert str(Fence.parse(mutated)) == mutated, "one text for one fence"
        except ValueError as error:
            assert "not the text of a fence" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        f"7.{A}",
        f"7.{A}.",
        f"07.{A}.r",
        f"0.{A}.r",
        f"+7.{A}.r",
        f"7.{A}.%2",
        f"7.{A}.%72",
        f"7.{A}.r ",
        f"7.{A}.%FF",
        f"9007199254740992.{A}.r",
        f"\u0667.{A}.r",
        f"7.{A}.fencing:x",
        "x" * 5000,
    ],
)
def test_texts_that_are_no_fence(text: str) -> None:
    with pytest.raises(ValueError, match="not the text of a fence") as caught:
        Fence.parse(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", [f"7.{'a' * 10**6}.r", f"7.{A}.fencing:{'x' * 10**6}", "9" * 10**6])
def test_hostile_texts_do_not_make_long_messages(text: str) -> None:
    with pytest.raises(ValueError, match="not the text of a fence") as caught:
        Fence.parse(text)
    assert len(str(caught.value)) < 400


def test_the_fence_of_a_reader_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a fence of a reader; this version knows none: .*upgrade, or refuse it"):
        Fence.parse(f"7s.{A}.r")


@pytest.mark.parametrize("readers", [True, False, "7", None, -1, MAX_NUMBER + 1])
def test_a_mark_has_readers_or_none(readers: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="a mark's readers must be"):
        Mark(1, A, 0, readers)


def test_a_refusal_names_what_the_next_fence_must_exceed() -> None:
    with pytest.raises(StaleFence, match="the newer reader 9 was admitted; stop") as caught:
        admit_write(Mark(7, A, 0, 9), Fence("r", 7, A))
    assert caught.value.mark is not None
    assert number_to_exceed(caught.value) == caught.value.mark.newest == 9


def test_parse_wants_text() -> None:
    with pytest.raises(TypeError, match="must be a str, not bytes"):
        Fence.parse(b"7.a.r")  # type: ignore[arg-type]


def test_a_fence_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Fence("r", 1, A).number = 2  # type: ignore[misc]


# The admission rule, over all small cases: what was proved says (f, t) against (H, T), nothing else.

SMALL = [(number, token) for number in (1, 2, 3) for token in (A, B)]
MARKS = [None, *(Mark(*each, seq, readers) for each in SMALL for seq in (0, 5) for readers in (0, 1, 2, 3))]


@pytest.mark.parametrize(("mark", "fence"), [*itertools.product(MARKS, [Fence("r", *each) for each in SMALL])])
def test_claim_and_write(mark: Mark | None, fence: Fence) -> None:
    own = mark is not None and (mark.number, mark.token) == (fence.number, fence.token)
    newer = mark is None or fence.number > max(mark.number, mark.readers)
    if mark is not None and fence.number <= mark.readers:
        own = False  # a newer reader shuts it out, also where the mark is its own

    claimed = outcome(admit_claim, mark, fence)
    if own:
        assert claimed == mark, "a repeated claim changes nothing, so a lost reply can be retried"
    elif newer:
        assert claimed == Mark(fence.number, fence.token, 0, 0 if mark is None else mark.readers)
    else:
        assert claimed is StaleFence

    written = outcome(admit_write, mark, fence)
    if own:
        assert mark is not None
        assert written == Mark(mark.number, mark.token, mark.seq + 1, mark.readers)
    else:
        assert written is (UnclaimedFence if newer else StaleFence)


def outcome(rule: Callable[..., Mark], mark: Mark | None, fence: Fence) -> Any:
    try:
        return rule(mark, fence)
    except (StaleFence, UnclaimedFence) as error:
        assert error.fence == fence
        assert error.mark == mark
        return type(error)


def test_a_claim_on_an_absent_mark_exceeds_the_floor() -> None:
    assert admit_claim(None, Fence("r", 6, A), floor=5) == Mark(6, A)
    for number in (4, 5):
        with pytest.raises(StaleFence, match="pruned") as caught:
            admit_claim(None, Fence("r", number, A), floor=5)
        assert caught.value.floor == 5
    assert admit_claim(Mark(3, B), Fence("r", 4, A), floor=5) == Mark(4, A), "the floor is for absent marks"


# Whatever carries a fence


class Carrier:
    def __init__(self, fence: Any, ended: str | None = None) -> None:
        self.fence = fence
        self._ended = ended


def test_a_guard_takes_any_object_that_carries_a_fence() -> None:
    fence = Fence("r", 1, A)
    assert as_fence(fence) is fence
    assert as_fence(Carrier(fence)) is fence


@pytest.mark.parametrize("ended", ["released", "detached", "forked"])
def test_a_lease_that_has_ended_is_refused(ended: str) -> None:
    with pytest.raises(LeaseLost) as caught:
        as_fence(Carrier(Fence("r", 1, A), ended))
    assert caught.value.reason == ended


@pytest.mark.parametrize("holder", [None, 7, "7.a.r", Carrier(None), Carrier("7.a.r"), Fence])
def test_what_carries_no_fence_is_refused(holder: Any) -> None:
    with pytest.raises(TypeError, match="a lease or a Fence"):
        as_fence(holder)


def test_several_fences_come_in_the_order_of_their_resources() -> None:
    one, two, three = (Fence(name, 1, A) for name in "abc")
    assert sorted_fences([three, one, Carrier(two), one]) == [one, two, three]
    with pytest.raises(ValueError, match="two different fences"):
        sorted_fences([one, Fence("a", 2, B)])
    with pytest.raises(TypeError, match="at least one"):
        sorted_fences([])


def test_a_log_does_not_show_what_adopts_a_lock() -> None:
    fence = Fence("orders:1", 5, "abcdefghijklmnopqrstuv")
    assert repr(fence) == "Fence(resource='orders:1', number=5, token='abcd...')"
    assert repr(Mark(5, fence.token, 2)) == "Mark(number=5, token='abcd...', seq=2)"
    assert repr(Mark(5, fence.token, 2, 9)) == "Mark(number=5, token='abcd...', seq=2, readers=9)"
    assert fence.token in str(fence)
    assert fence.token not in repr([fence, Mark(5, fence.token)])


def test_the_fence_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    fence = Fence("orders:42", 7, A)
    monkeypatch.setenv("FENCING_TOKEN", str(fence))
    assert Fence.from_environment() == fence
    for text, message in (("", "is not set: start this program by `fencing run"), ("7", "FENCING_TOKEN is wrong: not")):
        monkeypatch.setenv("FENCING_TOKEN", text)
        with pytest.raises(ValueError, match=message):
            Fence.from_environment()
    monkeypatch.delenv("FENCING_TOKEN")
    with pytest.raises(ValueError, match="is not set"):
        Fence.from_environment()
