"""What the benchmarks make of their measurements: the parts without a server or a clock."""

from __future__ import annotations

import json
import statistics
import xml.etree.ElementTree as Xml
from pathlib import Path

import pytest

from tests.benchmarks.charts import Bar, Group, Panel, bars, lines
from tests.benchmarks.children import ChildFailed, in_child
from tests.benchmarks.closed_loop import Grant
from tests.benchmarks.contended import fairness, hand_offs, longest_wait, numbers_of
from tests.benchmarks.measure import Spread, jain, percentile, ratios, shares_above, spread_of, turns
from tests.benchmarks.parts import PARTS, Figure, Run
from tests.benchmarks.ratios import ratios_page
from tests.benchmarks.raw import _commands
from tests.benchmarks.report import DOCS, TEXTS, numbers_page, pictures, write_pages
from tests.benchmarks.tables import figure_rows, figure_text, markdown, number, plain, verdict_rows
from tests.benchmarks.targets import TARGETS, Target, assess

SVG = "{http://www.w3.org/2000/svg}"


def figure(median: float, scenario: str = "here", of: str = "ours", what: str = "time") -> Figure:
    return Figure(scenario, of, what, median, median * 0.9, median * 1.1)


def test_a_spread_is_the_median_and_two_percentiles() -> None:
    values = [float(value) for value in range(101)]
    assert spread_of(values) == Spread(50, 10, 90)
    assert spread_of([3.0]) == Spread(3, 3, 3)
    assert percentile([1.0, 2.0], 0.5) == 1.5
    assert percentile([5.0, 1.0, 3.0], 1.0) == 5
    assert spread_of(values).median == statistics.median(values)
    with pytest.raises(ValueError):
        percentile([], 0.5)


def test_ratios_are_those_of_neighbours() -> None:
    assert ratios([1, 4, 9], [2, 2, 3]) == [0.5, 2, 3]
    assert ratios([1, 1], [0, 2]) == [0.5], "a neighbour of no time says nothing"
    with pytest.raises(ValueError):
        ratios([1, 2], [1])


def test_what_lies_above_the_limit_is_compared_without_it() -> None:
    assert shares_above([10, 10], [20, 15], [30, 20]) == [0.5, 0.5]
    assert shares_above([10, 10], [20, 15], [30, 10]) == [0.5], "who is not above the limit has no share"


@pytest.mark.parametrize(
    ("counts", "fairness"),
    [([5, 5, 5, 5], 1.0), ([7, 0, 0, 0], 0.25), ([2, 1], 0.9), ([0, 0], 1.0)],
)
def test_fairness_is_jains(counts: list[float], fairness: float) -> None:
    assert jain(counts) == pytest.approx(fairness)


def test_everybody_has_a_turn_each_round_and_nobody_the_same_neighbour() -> None:
    assert list(turns("abc", 3, ())) == list("abcbcacab")
    assert list(turns("abc", 2, {"b"})) == list("acca")


def test_who_fails_meanwhile_has_no_more_turns() -> None:
    failed: set[str] = set()
    had = []
    for name in turns("ab", 3, failed):
        had.append(name)
        if name == "a":
            failed.add(name)
    assert had == list("abbb")


def test_hand_offs_lie_between_a_release_and_the_next_grant() -> None:
    grants = [Grant(0, 1.0, 1.75), Grant(1, 2.0, 2.5), Grant(0, 3.0, 3.5)]
    assert hand_offs(grants) == [0.25, 0.5]
    assert hand_offs(grants[:1]) == []


def test_the_longest_wait_counts_those_who_never_get_it() -> None:
    grants = [Grant(0, 1.0, 1.75), Grant(1, 2.0, 2.5), Grant(0, 3.0, 3.5)]
    assert longest_wait(grants, 2, 0.5, 4.0) == 1.5
    assert longest_wait(grants, 3, 0.5, 4.0) == 3.5


@pytest.mark.parametrize(
    ("workers", "index"),
    [("0120120", 1.0), ("012", 1.0), ("01", 2 / 3), ("000111", 2 / 3), ("0000000", 1 / 3), ("", 1.0)],
)
def test_a_turn_begun_does_not_count_against_fairness(workers: str, index: float) -> None:
    grants = [Grant(int(worker), at, at) for at, worker in enumerate(workers)]
    assert fairness(grants, 3) == pytest.approx(index)


