"""s3rver, from npm: an S3 that ignores If-Match and If-None-Match, as several real ones do."""

from pathlib import Path

from examples.servers import S3Server, ServerError
from examples.servers.local import LocalProcess, new_directory
from tests.support.servers.npm import find_npm_program

VARIABLE = "FENCING_TEST_S3RVER"


def find_s3rver() -> Path | None:
    """Return the path of s3rver, first the one that FENCING_TEST_S3RVER names; None where there is none."""
    return find_npm_program(VARIABLE, "s3rver")


def start_s3rver() -> S3Server:
    """Start s3rver. Raises ServerError when it is not installed."""
    program = find_s3rver()
    if program is None:
        raise ServerError(f"no s3rver: run `make node`, or put s3rver on PATH or into {VARIABLE}")
    directory = new_directory()
    process = LocalProcess(
        command=lambda port: [
            *(str(program), "--directory", str(directory / "data"), "--address", "127.0.0.1", "--port", str(port)),
            *("--silent", "--no-vhost-buckets", "--allow-mismatched-signatures"),
        ],
        directory=directory,
        data=directory / "data",
        ready=lambda process: "S3rver listening" in process.log,
        clashed=lambda log: "EADDRINUSE" in log,
    )
    return S3Server(f"http://127.0.0.1:{process.port}", process, f"s3rver: {program}")
