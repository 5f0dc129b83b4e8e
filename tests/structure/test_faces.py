"""The sync faces are what ``make faces`` makes from the async ones."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.docstrings import WIDTH, sync_docstring
from tools.faces import PAIRS, Pair, differing, made, main, make
from tools.names import DOTTED, NAMES, PHRASES
from tools.sides import sync_side

ROOT = Path(__file__).resolve().parents[2]


def copy_to(folder: Path, pair: Pair = PAIRS[0]) -> Path:
    """Copy the files of all pairs, and return the face of one."""
    for each in PAIRS:
        for name in each:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder / pair.face


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.face)
def test_a_face_is_what_its_source_makes(pair: Pair) -> None:
    assert not differing(ROOT, [pair]), "run `make faces`"


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.face)
def test_a_face_says_from_what_it_is_made_and_nothing_in_it_is_async(pair: Pair) -> None:
    text = (ROOT / pair.face).read_text("utf-8")
    first, _, rest = text.partition("\n")
    assert first == f"# Made from {Path(pair.source).name} by `make faces`: change that file, not this one."
    assert not re.search(r',[,.][\s"]', text), "words between commas went, and the commas stayed"
    assert ast.get_docstring(ast.parse(text)), "the docstring is still the first statement"
    assert not re.search(r"# A?SYNC\b", rest), "all marks are resolved"
    found = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor)
        or (isinstance(node, ast.AsyncFunctionDef) and node.name not in ("__aenter__", "__aexit__"))
    ]
    assert not found, "only what refuses `async with` is async"


def test_a_file_that_says_so_is_in_the_list() -> None:
    made = {
        str(file.relative_to(ROOT))
        for package in ("fencing", "storage_guards")
        for file in (ROOT / package).rglob("*.py")
        if file.read_text("utf-8").startswith("# Made from ")
    }
    assert made == {pair.face for pair in PAIRS}


def test_the_check_names_a_changed_file_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    face = copy_to(tmp_path)
    assert main(["--check"], tmp_path) == 0
    face.write_text(face.read_text("utf-8").replace("fence", "fense", 1), "utf-8")
    assert main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err == f"{PAIRS[0].face} is not what its async source makes; run `make faces`\n"
    assert main([], tmp_path) == 0
    assert capsys.readouterr().out == f"wrote {PAIRS[0].face}\n"
    assert face.read_bytes() == (ROOT / PAIRS[0].face).read_bytes()


def test_the_check_names_a_changed_source(tmp_path: Path) -> None:
    copy_to(tmp_path)
    source = tmp_path / PAIRS[0].source
    source.write_text(source.read_text("utf-8") + "\n\nmore = True\n", "utf-8")
    assert differing(tmp_path) == [PAIRS[0].face]
    assert make(tmp_path) == [PAIRS[0].face]
    assert not differing(tmp_path)


def test_every_entry_of_the_table_is_used() -> None:
    sources = "\n".join((ROOT / pair.source).read_text("utf-8") for pair in PAIRS)
    assert not [name for name in NAMES if not re.search(rf"\b{name}\b", sources)]
    assert not [parts for parts in DOTTED if ".".join(parts) not in sources]
    unused = []
    for pattern, replacement in PHRASES:  # in their order: one makes what another takes
        sources, count = re.subn(pattern, replacement, sources)
        unused += [pattern] * (not count)
    assert not unused


def test_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "tools.faces", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "-m tools.faces --check" in (ROOT / "Makefile").read_text("utf-8")


def test_words_that_only_asyncio_needs_go() -> None:
    made = sync_side(
        """
async def f(self, x):
    async with self.g(x) as y, h():
        async for z in y:
            first = (await z.one()).name
            yield await z.two(), (await z), [await each for each in (await z.all())]
    await super().__aexit__(None, None, None)
"""
    )
    assert (
        made
        == """
def f(self, x):
    with self.g(x) as y, h():
        for z in y:
            first = z.one().name
            yield z.two(), (z), [each for each in (z.all())]
    super().__exit__(None, None, None)
"""
    )


def test_one_with_stands_for_two() -> None:
    long = "x" * 60
    made = sync_side(
        f"""
with a:
    async with (
        b(
            {long},
        ) as c,
        d,
    ):
        pass
with a, {long}:
    async with {long}:
        pass
with a:
    async with b:
        pass
    c()
"""
    )
    assert (
        made
        == f"""
with a, b({long},) as c, d:
    pass
with (
    a,
    {long},
    {long},
):
    pass
with a:
    with b:
        pass
    c()
