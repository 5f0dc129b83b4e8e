"""How far a publication is: a function of the caller's, or a bar of tqdm or rich, which are imported when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage_guards.objects.bodies import total_of

Progress = Callable[[str, int, int | None], object]
"""A function of a name, the number of its bytes handed over so far, and the total, or None where it is not known."""

BARS = ("tqdm", "rich")


def check_progress(progress: Progress | str | None) -> None:
    """Raise TypeError or ValueError where it is none."""
    if isinstance(progress, str):
        if progress not in BARS:
            raise ValueError(f"progress is a function, or one of {', '.join(map(repr, BARS))}, not {progress!r}")
    elif progress is not None and not callable(progress):
        raise TypeError(f"progress is a function or a str, not {type(progress).__name__}")


@contextmanager
def reported(progress: Progress | str | None, title: str, objects: object = None) -> Iterator[Progress | None]:
    """Give the function to report to, and close its bar at the end.

    Args:
        title: of a bar.
        objects: all that will be published, where that is known.

    Raises:
        ModuleNotFoundError: the bar's package is not installed.
    """
    if progress == "tqdm":
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        with tqdm(desc=title, total=total_of(objects), unit="B", unit_scale=True, unit_divisor=1024) as bar:
            yield _Sum(lambda more: bar.update(more))
    elif progress == "rich":
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
        from rich.progress import Progress as RichProgress

        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        with RichProgress(*columns) as bars:
            task = bars.add_task(title, total=total_of(objects))
            yield _Sum(lambda more: bars.update(task, advance=more))
    else:
        assert not isinstance(progress, str)
        yield progress


class _Sum:
    """The bytes of all objects together, from the reports of each."""

    def __init__(self, advance: Callable[[int], object]) -> None:
        self._advance = advance
        self._sent: dict[str, int] = {}  # of the objects that are not over, as far as that is known

    def __call__(self, name: str, sent: int, total: int | None) -> None:
        before = self._sent.pop(name, 0)
        if sent != total:
            self._sent[name] = sent
        self._advance(sent - before)