def test_a_window_counts_its_own_grants_alone() -> None:
    numbers = numbers_of(
        {
            "workers": 2,
            "grants": [[0, 0.5, 0.6], [0, 1.0, 1.1], [1, 1.5, 1.6], [1, 2.0, 2.1], [0, 2.5, 2.6], [1, 2.7, 2.8]],
            "window": [1.0, 2.0],
            "cpu": 0.5,
            "counted": [2.0, 3.0],
            "commands": 9,
            "idle_round_trip": 0.1,
        }
    )
    assert numbers["grants/s"] == 2
    assert numbers["fairness (Jain)"] == 1
    assert numbers["CPU a grant, µs"] == pytest.approx(250_000)
    assert numbers["commands a grant"] == 3
    assert numbers["hand-off p50, µs"] == pytest.approx(400_000)
    assert numbers["p50, x idle round trip"] == pytest.approx(4)


def test_recorded_bytes_are_taken_apart_at_the_commands() -> None:
    first, second = b"*2\r\n$3\r\nGET\r\n$4\r\n*1\r\n\r\n", b"*1\r\n$4\r\nPING\r\n"
    assert _commands(first + second) == [first, second]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.012345, "0.0123"),
        (0.4, "0.400"),
        (1, "1.00"),
        (62.04, "62.0"),
        (743.2, "743"),
        (123456.7, "123,457"),
    ],
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_a_figure_says_how_it_varied_if_it_did() -> None:
    assert figure_text(figure(2.0)) == "2.00 (1.80 … 2.20)"
    assert figure_text(figure(2.0), "x") == "x 2.00 (1.80 … 2.20)"
    assert figure_text(Figure("", "", "", 3, 3, 3), "ms") == "3.00 ms"
    assert figure_text(None) == "-"


def test_a_scenario_is_a_table_in_the_order_of_its_figures() -> None:
    figures = [figure(1, of="raw"), figure(2), figure(3, what="CPU"), figure(4, scenario="elsewhere")]
    rows = figure_rows(figures, "here")
    assert [list(row) for row in rows] == [
        ["", "time", "CPU"],
        ["raw", "1.00 (0.900 … 1.10)", "-"],
        ["ours", "2.00 (1.80 … 2.20)", "3.00 (2.70 … 3.30)"],
    ]
    assert markdown([["a|b", "c"], ["1", "2"]]) == "| a\\|b | c |\n| --- | --- |\n| 1 | 2 |"
    assert plain([["a", "bb"], ["ccc", ""]]) == "a    bb\nccc"


def test_the_worst_of_a_targets_figures_decides() -> None:
    target = Target("t", 1.0, (("p", "here", "ours", "time"), ("p", "there", "ours", "time")))
    met = assess(target, {"p": [figure(0.5), figure(1.0, "there")]})
    assert (met.met, met.said) == (True, "met")
    missed = assess(target, {"p": [figure(0.5), figure(1.5, "there")]})
    assert (missed.met, missed.said) == (False, "missed by 50% (there)")
    least = assess(Target("t", 1.0, target.places, at_least=True), {"p": [figure(0.75), figure(1.5, "there")]})
    assert (least.met, least.said) == (False, "missed by 25% (here)")


def test_a_target_that_was_not_measured_is_not_met() -> None:
    target = Target("t", 1.0, (("p", "here", "ours", "time"), ("p", "there", "ours", "time")))
    nothing = assess(target, {})
    assert (nothing.met, nothing.said, nothing.figure) == (False, "not measured", None)
    half = assess(target, {"p": [figure(0.5)]})
    assert (half.met, half.said) == (False, "1 of 2 not measured")
    assert verdict_rows([nothing])[1][0] == "t", "it is in the table all the same"


def test_targets_name_parts_that_there_are() -> None:
    assert {place[0] for target in TARGETS for place in target.places} <= PARTS.keys()
    assert TEXTS.keys() == PARTS.keys()


@pytest.mark.parametrize("hiredis", [True, False])
def test_a_measurement_in_a_child_ends_in_its_result_or_its_last_words(hiredis: bool) -> None:
    assert in_child("measure.jain", seconds=30, hiredis=hiredis, counts=[1, 1]) == 1
    with pytest.raises(ChildFailed, match="nothing was measured"):
        in_child("measure.percentile", seconds=30, hiredis=hiredis, values=[], share=0.5)


def test_a_measurement_that_takes_too_long_is_killed() -> None:
    with pytest.raises(ChildFailed, match="killed"):
        in_child("measure.jain", seconds=0.001, counts=[1, 1])


