"""Burn-in: what makes a node pass, and what is asked of Slurm around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from healthcheck import maintenance
from healthcheck.deep.results import NodeResult, alone, in_pairs, passed
from healthcheck.finding import Finding
from muster.cli import main
from muster.errors import TemporaryError, UnavailableError
from tests.harness.programs import node_record, put

DISK = Finding("deep_disk", "PASS", "hardware", "none", "writes", "", rule="deep_disk", value=1000)
MATMUL = replace(DISK, check="deep_matmul", rule="deep_matmul", value=None, checksum="H100/aa")
SKIP = replace(DISK, status="SKIP", detail="has no torch", value=None)
SHORT = Finding("gpu_count", "FAIL", "hardware", "replace", "shows 7 of 8 GPUs", "")
WARN = replace(SHORT, check="gpu_hot", status="WARN")


def words(found: dict[str, NodeResult]) -> str:
    return " ".join(result.word for result in found.values())


def test_alone() -> None:
    reports = {"n1": [DISK, SKIP, WARN], "n2": [DISK, SHORT], "n3": [SKIP], "n4": None, "n5": []}
    found = alone(reports)
    assert words(found) == "Passed Failed Skipped Skipped Skipped"
    assert found["n2"].failed == [SHORT]
    assert found["n3"].why == "has no torch"
    assert found["n4"].why == "gave no answer in time"


def test_the_slow_one_and_the_one_that_computes_otherwise_are_found_by_their_peers() -> None:
    other = replace(MATMUL, checksum="H100/bb")
    slow = replace(DISK, value=700)
    reports = {
        "n1": [DISK, MATMUL],
        "n2": [DISK, other],
        "n3": [slow, MATMUL],
        "n4": [DISK, MATMUL],
    }
    found = alone(reports)
    assert words(found) == "Passed Failed Failed Passed"
    (bits,), (speed,) = found["n2"].failed, found["n3"].failed
    assert (bits.check, bits.action) == ("deep_matmul", "replace")
    assert (speed.rule, speed.action) == ("deep_disk.slow", "drain")
    assert "reaches 700" in speed.detail


def test_the_same_fault_is_told_once() -> None:
    slow = replace(DISK, status="FAIL", rule="deep_disk.slow", value=1)
    found = alone({"n1": [slow], "n2": [DISK], "n3": [DISK]})
    assert found["n1"].failed == [slow]


def test_whoever_fails_with_two_partners_is_to_blame() -> None:
    fit = {f"n{i}": NodeResult("Passed") for i in range(1, 5)}
    tried = {("n1", "n2"): False, ("n3", "n4"): True, ("n1", "n3"): False, ("n2", "n4"): True}
    found = in_pairs(fit, tried)
    assert words(found) == "Failed Passed Passed Passed"
    assert (found["n1"].failed[0].class_, found["n1"].failed[0].action) == ("network", "drain")
    assert words(in_pairs(fit, {("n1", "n2"): False})) == "Passed Passed Passed Passed"
    assert in_pairs(fit, dict.fromkeys(tried)) == fit


TCP = replace(DISK, check="pair_tcp", rule="pair_tcp")
SUMS = replace(DISK, check="pair_allreduce", rule="pair_allreduce")
PAIRS = {
    # name: (findings of both nodes, whether the pair passed)
    "all passed": ([TCP, SUMS, TCP, SUMS], True),
    "one failed one test": ([TCP, SUMS, TCP, replace(SUMS, status="FAIL")], False),
    "one failed, the other did not say": ([replace(TCP, status="FAIL")], False),
    "no torch": ([TCP, replace(SUMS, status="SKIP")] * 2, True),
    "nothing could be tested": ([replace(SUMS, status="SKIP")] * 2, None),
    "one did not say": ([TCP, SUMS], None),
    "one does not know": ([TCP, SUMS, TCP, replace(SUMS, status="UNKNOWN")], None),
    "no answer": ([], None),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair(name: str) -> None:
    found, expected = PAIRS[name]
    assert passed(found) is expected


SCONTROL = """\
cd {state} || exit 9
echo "$*" >>calls
case "$1 $2" in
  "show node") cat nodes ;;
  "show hostnames") echo "$3" | tr , '\\n' ;;
  "show reservation") cat reservation 2>/dev/null || {{ echo "not found" >&2; exit 1; }} ;;
  "create reservation") [ ! -e refuse ] || {{ echo "Requested nodes are busy" >&2; exit 1; }} ;;
