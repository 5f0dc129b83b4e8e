"""moto's S3 as a program: `python -m examples.servers.s3_app PORT serialised|racy PAUSE`.

moto looks whether a condition holds and then stores the object, with nothing that keeps two threads apart. Real S3
decides and stores as one step, so here one request is carried out at a time; "racy" leaves that out. PAUSE is the time
in seconds between looking and storing: what goes wrong once in a thousand times then does whenever two requests meet.
"""

import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from moto.s3.models import S3Backend
from werkzeug.serving import make_server

Environ = dict[str, Any]
App = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


class Serialised:
    """Carries out one request at a time, and transfers many: a client that stops in mid-transfer holds up nobody."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> list[bytes]:
        length = -1 if environ.get("wsgi.input_terminated") else int(environ.get("CONTENT_LENGTH") or 0)
        # What comes to less than its length is refused further on.
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with self._lock:
            reply = self._app(environ, start_response)
            try:
                return list(reply)
            finally:
                if hasattr(reply, "close"):
                    reply.close()


class Handler(MotoRequestHandler):
    disable_nagle_algorithm = True  # headers and body go out separately: that would cost 40 ms each time


def pause_before_storing(pause: float) -> None:
    store: Callable[..., Any] = S3Backend.put_object

    def store_late(*arguments: Any, **options: Any) -> Any:
        time.sleep(pause)
        return store(*arguments, **options)

    S3Backend.put_object = store_late  # type: ignore[method-assign]


def main(port: int, mode: str, pause: float) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request is of no use
    app: App = create_backend_app("s3")
    if mode == "serialised":
        app = Serialised(app)
    if pause:
        pause_before_storing(pause)
    server = make_server("127.0.0.1", port, app, threaded=True, request_handler=Handler)
    print("serving S3", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
