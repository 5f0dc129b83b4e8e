"""A worker that writes in a file of SQLite half of the time: ``python -m tests.support.busy_worker NAME FILE``."""

import sqlite3
import sys
import time

from examples.stage.reports import report

if __name__ == "__main__":
    with sqlite3.connect(sys.argv[2], isolation_level=None) as connection:
        while True:
            connection.execute("BEGIN IMMEDIATE")
            report("writes")
            time.sleep(0.03)
            connection.execute("COMMIT")
            time.sleep(0.03)
