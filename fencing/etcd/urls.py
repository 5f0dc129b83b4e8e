"""The URLs of etcd: several members in one, which endpoints are not."""

from __future__ import annotations

import ssl
from typing import Any

from fencing.etcd.endpoints import DEFAULT_PORT
from fencing.locks.urls import parse


def connect(url: str, coordinator: Any, options: dict[str, Any], *, asynchronous: bool) -> Any:
    """Return a coordinator of this class for a URL: see :func:`arguments_of`."""
    return coordinator(**arguments_of(url), **options)


def arguments_of(url: str) -> dict[str, Any]:
    """Return the arguments of a coordinator, from a URL such as ``"etcds://user:password@host1:2379,host2:2379"``.

    ``etcd://`` is HTTP, ``etcds://`` HTTPS. The options ``ca``, ``cert`` and ``key`` are the paths of PEM files: the
    authority to trust, and the certificate of the client with its key.

    Raises:
        TypeError, ValueError: the URL is wrong, or a file is missing or none of certificates.
    """
    parsed = parse(url, DEFAULT_PORT, such_as="etcd://host1:2379,host2:2379")
    secure = parsed.scheme == "etcds"
    parsed.check_options(*(("ca", "cert", "key") if secure else ()))
    if parsed.path:
        raise ValueError(f"a URL of {parsed.scheme}:// has no path, not {parsed.path!r:.100}")
    if parsed.options.get("key") and not parsed.options.get("cert"):
        raise ValueError("the option key= of a URL belongs to a certificate: name it by cert=")
    hosts = [f"[{host}]" if ":" in host else host for host, _ in parsed.hosts]
    return {
        "endpoints": [
            f"http{'s' * secure}://{name}:{port}" for name, (_, port) in zip(hosts, parsed.hosts, strict=True)
        ],
        "tls": _tls(parsed.options) if secure else None,
        "user": parsed.username,
        "password": parsed.password,
    }


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"))
    except OSError as error:  # which ssl.SSLError is
        files = ", ".join(f"{name}={path}" for name, path in options.items())
        raise ValueError(f"the files of a URL of etcds:// ({files}) cannot be used: {error}") from error
    return context
