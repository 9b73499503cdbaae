"""The steps around figures: real exporters and a real Prometheus on loopback.

They are downloaded, which is why these tests are slow. The DCGM exporter is a stand-in that
listens where it is told to, and writes down what it was called with.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.harness.debs import deb, download, offer
from tests.harness.private_root import ROOT
from tests.lifecycle.test_steps import CLUSTER, Machines, only

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(  # the machines of these tests have the disk of this one and no network
        not all(map(shutil.which, ("pgrep", "ssh-keygen"))),
        reason="needs the packages procps and openssh-client",
    ),
]
GPUS = {"hardware": {"sockets": 1, "cores_per_socket": 1, "threads_per_core": 2,
                     "memory_mib": 2000, "gpus": 2}}  # fmt: skip


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    made = Machines(tmp_path)
    describe(made, enabled=True, retention_days=7)
    return made


def describe(machines: Machines, **monitoring: object) -> None:
    head, nodes = CLUSTER["groups"]
    machines.describe(groups=[head, {**nodes, **GPUS}], monitoring=monitoring)


@pytest.mark.slow
def test_another_description_reaches_what_runs_and_wrong_rules_stop_nothing(
    machines: Machines,
) -> None:
    head = machines["head"]
    download(head.file("/var/cache/apt/archives"), "prometheus", "prometheus-node-exporter")
    chosen = only("node_exporter", "prometheus")
    rules = head.file("/etc/prometheus/rules/site.yml")
    rule = "groups: [{name: x, rules: [{record: a, expr: sum(}]}]"
    wrong = f"mkdir -p /etc/prometheus/rules; echo '{rule}' >/etc/prometheus/rules/site.yml"
    other = chosen.replace("cluster.yaml", "cluster.yaml monitoring.retention_days=9")
    rc, out = head.run(f"{chosen}; {wrong}; {other}")
    assert rc == 0, out
    assert "prometheus: failed with exit code 78 (optional: jobs run without figures): " in out
    assert "Prometheus would not start with the rules in /etc/prometheus/rules" in out
    rules.unlink()
    describe(machines, enabled=True, prometheus_port=9091, retention_days=30)
    look = "tr '\\0' ' ' </proc/$(pgrep -x prometheus)/cmdline"
    rc, out = head.run(f"{chosen}; {chosen}; {look}")
    assert rc == 0, out
    assert "2 steps: 0 changed, 2 unchanged" in out
    assert "--web.listen-address=127.0.0.1:9091" in out
    assert "--storage.tsdb.retention.time=30d" in out


@pytest.mark.slow
def test_words_of_an_operator_stay(machines: Machines) -> None:
    node = machines["n1"]
    download(node.file("/var/cache/apt/archives"), "prometheus-node-exporter")
    defaults = node.file("/etc/default/prometheus-node-exporter")
    defaults.parent.mkdir(parents=True)
    own = '# mine\nARGS="--collector.ntp --log.level=warn"\n'
    defaults.write_text(own)
    chosen = only("node_exporter")
    look = "tr '\\0' ' ' </proc/$(pgrep -x prometheus-node)/cmdline"
    rc, out = node.run(f"{chosen}; {chosen}; {look}")
    assert rc == 0, out
    found = re.findall(r"^node_exporter: (\w+)", out, re.MULTILINE)
    assert found == ["changed", "unchanged"]
    words = out.splitlines()[-1].split()
    address = "--web.listen-address=10.9.0.11:9100"
    assert words[1:4] == ["--collector.ntp", "--log.level=warn", address]
    assert defaults.read_text().startswith(own)


EXPORTER = """#!/usr/bin/python3 -I
import http.server, pathlib, sys
pathlib.Path("/root/dcgm.words").write_text(" ".join(sys.argv[1:]))
pathlib.Path("/proc/self/comm").write_text("dcgm-exporter")
words = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"DCGM_FI_DEV_GPU_UTIL 1\\n")
host, _, port = words["address"].rpartition(":")
http.server.HTTPServer((host, int(port)), Answer).serve_forever()
"""


def test_the_dcgm_exporter_gets_its_address_and_the_jobs_of_gpus(machines: Machines) -> None:
    node = machines["n1"]
    files = {"/usr/bin/dcgm-exporter": EXPORTER}
    package = deb(node.folder, "datacenter-gpu-manager-exporter", "4.8.2-1", files)
    chosen = only("dcgm_exporter")
    rc, out = node.run(f"{offer(node, package)} {chosen}; {chosen}")
    assert rc == 0, out
    found = re.findall(r"^dcgm_exporter: (\w+)", out, re.MULTILINE)
    assert found == ["changed", "unchanged"], out
    words = "--address=10.9.0.11:9400 --hpc-job-mapping-dir=/run/muster/gpu_jobs"
    assert node.file("/root/dcgm.words").read_text() == words
    unit = node.file("/etc/systemd/system/nvidia-dcgm-exporter.service.d/muster.conf").read_text()
    assert unit.endswith(f"\n[Service]\nExecStart=\nExecStart=/usr/bin/dcgm-exporter {words}\n")
    # Where DCGM's own engine runs, that one is asked.
    engine = "printf '#!/bin/bash\\nsleep 100\\n' >/run/nv-hostengine; chmod +x /run/nv-hostengine;"
    run = "/run/nv-hostengine & until pgrep -x nv-hostengine; do sleep 0.1; done;"
    rc, out = node.run(f"{engine} {run} {chosen}")
    assert rc == 0, out
    said = node.file("/root/dcgm.words").read_text()
    assert said == f"{words} --remote-hostengine-info=localhost:5555"


def test_a_dcgm_exporter_that_nobody_has_stops_nothing(machines: Machines) -> None:
    rc, out = machines["n1"].run(offer(machines["n1"]) + only("dcgm_exporter"))
    assert rc == 0, out
    assert "dcgm_exporter: failed with exit code 69" in out
    why = "no source of packages here has datacenter-gpu-manager-exporter: add NVIDIA's source"
    assert why in out
    rc, out = machines["head"].run(f"bash {ROOT}/lifecycle/create.sh /root/cluster.yaml --list")
    assert (rc, "dcgm_exporter" in out) == (0, False)
