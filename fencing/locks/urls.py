"""URLs of coordination services: ``scheme://[user[:password]@]host[:port][,host[:port]…][/path][?option=value&…]``."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection
from typing import NamedTuple, NoReturn
from urllib.parse import parse_qsl, unquote

MAX_LENGTH = 4096
"""How long a URL may be, in characters."""

MAX_HOSTS = 32

ENCODE = "percent-encode what is special in its parts: a password p@ss/word is written p%40ss%2Fword"
"""What to do where a URL cannot be read."""

FEW = 6
"""So many names of options are listed in a message. Of more, only those that look like the wrong one are."""

_FORM = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<place>[^/?#]*)(?P<path>/[^?#]*)?(\?(?P<query>[^#]*))?",
)
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%]+\]|[^:\[\]\s]+)(:(?P<port>[0-9]{1,5}))?", re.ASCII)
_SECRET = re.compile(r"(?<=[?&])([^=&#]*(?:pass|secret|token|key)[^=&#]*=)[^&#]*", re.IGNORECASE)


class Url(NamedTuple):
    """The parts of a URL. What was percent-encoded is decoded.

    Attributes:
        hosts: names or addresses, with their ports.
        path: without the first slash.
        options: by name.
    """

    scheme: str
    username: str | None
    password: str | None
    hosts: tuple[tuple[str, int], ...]
    path: str
    options: dict[str, str]

    def check_options(self, *known: str) -> None:
        """Raise ValueError if there is an option of another name."""
        for name in self.options:
            if name not in known:
                refuse_option(self.scheme, name, known)


def parse(url: str, default_port: int, *, such_as: str, default_host: str = "localhost") -> Url:
    """Take a URL apart.

    Args:
        url: with one host or several, with commas in between.
        default_port: of hosts without one.
        such_as: an example, for error messages.
        default_host: the host of a URL without one.

    Raises:
        TypeError, ValueError: it has not that form. The message shows no secret.
    """
    check_url(url)
    match = _FORM.fullmatch(url)
    if match is None or "@" in url[match.end("place") :]:  # that of a password with a slash, probably
        raise ValueError(f"{redacted(url)!r} is no URL such as {such_as!r}; {ENCODE}")
    account, at, places = match["place"].rpartition("@")
    name, colon, password = account.partition(":")
    hosts = [_host(place, default_port, such_as) for place in places.split(",")] if places else []
    if len(hosts) > MAX_HOSTS:
        raise ValueError(f"a URL names up to {MAX_HOSTS} hosts, not {len(hosts)}")
    options: dict[str, str] = {}
    for option, value in parse_qsl(match["query"] or "", keep_blank_values=True):
        if option in options:
            raise ValueError(f"a URL names an option once; {option!r:.100} is there twice")
        options[option] = value
    return Url(
        scheme=match["scheme"].lower(),
        username=unquote(name) if at and name else None,
        password=unquote(password) if colon else None,
        hosts=tuple(hosts) or ((default_host, default_port),),
        path=unquote((match["path"] or "")[1:]),
        options=options,
    )


def refuse_option(scheme: str, name: str, known: Collection[str]) -> NoReturn:
    """Raise ValueError for an option that a URL may not have. The message names those that it may have."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif len(known) > FEW:
        hint = "docs/guide/urls.md has those that there are"
    else:
        hint = f"it takes {', '.join(known)}" if known else "it takes none"
    raise ValueError(f"a URL of {scheme}:// has no option {name!r:.100}; {hint}")


def check_seconds(scheme: str, name: str, value: str, *, whole: bool = False) -> None:
    """Raise ValueError unless the value of an option is a number of seconds above 0; a whole one, where told so."""
    try:
        seconds = float(int(value) if whole else value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        form = "a whole number" if whole else "a number"
        raise ValueError(
            f"the option {name!r} of a URL of {scheme}:// is {form} of seconds above 0, not {value!r:.100}"
        )


def scheme_of(url: str) -> str:
    """Return the scheme of a URL, in small letters.

    Raises:
        TypeError, ValueError: it is no URL. The message shows no secret.
    """
    check_url(url)
    scheme, separator, _ = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise ValueError(f"{redacted(url)!r:.200} is no URL: write its scheme first, such as redis://localhost:6379/0")
    return scheme.lower()


def check_url(url: str) -> None:
    """Raise TypeError or ValueError if this is no text that may be a URL."""
    if not isinstance(url, str):
        raise TypeError(f"a URL is a text such as 'redis://localhost:6379/0', not {type(url).__name__}")
    if not url or len(url) > MAX_LENGTH:
        raise ValueError(f"a URL has 1 to {MAX_LENGTH} characters, not {len(url)}")
    if not url.isprintable() or " " in url:
        raise ValueError("a URL has neither blanks nor characters that are not printable; percent-encode them")


def has_secret(url: str) -> bool:
    """Return whether a text has a password, or an option that may be one."""
    return redacted(url) != url


def redacted(url: str) -> str:
    """Return a text with asterisks in place of what may be secret. It need not be a URL."""
    head, separator, rest = url.partition("://")
    if not separator:
        head, rest = "", url
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in rest:  # the last one: a password that was not encoded may have a slash
        place = rest[: rest.rindex("@") + 1]
    account, at, hosts = place.rpartition("@")
    if at:
        name, colon, password = account.partition(":")
        rest = f"{name}{colon}{'***' if password else ''}@{hosts}{rest[len(place) :]}"
    return head + separator + _SECRET.sub(r"\1***", rest)


def _host(place: str, default_port: int, such_as: str) -> tuple[str, int]:
    match = _HOST.fullmatch(place)
    if match is None:
        raise ValueError(f"a URL names hosts as in {such_as!r}, with a port of digits; {place!r:.100} is none")
    port = int(match["port"]) if match["port"] else default_port
    if not 0 < port < 2**16:
        raise ValueError(f"a port is a number from 1 to 65535, not {port}")
    return unquote(match["name"].strip("[]")), port
