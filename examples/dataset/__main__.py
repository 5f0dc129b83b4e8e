"""Show how a paused worker tears a Parquet dataset behind a latest.json, and how a guard refuses its late files."""

import importlib.util
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import redis
from obstore.exceptions import BaseError

from examples.drawing.events import Recorder
from examples.object_upload.store import open_store
from examples.servers import start_s3
from examples.stage.coordinators import CHOICES, names_of_our_own
from examples.stage.director import Director
from examples.stage.process import WorkerProcess
from examples.stage.run import Demo, Options, run
from examples.stage.screen import Screen
from fencing import FencingError

NEEDS = ("duckdb", "pyarrow", "fsspec")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0: each act had the expected result. 1: one had not, or failed. 130, 143: interrupted."""
    missing = [package for package in NEEDS if importlib.util.find_spec(package) is None]
    if missing:
        print(f"This demo needs {', '.join(missing)}: pip install '.[demo-objects,data]'", file=sys.stderr)
        return 1
    from examples.dataset.story import STORY

    failures = (FencingError, BaseError, redis.RedisError)
    return run(Demo("examples.dataset", __doc__, STORY, set_up, failures, tuple(CHOICES)), arguments)


def set_up(stack: ExitStack, screen: Screen, recorder: Recorder, options: Options) -> Director:
    """Two workers, two readers, a coordinator, an S3; the stack removes all of it again."""
    from examples.dataset import director
    from examples.dataset.tables import READERS

    starting = "starting four processes and servers"
    screen.wait(starting)
    processes = {}
    for name in (*director.DAYS, *READERS):  # they import while the servers start
        module = f"examples.dataset.{'reader' if name in READERS else 'worker'}"
        processes[name] = WorkerProcess(name, module)
        stack.callback(processes[name].close)
    choice = CHOICES[options.coordinator]
    address = choice.start(stack)
    s3 = stack.enter_context(start_s3())
    bucket = s3.new_bucket()
    for name, process in processes.items():
        locks = {"coordinator": options.coordinator, "address": address, "ttl": options.ttl}
        process.send(s3=s3.url, bucket=bucket, **({} if name in READERS else locks))
    for process in processes.values():
        process.report(lambda: screen.wait(starting))
    pids = ", ".join(f"{name} is process {process.pid}" for name, process in processes.items())
    screen.say(f"{pids}; {choice.title}, data in S3 ({s3.source.split(',')[0]}, through HTTP).", "2")
    coordinator = stack.enter_context(choice.open(address, ttl=options.ttl))
    readers = {name: processes.pop(name) for name in READERS}
    store = open_store(s3.url, bucket)
    return director.Director(
        processes, readers, coordinator, store, recorder, screen, ttl=options.ttl, prefix=names_of_our_own()
    )


if __name__ == "__main__":
    sys.exit(main())
