"""`muster check --suspect`: a command of its own asks every node, none is waited for long."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from healthcheck import suspect_nodes
from healthcheck.finding import Finding
from healthcheck.suspect_nodes import ask, question, way_to
from muster.cli import main
from muster.errors import UsageError
from muster.site import Site
from muster.slurm import Job
from tests.harness.programs import Scontrol

Program = Callable[[str, str], Path]
GOOD = Finding("gpu_count", "PASS", "hardware", "none", "shows 8 of 8 GPUs", "", rule="gpu_count")
SHORT = replace(GOOD, status="FAIL", action="replace", detail="shows 7 of 8 GPUs")
JOB = Job("7", "RUNNING", ["n1", "n2"], "n1", 0, "run.sbatch", requeue=True, user_id=os.geteuid())
REMOTE = Site(on_node_command=["far", "{node}"])


def answer(*findings: Finding) -> str:
    lines = [json.dumps(finding.as_json()) for finding in findings]
    return "\n".join([*lines, json.dumps({"node": "x", "fit": True, "unfit": []})])


def test_the_way_to_a_node() -> None:
    own = way_to(JOB, REMOTE)
    assert own[:2] == ["srun", "--jobid=7"]
    assert "--nodelist={node}" in own
    for job in (None, replace(JOB, state="FAILED"), replace(JOB, user_id=os.geteuid() + 1)):
        assert way_to(job, REMOTE) == ["far", "{node}"]
        with pytest.raises(UsageError, match="no on_node_command"):
            way_to(job, Site())


def test_what_is_asked() -> None:
    assert question(None) == ["muster", "check", "--when", "suspect", "--json"]
    assert question(12.5)[-2:] == ["--since", "12.500"]


def test_each_node_answers_for_itself(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is fit, one is not, one says nonsense, one is killed; exit codes do not matter."""
    for node, found in {"n1": [GOOD], "n2": [SHORT]}.items():
        (tmp_path / node).write_text(answer(*found))
    (tmp_path / "n3").write_text("Traceback\n")
    program("far", f"[ $1 = n4 ] && kill -9 $$; env >{tmp_path}/env; cat {tmp_path}/$1; exit 1")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_CONF", "/conf")
    answers = ask(["n1", "n2", "n3", "n4"], ["far", "{node}"], ["muster"])
    assert answers == {"n1": [GOOD], "n2": [SHORT], "n3": None, "n4": None}
    seen = (tmp_path / "env").read_text()
    assert "SLURM_CONF=/conf" in seen
    assert "SLURM_NTASKS" not in seen


def test_more_nodes_than_can_be_asked_at_once(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("far", "sleep 600")
    monkeypatch.setattr(suspect_nodes, "LIMIT_S", 0.5)
    monkeypatch.setattr(suspect_nodes, "AT_ONCE", 2)
    nodes = [f"n{i}" for i in range(9)]
    assert ask(nodes, ["far", "{node}"], ["muster"]) == dict.fromkeys(nodes)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text("on_node_command: [far, '{node}']\n")
    monkeypatch.setenv("MUSTER_SITE", str(path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return path


def test_a_job_of_somebody_else(
    site: Path, scontrol: Scontrol, program: Program, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    scontrol.job(StartTime="2026-01-02T03:04:05")
    (scontrol.state / "hosts").write_text("n1\nn2\n")
    for node, found in {"n1": [GOOD], "n2": [SHORT]}.items():
        (tmp_path / node).write_text(answer(*found))
    program("far", f'echo "$@" >>{tmp_path}/words; cat {tmp_path}/$1')
    assert main(["check", "--suspect", "--job", "7"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "muster check: 2 of 2 nodes answered"
    assert out[-1].startswith("muster check: suspect: node n2 (hardware, replace): node n2 shows 7")
    words = (tmp_path / "words").read_text()
    assert "n1 muster check --when suspect --json --since 1767" in words
    assert main(["check", "--suspect", "--nodes", "n1", "--json"]) == 0
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"node": "n1", "answered": True, "failed": []}
    assert last["verdict"] == "unknown"


def test_nobody_to_ask(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--suspect"]) == 64
    assert "give --job ID" in capsys.readouterr().err