"""
    )


def test_what_is_awaited_is_there_at_once() -> None:
    assert sync_side("f: Callable[[AsyncA], Awaitable[list[B]]]\n") == "f: Callable[[A], list[B]]\n"


def test_the_marks() -> None:
    made = sync_side(
        '''
# SYNC: import threading
import asyncio

from a.b_async import AsyncB, only_async


@decorated  # ASYNC
async def only(x):
    """Do it."""
    only_async(x)


class AsyncC(AsyncB):
    """A thing for asyncio."""

    # SYNC "thing": thing of threads

    asynchronous = True

    async def f(
        self,
        x,
        cancel=False,  # ASYNC
    ):
        """Do it.

        If the task is cancelled, it is not done, and there are words
        of another line.

        After a cancellation, ask again.
        """
        # SYNC "If the task ...":
        # SYNC "After a cancellation, ask": After Ctrl-C, which is a longer
        #     text, ask
        # SYNC instead: with threading.Lock():
        async with asyncio.timeout(1), self.lock:
            await self.g(asynchronous=True)
        if x:  # ASYNC
            await asyncio.wait([x])
        # SYNC: x.join(
        # SYNC:     1)
'''
    )
    assert (
        made
        == '''
import threading

from a.b import B


class C(B):
    """A thing of threads."""

    asynchronous = False

    def f(
        self,
        x,
    ):
        """Do it.

        After Ctrl-C, which is a longer text, ask again.
        """
        with threading.Lock():
            self.g(asynchronous=False)
        x.join(1)
'''
    )


def test_a_mark_may_bring_paragraphs_and_items() -> None:
    made = sync_side(
        '''
class A:
    """Do it.

    Args:
        one: of several words, which go.
        two: stays.
    """

    # SYNC "Args:":
    #     More of it,
    #     in two lines.
    #
    #     Args:
    # SYNC "one: ... go.":
    #     first: of several lines, the second
    #         of which is indented.
    #     second: this.
'''
    )
    assert (
        made
        == '''
class A:
    """Do it.

    More of it, in two lines.

    Args:
        first: of several lines, the second of which is indented.
        second: this.
        two: stays.
    """
'''
    )


def test_a_mark_whose_words_are_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'other' occur 0 times"):
        sync_side('"""Words."""\n# SYNC "other": more\n')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"""A."""\n\n\nasync def f() -> None:\n    # SYNC insted: x = 1\n    await g()\n', "no mark that"),
        ('"""A."""\n\nx = (\n', "multi-line statement"),
    ],
    ids=["misspelled", "unfinished"],
)
def test_a_source_that_makes_no_face_is_named(text: str, said: str, tmp_path: Path) -> None:
    pair = Pair("x_async.py", "x.py")
    (tmp_path / pair.source).write_text(text, "utf-8")
    with pytest.raises(SystemExit, match=rf"^x_async.py: .*{said}"):
        made(pair, tmp_path)


def test_texts() -> None:
    for said, expected in {
        '"""An async guard for asyncio."""': '"""A guard."""',
        '"""An ``AsyncEngine`` from an async pool, an async httpx2 client."""': (
            '"""An ``Engine`` from a pool, an httpx2 client."""'
        ),
        '"""It is no async client. The async face of all async guards."""': (
            '"""It is no sync client. The sync face of all sync guards."""'
        ),
        '"""Use it as ``async with await lock.adopt(fence)``."""': '"""Use it as ``with lock.adopt(fence)``."""',
        '"""A ``redis.asyncio.Redis``, ``(await s.get(A, 1)).x``."""': '"""A ``redis.Redis``, ``s.get(A, 1).x``."""',
    }.items():
        assert sync_docstring(said, 4) == expected


def test_paragraphs_are_filled_again_and_examples_are_not() -> None:
    words = "word " * 18
    made = sync_docstring(
        f'''"""Do it for asyncio.

        {words.strip()} for asyncio
        {words}
        end::

            async with it:
                pass

        Args:
            one: {words.strip()} async
                end.
            two: short.
        """''',
        8,
    )
    assert max(map(len, made.splitlines())) <= WIDTH
    assert "\n        word" in made
    assert "\n            with it:\n                pass\n" in made
    assert f"            one: {words.strip()} sync end.\n            two: short.\n        " in made


def test_an_f_string_is_one_text() -> None:
    assert sync_side('x = f"an AsyncLease of {lease.aclose!r:>{width}}"  # of async\n') == (
        'x = f"a Lease of {lease.aclose!r:>{width}}"  # of sync\n'
    )


def test_lines_are_joined_as_the_formatter_does() -> None:
    long = "x" * 100
    for source, expected in {
        f"await f(\n    {long},\n    1\n)\n": f"f({long}, 1)\n",
        f"await f(\n    {long},\n    1,\n)\n": f"f(\n    {long},\n    1,\n)\n",
        f"await f(\n    {long},  # why\n    1\n)\n": f"f(\n    {long},  # why\n    1\n)\n",
    }.items():
        assert sync_side(source) == expected
