"""The number of workers that a group needs: from the age of what waits, and from who is busy."""

import json
import math
import re
import urllib.error
import urllib.request
from typing import Any

import yaml

from emsworker.core.scaling import Demand
from emsworker.monitoring.routes import stream_routes
from emsworker.observe.http import HttpServer
from emsworker.store.engine.database import Database
from emsworker.store.groups import progress
from tests.docs.snippets import ROOT, blocks
from tests.support.streams import Stream, failed, flush_of


def manifests() -> dict[str, Any]:
    """Those of the page on Kubernetes, by title; a file may hold several."""
    shown = [block for block in blocks(ROOT / "docs/how-to/kubernetes.md") if block.language == "yaml"]
    return {block.title: list(yaml.safe_load_all(block.text)) for block in shown}


def trigger(title: str, number: int = 0) -> dict[str, str]:
    found: dict[str, str] = manifests()[title][0]["spec"]["triggers"][number]["metadata"]
    assert all(isinstance(value, str) for value in found.values()), "KEDA takes texts"
    return found


def test_workers_follow_the_age_and_those_who_are_busy() -> None:
    def workers(waiting: int, oldest_s: float, busy: int, threads: int = 4, most: int | None = None) -> int:
        return Demand(waiting, waiting, oldest_s, 0, busy, threads).workers(30, most)

    assert workers(0, 0, 0) == 0, "to zero"
    assert workers(0, 0, 3) == 3, "a busy worker stays, though nothing waits"
    assert workers(5, 1, 0) == 1, "the first one"
    assert workers(10_000, 29, 4) == 4, "depth alone adds none"
    assert workers(10_000, 45, 4) == 6 and workers(10_000, 900, 4) == 8
    assert workers(1, 900, 4) == 5, "one message needs one thread"
    assert workers(10_000, 900, 4, most=5) == 5


def test_the_endpoint_tells_keda_how_many_workers_to_run(stream: Stream) -> None:
    topic = stream.topic("orders")
    group = stream.group(topic, "billing")
    stream.app().send_many("orders", range(20))
    stream.rows("UPDATE ems_message SET born_at = NOW(6) - INTERVAL 45 SECOND")
    query = trigger("keda-mysql.yaml")["query"]
    with HttpServer("127.0.0.1", 0, stream_routes({"main": Database(stream.url)})) as server:

        def ask(path: str) -> tuple[int, dict[str, Any]]:
            try:
                with urllib.request.urlopen(server.url + path, timeout=30) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        def workers() -> int:
            """As KEDA reads it: by its URL and its valueLocation; the query must say the same."""
            asked = trigger("keda-metrics-api.yaml")
            path = asked["url"].removeprefix("http://stream-metrics:9100")
            wanted = math.ceil(ask(path)[1][asked["valueLocation"]] / float(asked["targetValue"]))
            assert int(stream.value(query)) == wanted
            return int(wanted)

        assert workers() == 2, "it has waited for 45 s of 30 s, but twice as many is the most"
        claim = stream.take(topic, group, stream.client())
        found = ask("/scale/orders/billing")[1]
        assert (found["running"], found["busy"], found["waiting"], found["workers"]) == (20, 1, 0, 1), "it stays"
        assert workers() == 1
        failures = [failed(1, retry_in_s=900.0), failed(2, retry_in_s=0.0), failed(3, dead="no")]
        progress.flush(stream.session, flush_of(claim, topic, claim.hi, failures=failures))
        found = ask("/scale/orders/billing?age=1h&max=3")[1]
        assert (found["lag"], found["waiting"], found["busy"], found["workers"]) == (2, 1, 0, 1), "one retry is due"
        stream.rows("DELETE FROM ems_retry")
        assert workers() == 0
        stream.rows("UPDATE ems_group SET paused = 1")
        stream.app().send_many("orders", range(3))
        assert workers() == 0, "a paused group starts nothing"

        with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        for number, expected in enumerate(("busy_workers", "startable_seconds")):
            (name, labels) = re.findall(r"(ems_\w+)(\{.*?\})", trigger("keda-prometheus.yaml", number)["query"])[0]
            pairs = sorted(labels.strip("{}").split(","))
            assert name == f"ems_group_{expected}"
            assert f"{name}{{{','.join(sorted(pairs))}}} 0.0" in page
        assert ask("/scale/orders/nobody")[0] == ask("/scale/nothing/billing")[0] == ask("/scale/orders")[0] == 404
        assert "age" in ask("/scale/orders/billing?age=soon")[1]["error"]
        assert ask("/readyz")[1]["ok"] and ask("/livez")[1]["ok"]
        assert ask("/scale/orders/billing?max=-1")[0] == 400


def test_the_manifests_belong_together() -> None:
    found = manifests()
    (worker,) = found["worker.yaml"]
    pod = worker["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    assert env["EMS_HTTP"].endswith(f":{container['ports'][0]['containerPort']}")
    assert pod["terminationGracePeriodSeconds"] > 60 + 10 + 2
    for probe, path in {"startupProbe": "startupz", "livenessProbe": "livez", "readinessProbe": "readyz"}.items():
        assert container[probe]["httpGet"] == {"path": f"/{path}", "port": container["ports"][0]["name"]}
    liveness, startup = container["livenessProbe"], container["startupProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > 2 * 15, "the supervisor acts first"
    assert startup["periodSeconds"] * startup["failureThreshold"] > 120
    service = found["monitoring.yaml"][1]
    assert service["metadata"]["name"] == "stream-metrics" and service["spec"]["ports"][0]["port"] == 9100
    scaled = {title for title in found if title.startswith("keda-")}
    assert len(scaled) == 3
    assert {found[title][0]["spec"]["scaleTargetRef"]["name"] for title in scaled} == {worker["metadata"]["name"]}
