"""What the benchmarks make of their measurements: the parts without a server or a clock."""

from __future__ import annotations

import importlib
import json
import statistics
import xml.etree.ElementTree as Xml
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fencing
import storage_guards
from examples.servers.etcd import find_etcd_binary
from tests.benchmarks import etcd, etcd_contenders, object_store, sql, sql_locks
from tests.benchmarks.__main__ import write_times
from tests.benchmarks.calls import CROSSINGS, PYTHON, counted
from tests.benchmarks.charts import Panel, lines
from tests.benchmarks.children import ChildFailed, in_child
from tests.benchmarks.closed_loop import Grant
from tests.benchmarks.contended import (
    COMMANDS,
    CPU,
    FAIRNESS,
    GRANTS,
    P50,
    fairness,
    hand_offs,
    longest_wait,
    numbers_of,
)
from tests.benchmarks.contenders import AGAIN, OURS, REDIS_PY, THREADS
from tests.benchmarks.duel import Batch, Contenders, serve
from tests.benchmarks.measure import Spread, jain, number, percentile, ratios, shares_above, spread_of, turns
from tests.benchmarks.pair import TIME, scenario_of
from tests.benchmarks.parts import ALL_ONLY, COMPARED, PARTS, Figure, Other, Run, load, merged, ratio_to
from tests.benchmarks.raw import RAW, commands_of
from tests.benchmarks.report import DOCS, TEXTS, contention_chart, numbers_page, write_pages
from tests.benchmarks.rows import ROWS, Row, assess, verdicts
from tests.benchmarks.sql_contenders import TWO_UPDATES
from tests.benchmarks.tables import figure_rows, figure_text, markdown, missed, plain, ratio_rows, verdict_rows
from tests.benchmarks.user_page import user_page

OTHER = Other("v1", Path("there"))
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


def test_a_time_above_the_limit_is_compared_without_the_limit() -> None:
    assert shares_above([10, 10], [20, 15], [30, 20]) == [0.5, 0.5]
    assert shares_above([10, 10], [20, 15], [30, 10]) == [0.5], "a time below the limit has no share"


@pytest.mark.parametrize(
    ("counts", "fairness"),
    [([5, 5, 5, 5], 1.0), ([7, 0, 0, 0], 0.25), ([2, 1], 0.9), ([0, 0], 1.0)],
)
def test_fairness_is_jains(counts: list[float], fairness: float) -> None:
    assert jain(counts) == pytest.approx(fairness)


def test_each_contender_has_a_turn_in_each_round_and_rounds_are_shuffled() -> None:
    order = list(turns("abc", 20))
    rounds = ["".join(order[start : start + 3]) for start in range(0, 60, 3)]
    assert {"".join(sorted(each)) for each in rounds} == {"abc"}
    assert len(set(rounds)) > 3
    assert set(turns("abc", 2, {"b"})) == {"a", "c"}


def test_a_contender_that_fails_has_no_more_turns() -> None:
    failed: set[str] = set()
    had = []
    for name in turns("ab", 3, failed):
        had.append(name)
        if name == "a":
            failed.add(name)
    assert had.count("a") == 1
    assert had.count("b") == 3


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
    [("0120120", 1.0), ("012", 1.0), ("01", 1.0), ("00", 1 / 2), ("000111", 2 / 3), ("0000000", 1 / 3), ("", 1.0)],
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
        }
    )
    assert numbers[GRANTS] == 2
    assert numbers[FAIRNESS] == 1
    assert numbers[CPU] == pytest.approx(250_000)
    assert numbers[COMMANDS] == 3
    assert numbers[P50] == pytest.approx(400_000)


def test_recorded_bytes_are_taken_apart_at_the_commands() -> None:
    first, second = b"*2\r\n$3\r\nGET\r\n$4\r\n*1\r\n\r\n", b"*1\r\n$4\r\nPING\r\n"
    assert commands_of(first + second) == [first, second]


def test_calls_are_counted_with_the_crossings_between_modules() -> None:
    def own() -> None: ...

    def operation() -> None:
        own()
        own()
        jain([1.0])

    calls = counted(operation, "tests")
    # The operation is called from another module. Within jain, a generator has two steps.
    assert calls[PYTHON] == [6]
    assert calls[CROSSINGS] == [2]


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
    assert figure_text(Figure("", "", "", 3, 3, 3)) == "3"
    assert figure_text(Figure("", "", "", 0.3, 0.3, 0.3)) == "0.300"
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