esac
"""


class Slurm:
    """A scontrol whose answers are files; `calls` are those that change something."""

    def __init__(self, bin_folder: Path, state: Path) -> None:
        state.mkdir()
        self.state = state
        put(bin_folder, "scontrol", SCONTROL.format(state=state))
        self.nodes(*(node_record(f"n{i}", "IDLE") for i in range(1, 5)))

    def nodes(self, *records: str) -> None:
        (self.state / "nodes").write_text("\n".join(records))

    @property
    def calls(self) -> list[str]:
        lines = (self.state / "calls").read_text().splitlines()
        return [line for line in lines if not line.startswith("show ")]


@pytest.fixture
def slurm(bin_folder: Path, tmp_path: Path) -> Slurm:
    return Slurm(bin_folder, tmp_path / "slurm")


def test_a_reservation_is_given_back(slurm: Slurm) -> None:
    with maintenance.reserved(["n1", "n2"], 90) as held:
        assert held.name == "muster_burn_in"
    create, delete = slurm.calls
    assert create.startswith(
        "create reservation reservationname=muster_burn_in duration=2 starttime=now "
        "flags=maint,ignore_jobs nodes=n1,n2 users="
    )
    assert delete == "delete reservationname=muster_burn_in"


def test_it_is_given_back_after_an_error_too_and_keeps_who_failed(slurm: Slurm) -> None:
    def interrupted() -> None:
        with maintenance.reserved(["n1", "n2"], 90) as held:
            held.keep.append("n2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert slurm.calls[-1] == "update reservationname=muster_burn_in nodes=n2"


def test_what_a_dead_burn_in_left_is_taken_over_but_not_other_nodes(slurm: Slurm) -> None:
    (slurm.state / "reservation").write_text("ReservationName=muster_burn_in\n   Nodes=n1,n3\n")
    with maintenance.reserved(["n1", "n2", "n3"], 90):
        assert slurm.calls == ["update reservationname=muster_burn_in nodes=n1,n2,n3"]
    with pytest.raises(TemporaryError, match="holds n3 already"), maintenance.reserved(["n1"], 90):
        pass
    assert len(slurm.calls) == 2


def test_a_refused_reservation_is_an_error(slurm: Slurm) -> None:
    (slurm.state / "refuse").write_text("")
    with pytest.raises(UnavailableError, match="are busy"), maintenance.reserved(["n1"], 90):
        pass


def test_a_mark_keeps_all_other_features(slurm: Slurm) -> None:
    record = node_record("n1", "IDLE").replace(
        "   State=",
        "   AvailableFeatures=a,HealthCheck:InProgress,b\n   ActiveFeatures=b\n   State=",
    )
    slurm.nodes(record)
    maintenance.mark("n1", "Passed")
    slurm.nodes(node_record("n1", "IDLE"))
    maintenance.mark("n1", "Failed")
    marked, fresh = slurm.calls
    assert marked == (
        "update nodename=n1 availablefeatures=a,b,HealthCheck:Passed "
        "activefeatures=b,HealthCheck:Passed"
    )
    assert fresh.endswith("availablefeatures=HealthCheck:Failed activefeatures=HealthCheck:Failed")


SRUN = """\
for word in "$@"; do case $word in --nodelist=*) nodes=${{word#*=}} ;; esac; done
echo "$*" >>{at}/runs
case $* in *"--when pair"*) when=pair ;; *) when=deep ;; esac
for node in ${{nodes//,/ }}; do cat {at}/$node.$when 2>/dev/null; done
"""


@pytest.fixture
def answers(
    slurm: Slurm, program: Callable[[str, str], Path], tmp_path: Path
) -> Callable[..., None]:
    """What `muster check` says on a node, alone and in a pair."""
    at = tmp_path / "answers"
    at.mkdir()
    program("srun", SRUN.format(at=at))

    def say(node: str, *found: Finding, when: str = "deep") -> None:
        last = json.dumps({"node": node, "boot_id": "", "fit": True, "unfit": []})
        lines = [json.dumps(finding.as_json()) for finding in found]
        (at / f"{node}.{when}").write_text("\n".join([*lines, last, ""]))

    return say


def test_the_whole_of_it(
    slurm: Slurm, answers: Callable[..., None], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """n1 to n3 are fit, n4 has a GPU too few and is the one node that the budget lets go."""
    monkeypatch.setenv("MUSTER_LOG_DIR", str(tmp_path))
    pair = replace(DISK, check="pair_allreduce", rule="pair_allreduce")
    for node in ("n1", "n2", "n3", "n4"):
        answers(node, DISK, *([SHORT] if node == "n4" else []))
        answers(node, pair, when="pair")
    gpus = node_record("n1", "IDLE").replace("   State=", "   Gres=gpu:h100:8(S:0-1)\n   State=")
    slurm.nodes(gpus, *(node_record(f"n{i}", "IDLE") for i in (2, 3, 4)))
    assert main(["burn-in", "--nodes", "n1,n2,n3,n4", "--rounds", "2"]) == 1
    out = capsys.readouterr().out
    assert "node n4: Failed: gpu_count: shows 7 of 8 GPUs" in out
    assert "node n1: Passed" in out
    drained = "update nodename=n4 state=drain reason=muster:gpu_count:hardware:replace shows 7"
    assert any(call.startswith(drained) for call in slurm.calls)
    assert slurm.calls[-1] == "delete reservationname=muster_burn_in"
    runs = (tmp_path / "answers/runs").read_text().splitlines()
    assert sum("--when deep" in run for run in runs) == 4
    assert sum("--when pair" in run for run in runs) == 2  # three fit nodes, two rounds
    assert not [run for run in runs if "pair" in run and "n4" in run]
    assert all("--reservation=muster_burn_in" in run for run in runs)
    assert ["--gpus-per-node=8" in run for run in runs if "--nodelist=n1 " in run] == [True]
    marks = [call.rpartition(":")[2] for call in slurm.calls if "activefeatures" in call]
    assert marks == ["InProgress"] * 4 + ["Passed"] * 3 + ["Failed"]


def test_who_failed_beyond_the_budget_stays_reserved(
    slurm: Slurm, answers: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    drained = node_record("n2", "IDLE+DRAIN", Reason="muster:xid:hardware:reboot x [root@now]")
    slurm.nodes(node_record("n1", "IDLE+MAINTENANCE+RESERVED"), drained)
    answers("n1", SHORT)
    assert main(["burn-in"]) == 1
    assert "stays in the reservation muster_burn_in: partition" in capsys.readouterr().out
    assert slurm.calls[-1] == "update reservationname=muster_burn_in nodes=n1"
    assert not any("state=drain" in call for call in slurm.calls)


def test_drained_and_lost_nodes_are_not_tested(
    slurm: Slurm, answers: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    drained = node_record("n1", "IDLE+DRAIN", Reason="fan [ann@now]")
    slurm.nodes(drained, node_record("n2", "DOWN*"))
    assert main(["burn-in"]) == 1
    out = capsys.readouterr().out
    assert "node n1: Skipped: it is drained: fan" in out
    assert "node n2: Skipped: its state is DOWN" in out
    assert slurm.calls == []


def test_a_dry_run_changes_nothing(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["burn-in", "--nodes", "n1", "--dry-run"]) == 0
    assert "node n1: would be tested" in capsys.readouterr().out
    assert slurm.calls == []


def test_an_unknown_node_is_refused(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["burn-in", "--nodes", "n9"]) == 64
    assert "Slurm knows no node n9" in capsys.readouterr().err