def test_a_run_keeps_failures_beside_figures() -> None:
    run = Run("pair", quick=True)
    run.add("here", "ours", "time", [1.0, 2.0, 3.0])
    run.add("here", "ours", "none", [])
    run.failed("here", "theirs", "it hangs")
    result = run.result()
    assert [each["median"] for each in result["figures"]] == [2.0]
    assert result["failures"] == [{"scenario": "here", "of": "theirs", "said": "it hangs"}]


def test_bars_are_as_long_as_they_are_to_be() -> None:
    group = Group("g", [Bar("a & b", 1, 0.5, 2, ours=False), Bar("ours", 10, 9, 11, ours=True)])
    tree = Xml.fromstring(bars("title <1>", [group], unit="x", mark=2, marked="theirs"))
    assert tree.findtext(f"{SVG}title") == "title <1>"
    widths = {str(rect.get("class")): float(str(rect.get("width"))) for rect in tree.iter(f"{SVG}rect")}
    assert widths["bar"] < widths["bar ours"]
    assert "prefers-color-scheme: dark" in str(tree.findtext(f"{SVG}style"))
    Xml.fromstring(bars("nothing", [], unit="x"))
    Xml.fromstring(bars("nought", [Group("g", [Bar("a", 0, 0, 0, ours=True)])], unit="ms"))


def test_lines_cope_with_gaps_and_noughts() -> None:
    series = {"ours": {2: 1.0, 8: 10.0}, "theirs": {8: 0.0}}
    drawn = lines("t", [2, 8], [Panel("p", series), Panel("q", series, logarithmic=False, mark=0.5), Panel("r", {})])
    tree = Xml.fromstring(drawn)
    assert len(list(tree.iter(f"{SVG}circle"))) == 2 + 3


def test_a_page_is_made_of_the_results_alone() -> None:
    pair = [
        figure(0.3, "one thread, one core, with hiredis", "fencing", "x redis-py Lock"),
        figure(4.0, "one thread, one core, with hiredis", "pottery", "x redis-py Lock"),
    ]
    run = Run("pair", quick=True, figures=pair)
    run.failed("here", "theirs", "it | hangs\nfor ever")
    machine = {"processor": "p", "cores": 2, "system": "s", "python": "3", "date": "d", "servers": {}, "packages": {}}
    noise = [{"load": 0.5, "spin": 1.1}]
    results = {
        "machine": machine,
        "quick": True,
        "parts": {"pair": {**run.result(), "noise": noise, "text": "said by itself"}},
    }
    drawn = pictures({"pair": pair})
    assert drawn.keys() == {"pair"}
    text = numbers_page(results, drawn)
    assert "| fencing | 0.300 (0.270 … 0.330) |" in text
    assert "](pair.svg)" in text
    assert "Failed: *here*, theirs: it \\| hangs for ever" in text
    assert "**A quick run**" in text
    assert "```text\nsaid by itself\n```" in text
    assert text.count("not measured") == len(TARGETS) - 1


def test_the_page_of_ratios_says_what_was_measured_and_what_was_not() -> None:
    figures = [
        figure(0.9, "one thread, one core, with hiredis", "fencing", "x redis-py Lock"),
        figure(4.0, "one thread, one core, with hiredis", "pottery", "x redis-py Lock"),
    ]
    machine = {"processor": "p", "cores": 2, "system": "s", "python": "3", "date": "d", "servers": {}, "packages": {}}
    printed = "put 1 KiB  1 ms  1 put\npublish 1 KiB   8.2 ms   2.5 ms cpu   x 4.77 (4.45 … 5.13)  2 get, 2 put\n"
    parts = {
        "pair": {**Run("pair", quick=True, figures=figures).result(), "noise": [], "text": ""},
        "object_store": {"figures": [], "failures": [], "noise": [], "text": printed},
    }
    text = ratios_page({"machine": machine, "quick": True, "parts": parts}, {})
    assert "| one thread | x 0.90 | - | x 4.00 | - | - |" in text
    assert "| publish 1 KiB | x 4.77 |" in text
    assert "x 0.90 of the time of redis-py Lock, and (not measured) with 64 asyncio tasks" in text
    assert "| acquire and release, one thread: time, compared with redis-py's Lock | ≤ x 0.400 | x 0.900 |" in text
    assert "## Contention" not in text, "a section without a figure is left out"


def test_the_pages_are_those_of_the_recorded_run(tmp_path: Path) -> None:
    results = json.loads((DOCS / "benchmarks" / "results.json").read_text("utf-8"))
    for file in write_pages(results, tmp_path):
        committed = DOCS / file.relative_to(tmp_path)
        assert file.read_text("utf-8") == committed.read_text("utf-8"), (
            f"python -m tests.benchmarks report makes {file}"
        )
