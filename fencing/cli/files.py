"""Files of SQLite that a command only reads."""

from __future__ import annotations

import os
from urllib.parse import unquote


class NoFile(Exception):
    """A command that makes no file was given one that is not there."""


def require_file(url: str, makers: str = "'fencing run' makes it, and 'fencing create-tables'") -> None:
    """Raise NoFile if the URL is of a file of SQLite that is not there. To connect would make an empty one.

    Args:
        url: of any service.
        makers: which commands make the file.
    """
    if not url.lower().startswith("sqlite"):
        return
    path = unquote(url.partition(":///")[2].partition("?")[0])
    if path and path != ":memory:" and not path.startswith("file:") and not os.path.exists(path):
        raise NoFile(
            f"there is no file {os.path.abspath(path)}: correct the path; four slashes begin an absolute one. {makers}"
        )
