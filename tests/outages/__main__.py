"""All lock services under the same load and the same faults, as tables.

make outages                                       all of them: twenty minutes, on a machine that rests
make outages ARGS="redis etcd --quick"             two of them, and short loads
make outages ARGS="--json FILE"                    keep the figures
make outages ARGS="--draw FILE"                    write the page's tables and its picture from figures that were kept

The exit status is 0 if no update was lost under a guard.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.servers import ServerError
from tests.benchmarks.machine import describe
from tests.outages.deployments import DEPLOYMENTS
from tests.outages.faults import play
from tests.outages.load import measure
from tests.outages.tables import FAULTS, fault_table, load_table, loss_table, picture

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "coordinators" / "choosing.md"
PICTURE = PAGE.with_name("outages.svg")
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
CROWDS, SECONDS = (2, 10, 50), 3.0
QUICK_CROWDS, QUICK_SECONDS = (2, 10), 0.3


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make outages", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="SERVICE", help=f"{', '.join(DEPLOYMENTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="short loads, which only show that all works")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--draw", type=Path, help="a file with figures: nothing is measured")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(DEPLOYMENTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; choose among {', '.join(DEPLOYMENTS)}")
    if options.draw:
        found = json.loads(options.draw.read_text("utf-8"))
        PAGE.write_text(_with_block(PAGE.read_text("utf-8"), list(_block(found))), "utf-8")
        PICTURE.write_text(picture(found["services"]) + "\n", "utf-8")
        return 0
    logging.disable(logging.CRITICAL)  # servers go away on purpose
    services: dict[str, Any] = {}
    for name in options.names or DEPLOYMENTS:
        try:
            services[name] = _measured(name, options.quick)
        except (ServerError, ImportError) as error:
            print(f"{DEPLOYMENTS[name].title} is left out: {error}", file=sys.stderr, flush=True)
    if not services:
        return 2
    found = json.loads(json.dumps({"machine": describe(), "services": services}))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print("\n".join(_block(found)))
    return int(any(each["lost_guarded"] for its in found["services"].values() for each in its["faults"].values()))


def _measured(name: str, quick: bool) -> dict[str, Any]:
    deployment, began = DEPLOYMENTS[name], time.monotonic()
    crowds, seconds = (QUICK_CROWDS, QUICK_SECONDS) if quick else (CROWDS, SECONDS)
    loads = {lock: _plain(its) for lock, its in measure(deployment, crowds, seconds).items()}
    faults = {}
    for fault in FAULTS:
        outcome = play(deployment, fault)
        if outcome is not None:
            faults[fault] = outcome._asdict()
    print(f"[{time.monotonic() - began:5.0f} s] {deployment.title}", file=sys.stderr, flush=True)
    return {"loads": loads, "faults": faults}


def _plain(loads: Any) -> dict[str, Any]:
    return {"pair": loads.pair, "crowds": {str(crowd): load._asdict() for crowd, load in loads.crowds.items()}}


def _block(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that the page has between its marks."""
    services = found["services"]
    yield from load_table(services)
    yield ""
    yield from fault_table(services)
    yield ""
    yield from loss_table(services)


def _with_block(page: str, lines: list[str]) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *lines, "", END + after])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