PLACES = (("p", "here", "ours", "time"), ("p", "there", "ours", "time"))


def test_the_worst_of_a_rows_figures_decides() -> None:
    row = Row("t", 1.0, PLACES)
    met = assess(row, {"p": [figure(0.5), figure(1.0, "there")]})
    assert (met.met, met.said) == (True, "met")
    over = assess(row, {"p": [figure(0.5), figure(1.5, "there")]})
    assert (over.met, over.said) == (False, "MISSED (there)")
    least = assess(Row("t", 1.0, PLACES, at_least=True), {"p": [figure(0.75), figure(1.5, "there")]})
    assert (least.met, least.said) == (False, "MISSED (here)")


def test_a_row_that_was_not_measured_is_not_met() -> None:
    row = Row("t", 1.0, PLACES)
    nothing = assess(row, {})
    assert (nothing.met, nothing.said, nothing.figure) == (False, "not measured", None)
    half = assess(row, {"p": [figure(0.5)]})
    assert (half.met, half.said) == (False, "1 of 2 not measured")
    assert verdict_rows([nothing])[1][0] == "t", "it is in the table all the same"
    assert missed([nothing, half]) == ["t: -, target ≤ 1", "t: 0.500 (0.450 … 0.550), target ≤ 1"]


def test_a_row_of_a_server_that_is_not_here_is_left_out() -> None:
    row = f"{sql.MYSQL}: guard.write / plain"
    assert row not in {verdict.row.name for verdict in verdicts({"sql": []})}
    measured = figure(2.5, sql.MYSQL, sql.WRITE, ratio_to(sql.PLAIN, sql.TIME))
    [said] = [verdict.said for verdict in verdicts({"sql": [measured]}) if verdict.row.name == row]
    assert said == "MISSED"


def test_a_row_without_a_target_is_not_missed() -> None:
    verdict = assess(Row("t", None, PLACES[:1]), {"p": [figure(5.0)]})
    assert verdict.met
    assert verdict_rows([verdict])[1] == ["t", "5.00 (4.50 … 5.50)", "-", "-", "-", ""]


def test_rows_are_of_parts_that_exist_and_have_names_of_their_own() -> None:
    assert {place[0] for row in ROWS for place in row.places} == PARTS.keys() - {"enforced_guard"}
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert TEXTS.keys() == PARTS.keys()
    assert set(ALL_ONLY) < PARTS.keys()
    assert set(COMPARED) < PARTS.keys()
    assert all(callable(load(name).part) for name in PARTS)


def test_a_run_of_one_part_has_its_rows_alone() -> None:
    found = verdicts({"pair": []})
    assert found
    assert {place[0] for verdict in found for place in verdict.row.places} == {"pair"}


def test_only_a_run_of_everything_has_other_libraries() -> None:
    assert Run("pair").contenders(THREADS) == [OURS, OURS + AGAIN, REDIS_PY]
    assert set(Run("pair", everything=True).contenders(THREADS)) == {*THREADS, OURS + AGAIN}
    assert Run("pair", other=OTHER).contenders(THREADS) == [OURS, OURS + AGAIN]


@pytest.mark.thorough
@pytest.mark.parametrize("hiredis", [True, False])
def test_a_measurement_in_a_child_ends_in_its_result_or_its_last_words(hiredis: bool) -> None:
    assert in_child("measure.jain", seconds=30, hiredis=hiredis, counts=[1, 1]) == 1
    with pytest.raises(ChildFailed, match="nothing was measured"):
        in_child("measure.percentile", seconds=30, hiredis=hiredis, values=[], share=0.5)


@pytest.mark.thorough
def test_a_child_of_another_revision_has_its_packages_and_these_measurements(tmp_path: Path) -> None:
    for package in (fencing, storage_guards):
        (tmp_path / package.__name__).symlink_to(package.__path__[0])
    places = in_child("test_benchmarks.where_modules_are", seconds=60, code=tmp_path)
    assert places == [str(tmp_path / "fencing"), str(tmp_path / "storage_guards"), __file__]


def where_modules_are() -> list[str]:
    return [fencing.__path__[0], storage_guards.__path__[0], __file__]


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


