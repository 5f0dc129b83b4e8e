"""Show how the late files of a paused uploader corrupt a dataset in an object store, and how a guard refuses them."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack

import redis
from obstore.exceptions import BaseError

from examples.drawing.events import Recorder
from examples.object_upload.director import DAYS, Director
from examples.object_upload.store import open_store
from examples.object_upload.story import STORY
from examples.servers import start_s3
from examples.stage.coordinators import CHOICES, names_of_our_own
from examples.stage.process import WorkerProcess
from examples.stage.run import Demo, Options, run
from examples.stage.screen import Screen
from fencing import FencingError


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0: each act had the expected result. 1: one had not, or failed. 130, 143: interrupted."""
    failures = (FencingError, BaseError, redis.RedisError)
    return run(Demo("examples.object_upload", __doc__, STORY, set_up, failures, tuple(CHOICES)), arguments)


def set_up(stack: ExitStack, screen: Screen, recorder: Recorder, options: Options) -> Director:
    """Two uploaders, a reader, a coordinator, an S3; the stack removes all of it again."""
    starting = "starting three processes and servers"
    screen.wait(starting)
    processes = {}
    for name in (*DAYS, "reader"):  # they import while the servers start
        module = f"examples.object_upload.{'worker' if name in DAYS else 'reader'}"
        processes[name] = WorkerProcess(name, module)
        stack.callback(processes[name].close)
    choice = CHOICES[options.coordinator]
    address = choice.start(stack)
    s3 = stack.enter_context(start_s3())
    bucket = s3.new_bucket()
    for name, process in processes.items():
        locks = {"coordinator": options.coordinator, "address": address, "ttl": options.ttl}
        more = locks if name in DAYS else {}
        process.send(s3=s3.url, bucket=bucket, **more)
    for process in processes.values():
        process.report(lambda: screen.wait(starting))
    pids = ", ".join(f"{name} is process {process.pid}" for name, process in processes.items())
    screen.say(f"{pids}; {choice.title}, data in S3 ({s3.source.split(',')[0]}, through HTTP).", "2")
    coordinator = stack.enter_context(choice.open(address, ttl=options.ttl))
    reader = processes.pop("reader")
    prefix = names_of_our_own()
    store = open_store(s3.url, bucket)
    return Director(processes, reader, coordinator, store, recorder, screen, ttl=options.ttl, prefix=prefix)


if __name__ == "__main__":
    sys.exit(main())
