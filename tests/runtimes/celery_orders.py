"""The tasks of a Celery worker. Its processes are forked from the one that has loaded this."""

import os

from celery import Celery

from tests.runtimes import orders

app = Celery(broker=os.environ["ORDERS_BROKER"], backend=os.environ["ORDERS_BROKER"])
app.conf.worker_prefetch_multiplier = 1

app.task(orders.add, name="add")
app.task(orders.hold_on, name="hold_on")
