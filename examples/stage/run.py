"""How a demo is run from the command line: its options, its end and what it leaves behind."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from examples.drawing.events import Event, Recorder
from examples.servers import MissingTool, ServerError
from examples.servers.settings import check_variables
from examples.stage.director import Director
from examples.stage.process import DemoError
from examples.stage.screen import Screen
from examples.stage.story import Story

BEAT = 0.8
"""Seconds, of --slow."""


class Options(NamedTuple):
    """How a demo is played."""

    ttl: float
    """Seconds that a lock lives."""
    coordinator: str = "redis"
    seed: int = 1
    """Of what is drawn by lot: amounts and the like."""


class Demo(NamedTuple):
    module: str
    about: str | None
    story: Story[Any]
    set_up: Callable[[ExitStack, Screen, Recorder, Options], Director]
    """Starts processes and servers; the stack removes all of it again."""
    failures: tuple[type[Exception], ...]
    """Errors that are shown as a message, without a traceback."""
    coordinators: Sequence[str] = ("redis",)
    """On which of them it can be played."""


def run(demo: Demo, arguments: Sequence[str] | None = None) -> int:
    """Return 0: each act had the expected result. 1: one had not, or failed. 130, 143: interrupted."""
    options = parse(demo, arguments)
    screen = Screen()
    recorder = Recorder(slowed(demo.story.narrator(screen)) if options.slow else demo.story.narrator(screen))
    failures: tuple[type[Exception], ...] = (DemoError, ServerError, *demo.failures)
    introduction = demo.story.introduction(options.ttl)
    try:
        check_variables()
        for sentence in introduction:
            screen.say(sentence)
        status = _play(demo, screen, recorder, options)
        drawn = demo.story.write_report(options.html, " ".join(introduction), recorder.events)
        if options.svg:
            write_svg(options.svg, demo, recorder)
        screen.draw(["", screen.look.plain(f"Pictures, for a browser: {drawn}")])  # a path is not wrapped
        return status
    except KeyboardInterrupt:
        screen.say("Interrupted. Processes and servers are stopped.")
        return 130
    except BrokenPipeError:  # the reader has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except failures as error:
        screen.say()
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    finally:
        if options.json:
            recorder.write_json(options.json)


def parse(demo: Demo, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {demo.module}", description=demo.about)
    parser.add_argument("--act", choices=sorted({act.key[0] for act in demo.story.ACTS}), help="play only this act")
    parser.add_argument("--ttl", type=float, help="seconds the lock lives (default 1.5; with --slow 4)")
    parser.add_argument(
        "--coordinator",
        choices=demo.coordinators,
        default=demo.coordinators[0],
        help="where the locks are (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn by lot (default 1)")
    parser.add_argument("--slow", action="store_true", help="wait a moment after each event, for showing it to a room")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the recorded events there, one per line")
    parser.add_argument(
        "--html", type=Path, metavar="PATH", help="write the page with the pictures there (default: a temporary file)"
    )
    parser.add_argument(
        "--svg", type=Path, metavar="DIRECTORY", help="write a picture of each act there: act-1.svg and so on"
    )
    options = parser.parse_args(arguments)
    if options.ttl is None:
        options.ttl = 4 if options.slow else 1.5
    if not 0.5 <= options.ttl <= 30:
        parser.error("--ttl must be between 0.5 and 30 seconds")
    for name, path in (("--json", options.json), ("--html", options.html)):
        if path and not os.access(path.parent, os.W_OK):
            parser.error(f"{name}: cannot write to {path.parent}")
    if options.svg and not os.access(options.svg, os.W_OK):
        parser.error(f"--svg: cannot write to the directory {options.svg}")
    return options


def slowed(listener: Callable[[Event], None]) -> Callable[[Event], None]:
    """Return a listener that waits a moment after each event. Workers that wait for the director wait for it, too."""

    def listen(event: Event) -> None:
        listener(event)
        time.sleep(BEAT)

    return listen


def write_svg(directory: Path, demo: Demo, recorder: Recorder) -> None:
    """Write a stand-alone picture of each act that was played."""
    for event in recorder.events:
        if event.kind == "measured":
            drawn = demo.story.draw_act(event, recorder.of(event.act), alone=True)
            (directory / f"act-{event.act}.svg").write_text(drawn + "\n", encoding="utf-8")


def _play(demo: Demo, screen: Screen, recorder: Recorder, options: argparse.Namespace) -> int:
    outcomes, left_out = [], []
    with signals_as_exceptions() as quiet, ExitStack() as stack:
        try:
            director = demo.set_up(stack, screen, recorder, Options(options.ttl, options.coordinator, options.seed))
            for act in demo.story.ACTS:
                if act.key.startswith(options.act or ""):
                    demo.story.open_act(screen, act)
                    try:
                        outcome = director.play(act)
                    except MissingTool as missing:
                        left_out.append(f"Act {act.key} was left out: {missing}.")
                        screen.say(left_out[-1], "1;31")
                        continue
                    demo.story.close_act(screen, recorder, outcome)
                    outcomes.append(outcome)
            screen.wait("stopping processes and servers")
        finally:
            quiet()
    demo.story.summarize(screen, outcomes)
    for line in left_out:
        screen.say(line, "1;31")
    return 0 if not left_out and all(outcome.as_expected for outcome in outcomes) else 1


@contextmanager
def signals_as_exceptions() -> Iterator[Callable[[], None]]:
    """Let SIGTERM end the demo as Ctrl-C does. Yield a function after which neither interrupts the clean-up."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def quiet() -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)

    before = {signal.SIGINT: signal.getsignal(signal.SIGINT), signal.SIGTERM: signal.signal(signal.SIGTERM, leave)}
    try:
        yield quiet
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def version(parts: Sequence[int]) -> str:
    return ".".join(map(str, parts))