def test_measures_are_compared_round_by_round_and_with_themselves() -> None:
    run = Run("pair")
    found = {OURS: {TIME: [1.0, 2.0]}, OURS + AGAIN: {TIME: [2.0, 2.0]}, REDIS_PY: {TIME: [4.0, 4.0]}, RAW: {}}
    run.compare("here", found, {TIME: (REDIS_PY,)})
    figures = {(each.of, each.what): each for each in run.figures}
    assert figures.keys() == {(OURS, TIME), (OURS, ratio_to(REDIS_PY, TIME)), (REDIS_PY, TIME)}
    ratio = figures[OURS, "pair x redis-py Lock"]
    assert ratio.median == pytest.approx(0.375)
    assert ratio.both == "1.50 / 4.00 µs"
    assert ratio.again is not None
    assert ratio.again[0] == pytest.approx(1.5)


def test_a_revision_is_compared_with_this_checkout_and_that_with_itself() -> None:
    run = Run("pair", other=OTHER)
    run.compare("here", {OURS: {TIME: [2.0]}, OURS + AGAIN: {TIME: [3.0]}, f"{OURS} @ v1": {TIME: [4.0]}}, {})
    own, ratio = run.figures
    assert (own.of, own.what) == (OURS, TIME)
    assert ratio_rows({"pair": [own, ratio]}, "v1")[1:] == [
        ["pair", "here", f"{OURS}: pair", "0.500", "2.00 / 4.00 µs", "1.50"]
    ]
    assert run.times() == {"pair, here: fencing: pair": [2 * 1e-6]}
    assert run.times(OTHER.suffix) == {"pair, here: fencing: pair": [4 * 1e-6]}


def test_a_turn_has_the_times_of_one_operation_or_an_error() -> None:
    said: list[Any] = []
    with some_contenders() as contenders:
        serve(contenders, [["a", "b"], ["c"]], said.append)
    assert said[0] == [["a", "b", "c"], {"d": "no server"}]
    assert 0 < said[1]["a"][0] < 1e6
    assert said[1]["b"] == [1e6, 2e6]
    assert said[2] == {"c": "RuntimeError: c"}


def test_pyperf_reads_the_times_of_a_run(tmp_path: Path) -> None:
    suite: Any = importlib.import_module("pyperf").BenchmarkSuite
    write_times(tmp_path / "times.json", {"pair": [[1e-6, 0.0], [3e-6]], "nothing": [[0.0]]})
    [read] = suite.load(str(tmp_path / "times.json"))
    assert (read.get_name(), read.get_values(), read.get_unit()) == ("pair", (1e-6, 3e-6), "second")


def test_of_several_runs_the_middle_figure_counts() -> None:
    several = []
    for median in (3.0, 1.0, 2.0):
        run = Run("pair")
        run.add("here", OURS, TIME, [median])
        several.append({**run.result(), "noise": [median]})
    several[0]["failures"] = ["one"]
    both = merged(several)
    assert [each["median"] for each in both["figures"]] == [2.0]
    assert (both["failures"], both["noise"]) == (["one"], [3.0, 1.0, 2.0])


@pytest.mark.thorough
def test_contenders_take_turns_in_their_child_and_one_that_fails_has_no_more() -> None:
    run = Run("pair", quick=True)
    found = run.duel("here", "test_benchmarks.some_contenders", {TIME: ("b",), CPU: ()}, rounds=20, seconds=60)
    assert {name: [len(its) for its in measured.values()] for name, measured in found.items()} == {
        "a": [2, 2],
        "b": [2, 2],
    }
    assert [(failure.of, failure.said) for failure in run.failures] == [("d", "no server"), ("c", "RuntimeError: c")]


@contextmanager
def some_contenders() -> Iterator[Contenders]:
    def broken() -> None:
        raise RuntimeError("c")

    yield Contenders({"a": lambda: 1, "b": Batch(lambda: (1.0, 2.0)), "c": broken}, 2, {"d": "no server"})


def test_a_contender_that_missed_rounds_is_compared_by_its_median() -> None:
    run = Run("pair")
    run.compare("here", {OURS: {TIME: [1.0, 2.0, 3.0]}, REDIS_PY: {TIME: [4.0]}}, {TIME: (REDIS_PY,)})
    assert [each.median for each in run.figures if each.what == ratio_to(REDIS_PY, TIME)] == [0.5]


@pytest.mark.thorough
def test_the_benchmark_counts_the_puts_of_a_publication() -> None:
    found = object_store.measure(1)
    counted = {name: its[object_store.REQUESTS] for kinds in found.values() for name, its in kinds.items()}
    assert (counted[object_store.PUBLISH], counted["publish 10 of 1 KiB"]) == ([3], [12])


