"""docs/recipes/kubernetes.md: schemas accept its manifests, and their commands do as processes what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from examples.servers import RedisServer
from fencing import RedisCoordinator
from storage_guards import SQLAlchemyGuard
from tests.support import wait_until
from tests.support.commands import COMMAND
from tests.support.programs import Programs, blocks

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed"),
]

(REPORT,) = blocks("kubernetes")
CRON_JOB, DEPLOYMENT = blocks("kubernetes", "yaml")
VERSIONS = ["1.31.0", "1.37.0"]

NAIVE = """
import os
from sqlalchemy import create_engine, text

name = os.environ["JOB_NAME"]
with create_engine(os.environ["DATABASE_URL"]).begin() as connection:
    connection.execute(text("INSERT INTO reports SELECT :name, sum(total) FROM orders"), {"name": name})
"""
MEET = """
import pathlib, time
pathlib.Path(f"met.{os.getpid()}").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""
"""Before the transaction: both pods have started by then."""

LEADS = "import time\nprint('leads', flush=True)\nwhile True:\n    time.sleep(1)\n"


def loaded(manifest: str) -> Any:
    import yaml

    return yaml.safe_load(manifest)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", [CRON_JOB, DEPLOYMENT], ids=["cronjob", "deployment"])
def test_the_schema_accepts_the_manifest(manifest: str, version: str) -> None:
    import kubernetes_validate

    kubernetes_validate.validate(loaded(manifest), version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(loaded(manifest.replace("containers:", "container:")), version, strict=True)


class Cluster(Programs):
    """Starts the containers of a manifest as processes, with what Kubernetes would put into their environment."""

    def __init__(self, stack: ExitStack, folder: Path, engine: Engine, redis: RedisServer) -> None:
        super().__init__(stack, folder)
        self.engine = engine
        self.secrets = {"database": engine.url.render_as_string(hide_password=False), "redis": redis.url}
        for name, value in self.secrets.items():
            self.write(f"secrets/{name}", value)

    def pod(self, template: dict[str, Any], labels: dict[str, str], name: str) -> subprocess.Popen[bytes]:
        """Start the one container of a pod."""
        [container] = template["spec"]["containers"]
        environment: dict[str, str] = {}
        for each in container["env"]:
            environment[each["name"]] = self.value(each, labels, name, environment)
        mounts = {mount["mountPath"]: str(self.folder / mount["name"]) for mount in container.get("volumeMounts", [])}
        words = [expand(word, environment) for word in container["command"]]
        for path, folder in mounts.items():
            words = [word.replace(path, folder) for word in words]
        assert words[0] == "fencing"
        return self.start(
            *COMMAND, *[sys.executable if word == "python" else word for word in words[1:]], **environment
        )

    def value(self, each: dict[str, Any], labels: dict[str, str], name: str, before: dict[str, str]) -> str:
        if "value" in each:
            return expand(each["value"], before)
        if "secretKeyRef" in each["valueFrom"]:
            return self.secrets[each["valueFrom"]["secretKeyRef"]["key"]]
        path = each["valueFrom"]["fieldRef"]["fieldPath"]
        label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
        return labels[label[1]] if label else {"metadata.name": name}[path]

    def reports(self) -> list[str]:
        with self.engine.connect() as connection:
            return [row.name for row in connection.execute(text("SELECT name FROM reports"))]


def expand(value: str, environment: dict[str, str]) -> str:
    """Return a word with $(NAME) replaced, as the kubelet does it."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), value)


@pytest.fixture
def cluster(any_redis: RedisServer, postgres_url: str, tmp_path: Path) -> Iterator[Cluster]:
    engine = create_engine(postgres_url)
    SQLAlchemyGuard(engine).create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders AS SELECT 3 AS total"))
        connection.execute(text("CREATE TABLE reports (name text, total int)"))
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        made = Cluster(stack, tmp_path, engine, any_redis)
        try:
            yield made
        except BaseException as error:
            error.add_note(made.said()[-12000:])
            raise


def test_two_pods_of_one_job_make_one_report(cluster: Cluster) -> None:
    cluster.write("report.py", REPORT)
    template = loaded(CRON_JOB)["spec"]["jobTemplate"]["spec"]["template"]
    labels = {"batch.kubernetes.io/job-name": "report-29928180"}
    pods = [cluster.pod(template, labels, name) for name in ("report-29928180-a", "report-29928180-b")]
    assert [pod.wait(120) for pod in pods] == [0, 0]
    assert cluster.reports() == ["report-29928180"]
    assert "made before" in cluster.said()
    later = cluster.pod(template, {"batch.kubernetes.io/job-name": "report-29929620"}, "report-29929620-a")
    assert later.wait(120) == 0
    assert cluster.reports() == ["report-29928180", "report-29929620"]


def test_two_pods_without_lock_and_guard_make_two(cluster: Cluster) -> None:
    cluster.write("report.py", NAIVE.replace("with ", MEET + "with "))
    environment = {"JOB_NAME": "report-1", "DATABASE_URL": cluster.secrets["database"]}
    pods = [cluster.start(sys.executable, "report.py", **environment) for _ in range(2)]
    wait_until(lambda: cluster.made("met.*") == 2)
    cluster.touch("go")
    assert [pod.wait(120) for pod in pods] == [0, 0]
    assert cluster.reports() == ["report-1"] * 2


def test_the_pods_of_a_deployment_have_one_leader(cluster: Cluster, any_redis: RedisServer) -> None:
    cluster.write("jobs.py", LEADS)
    manifest = loaded(DEPLOYMENT)
    names = [f"scheduler-{number}" for number in range(manifest["spec"]["replicas"])]
    pods = {name: cluster.pod(manifest["spec"]["template"], {}, name) for name in names}
    cluster.wait_for("leads")
    assert sum(cluster.said(log).count("leads") for log in range(3)) == 1
    with RedisCoordinator(any_redis.client()) as coordinator:
        leader = coordinator.election("scheduler").leader()
        assert leader is not None
        assert leader.value in pods
        pods[leader.value].terminate()
        pods[leader.value].wait(60)
        cluster.wait_for("leads", 2)
        follower = coordinator.election("scheduler").leader()
    assert follower is not None
    assert follower.value not in (None, leader.value)