@pytest.mark.thorough
def test_the_benchmark_counts_the_requests_of_a_lock_in_etcd_and_lets_all_take_turns() -> None:
    if find_etcd_binary() is None:
        pytest.skip("there is no etcd here")
    kinds = [kind for kind in etcd_contenders.KINDS if kind != etcd_contenders.ETCDCTL]
    found = in_child("etcd.costs", seconds=120, scenario=etcd.NO_WAIT, rounds=1, kinds=kinds)
    assert found.keys() == set(kinds)
    assert 2 <= found[OURS][etcd.REQUESTS][0] < 2.5  # a lease that is older than a second is kept alive first
    waiters = list(etcd_contenders.WAITERS)
    handed = in_child("etcd.crowds", seconds=120, scenario=etcd.WAITING, rounds=1, kinds=waiters)
    assert all(its[etcd.HAND_OFF] for its in handed.values())


def test_lines_cope_with_gaps_and_noughts() -> None:
    series = {"ours": {2: 1.0, 8: 10.0}, "theirs": {8: 0.0}}
    drawn = lines("t", [2, 8], [Panel("p", series), Panel("q", series, logarithmic=False), Panel("r", {})])
    tree = Xml.fromstring(drawn)
    assert len(list(tree.iter(f"{SVG}circle"))) == 2 + 3


MACHINE = {"processor": "p", "cores": 2, "system": "s", "python": "3", "date": "d", "servers": {}, "packages": {}}
ONE_THREAD = scenario_of("threads", 1, True)


def results_of(figures: list[Figure], part: str = "pair") -> dict[str, Any]:
    run = Run(part, quick=True, figures=figures)
    run.failed("here", "theirs", "it | hangs\nfor ever")
    noise = [{"load": 0.5, "spin": 1.1}]
    return {"machine": MACHINE, "quick": True, "parts": {part: {**run.result(), "noise": noise}}}


def test_the_page_of_numbers_is_made_of_the_results_alone() -> None:
    ratio = figure(0.3, ONE_THREAD, OURS, ratio_to(REDIS_PY, TIME))
    text = numbers_page(results_of([ratio, figure(4.0, ONE_THREAD, "pottery", ratio.what)]))
    assert "| fencing | 0.300 (0.270 … 0.330) |" in text
    assert "| pair / redis-py Lock | 0.300 (0.270 … 0.330) | - | - | ≤ 0.44 | met |" in text
    assert "Failed: *here*, theirs: it \\| hangs for ever" in text
    assert "**A quick run**" in text
    assert text.count("not measured") == len(verdicts({"pair": []})) - 1


def test_the_page_for_users_has_ratios_and_leaves_out_what_was_not_measured() -> None:
    ratio = ratio_to(REDIS_PY, TIME)
    results = results_of([figure(0.9, ONE_THREAD, OURS, ratio), figure(4.0, ONE_THREAD, "pottery", ratio)])
    text = user_page(results, chart=False)
    assert "| one thread | x 0.90 | - | - | x 4.00 | - | - |" in text
    assert "x 0.90 of the time of redis-py Lock, and (not measured) with 64 asyncio tasks" in text
    assert "## Contention" not in text, "a section without a figure is left out"
    assert contention_chart([]) == ""


def test_the_page_for_users_has_locks_on_postgresql() -> None:
    pair = figure(1.25, sql_locks.DURABLE, OURS, ratio_to(TWO_UPDATES, sql_locks.PAIR))
    left = [figure(12, sql_locks.UPKEEP, OURS, what) for what in (sql_locks.PAIRS, sql_locks.DEAD, sql_locks.SIZE)]
    text = user_page(results_of([pair, *left], "sql_locks"), chart=False)
    assert "| fencing | x 1.25 | - | - | - |" in text
    assert "After 12 pairs of one lock, with autovacuum on, the table had 12 dead rows and 12 kB." in text


def test_the_page_for_users_has_locks_in_etcd() -> None:
    pair = figure(1.04, etcd.DURABLE, OURS, ratio_to(etcd_contenders.RECIPE, etcd.PAIR))
    text = user_page(results_of([pair], "etcd"), chart=False)
    assert "| fencing | x 1.04 | - | - | - |" in text


def test_the_pages_are_those_of_the_recorded_run(tmp_path: Path) -> None:
    results = json.loads((DOCS / "benchmarks" / "results.json").read_text("utf-8"))
    for file in write_pages(results, tmp_path):
        committed = DOCS / file.relative_to(tmp_path)
        assert file.read_text("utf-8") == committed.read_text("utf-8"), (
            f"python -m tests.benchmarks report makes {file}"
        )
