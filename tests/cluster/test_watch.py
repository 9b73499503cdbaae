"""Nodes fail, are drained, replaced, verified and return, on a real Slurm; and are left alone."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.cluster import LocalCluster

Until = Callable[..., None]
Make = Callable[..., LocalCluster]

pytestmark = pytest.mark.cluster

BACK = ["verify_started", "verify_ended"] * 3 + ["resumed", "returned"]
UNFIT = "muster:gpu_count:hardware:replace by hand boot=00112233"


class Place:
    """A cluster, its watch, and what the watch wrote."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.muster = str(cluster.folder.path / "bin/muster")

    def argv(self, *options: str) -> list[str]:
        files = ["--state", str(self.folder / "watch.json"), "--log", str(self.folder / "log")]
        return [self.muster, "watch", *files, *options]

    def once(self, *options: str) -> str:
        done = self.cluster.exec(self.argv("--once", *options))
        assert done.ok, done
        return done.out

    @contextmanager
    def watching(self) -> Iterator[None]:
        argv = self.cluster.exec_argv(["env", *self.argv("--interval", "0.3")])
        with (self.folder / "out").open("ab") as out:
            process = subprocess.Popen(argv, stdout=out, stderr=out)
            try:
                yield
            finally:
                pid = (self.folder / "watch.json.lock").read_text().strip()
                self.cluster.exec(["bash", "-c", f"kill -TERM {pid}"])
                assert process.wait(60) == 0, (self.folder / "out").read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in map(json.loads, lines) if line["node"] == name]

    def names(self, name: str) -> list[str]:
        """Events of a node without the waiting."""
        return [line["event"] for line in self.events(name) if line["event"] != "waits"]

    def drain(self, name: str, reason: str) -> None:
        update = ["scontrol", "update", f"nodename={name}", "state=drain", f"reason={reason}"]
        assert self.cluster.exec(update).ok

    def shown(self, name: str) -> str:
        return self.cluster.exec(["scontrol", "show", "node", name]).out

    def boot(self, name: str) -> str:
        return (self.cluster.folder.path / "nodes" / name / "boot_id").read_text()

    def site(self, **keys: object) -> None:
        """Change keys of the cluster's site file: the last one of a name counts."""
        path = self.cluster.folder.path / "site.yaml"
        kept = [line for line in path.read_text().splitlines() if line.split(":")[0] not in keys]
        kept += [f"{key}: {json.dumps(value)}" for key, value in keys.items()]
        path.write_text("\n".join(kept) + "\n")


@pytest.fixture
def place(make_cluster: Make, tmp_path: Path) -> Place:
    """Four nodes without HealthCheckProgram, so that only the test drains.

    A boot takes longer than a second, which is how finely Slurm tells one boot from another.
    """
    settings = (("HealthCheckInterval", "0"),)
    one = Place(make_cluster(nodes=4, boot_s=1.1, settings=settings), tmp_path)
    one.site(max_unfit_fraction=0.25, lost_after_s=1)
    return one


def test_a_node_that_lost_power_is_replaced_and_returns(place: Place, until: Until) -> None:
    before = place.boot("n2")
    with place.watching():
        place.cluster.node("kill", "n2")
        until(lambda: "returned" in place.names("n2"))
    assert place.names("n2") == ["drained", "replace_started", "replace_ended", *BACK]
    until(lambda: place.cluster.states()["n2"] == "idle")
    assert place.boot("n2") != before
    assert "Reason=" not in place.shown("n2")
    assert json.loads((place.folder / "watch.json").read_text()) == {"nodes": {}}
    assert place.names("n1") == []


def test_a_gpu_fault_seen_by_slurms_health_check_ends_in_a_fit_node(
    make_cluster: Make, tmp_path: Path, until: Until
) -> None:
    place = Place(make_cluster(nodes=2), tmp_path)  # HealthCheckProgram runs, as users get it
    before = place.boot("n1")
    place.cluster.node("gpu-break", "n1", gpu=5, how="gone")
    log = place.cluster.folder.path / "log/health-n1.log"
    until(log.exists)
    try:
        until(lambda: "muster:gpu_count:hardware:replace" in place.shown("n1"))
    except AssertionError:
        said = log.read_text()[-3000:]
        pytest.fail(f"not drained: {place.shown('n1')}\nthe health check said:\n{said}")
    assert f"boot={before[:8]}" in place.shown("n1")
    with place.watching():
        until(lambda: "returned" in place.names("n1"))
    done = place.cluster.exec([place.muster, "check", "--when", "return"], node="n1")
    assert done.rc == 0, done
    assert "shows 8 of 8 GPUs" in done.out
    assert place.boot("n1") != before
    assert place.cluster.states()["n1"] == "idle"


def test_a_node_drained_by_a_person_is_never_touched(place: Place) -> None:
    place.drain("n3", "fan makes a noise, Ann 3 pm")
    place.cluster.node("gpu-break", "n3", gpu=1)
    shown, boot = place.shown("n3"), place.boot("n3")
    for _ in range(3):
        place.once()
    acted = place.cluster.exec([place.muster, "check", "--when", "periodic", "--act"], node="n3")
    assert acted.rc == 1
    assert "out of service already: fan makes a noise" in acted.err
    assert place.events("n3") == []
    assert place.boot("n3") == boot
    for line in ("State=", "Reason=", "BootTime="):
        of = [[w for w in text.splitlines() if line in w] for text in (shown, place.shown("n3"))]
        assert of[0] == of[1]


def test_a_reason_changed_in_between_stops_the_action(place: Place) -> None:
    """The verify command itself is the person who changes the reason: verified, but not ours."""
    place.drain("n1", UNFIT)
    theirs = "scontrol update nodename={node} state=drain reason='mine now, Ann'"
    place.site(verify_command=["sh", "-c", theirs])
    for _ in range(200):
        place.once()
        if "verify_ended" in place.names("n1"):
            break
    for _ in range(3):
        place.once()
    assert place.names("n1")[-2:] == ["verify_ended", "forget"]
    assert "Reason=mine now, Ann" in place.shown("n1")
    assert place.cluster.states()["n1"] == "drained"


def test_a_dry_run_changes_nothing(place: Place, until: Until) -> None:
    place.site(max_unfit_fraction=0.5)
    place.drain("n1", UNFIT)
    place.cluster.node("kill", "n2")
    until(lambda: "down" in place.cluster.states()["n2"])
    shown, boot = place.shown("n2"), place.boot("n1")
    out = place.once("--dry-run")
    assert "node n1: waits: dry run: would replace" in out
    assert place.boot("n1") == boot
    assert not (place.folder / "watch.json").exists()
    argv = [place.muster, "check", "--when", "periodic", "--act", "--dry-run"]
    place.cluster.node("gpu-break", "n3", gpu=1, how="gone")
    checked = place.cluster.exec(argv, node="n3")
    assert "would be drained: muster:gpu_count:hardware:replace shows 7 of 8 GPUs" in checked.err
    assert place.cluster.states()["n3"] == "idle"
    assert place.shown("n2").split("Reason=")[1] == shown.split("Reason=")[1]


def test_no_more_at_once_than_the_budget(place: Place, until: Until) -> None:
    """One of four: the second waits, and check --act does not even drain a third."""
    for name in ("n1", "n2"):
        place.drain(name, UNFIT)
    place.cluster.node("gpu-break", "n3", gpu=1)
    place.once()
    assert place.names("n1") == ["replace_started", "replace_ended"]
    assert [line["why"] for line in place.events("n2")] == [
        "as many nodes are under way as the budget allows"
    ]
    argv = [place.muster, "check", "--when", "periodic", "--act"]

    def refused_by_the_budget() -> bool:  # not because Slurm, tuned to hasty time limits, was busy
        return "as many nodes drained as it may" in place.cluster.exec(argv, node="n3").err

    until(refused_by_the_budget)
    assert place.cluster.states()["n3"] == "idle"


def test_a_node_with_a_job_waits_for_its_end(place: Place, until: Until, tmp_path: Path) -> None:
    submit = ["sbatch", "-w", "n1", "-o", "/dev/null", "--wrap", "sleep 600"]
    assert place.cluster.exec(submit).ok
    until(lambda: place.cluster.states()["n1"] in ("allocated", "mixed"))
    place.drain("n1", UNFIT)
    place.once()
    assert [line["why"] for line in place.events("n1")] == ["a job runs on it"]
    place.cluster.exec(["scancel", "--state=RUNNING"])
    until(lambda: place.cluster.states()["n1"] == "drained")
    place.once()
    assert place.names("n1") == ["replace_started", "replace_ended"]


def test_an_order_of_a_person_is_obeyed_and_one_that_is_nearly_right_is_explained(
    place: Place, until: Until
) -> None:
    """HyperPod's words, typed while a job runs: it goes on, and then the node is replaced."""
    before = place.boot("n1")
    submit = ["sbatch", "-w", "n1", "-o", "/dev/null", "--wrap", "sleep 600"]
    assert place.cluster.exec(submit).ok
    until(lambda: place.cluster.states()["n1"] in ("allocated", "mixed"))
    for reason in ("action:replace.", "Action:Replace"):
        update = ["scontrol", "update", "nodename=n1", "state=fail", f"reason={reason}"]
        assert place.cluster.exec(update).ok
        place.once()
    near, waits = place.events("n1")
    assert near["event"] == "near_miss"
    assert near["why"].endswith('scontrol update nodename=n1 state=fail reason="Action:Replace"')
    assert (waits["event"], waits["why"]) == ("waits", "a job runs on it")
    assert place.cluster.exec(["squeue", "-h", "-o", "%T"]).out == "RUNNING\n"
    assert place.boot("n1") == before
    place.cluster.exec(["scancel", "--state=RUNNING"])
    with place.watching():
        until(lambda: "returned" in place.names("n1"))
    assert place.names("n1") == ["near_miss", "replace_started", "replace_ended", *BACK]
    assert place.boot("n1") != before
    until(lambda: place.cluster.states()["n1"] == "idle")


def lose_a_gpu(place: Place) -> str:
    """It is still gone after the reboot."""
    place.cluster.node("gpu-break", "n1", gpu=2, how="gone")
    return "gpu_count"


def condemn_a_gpu(place: Place) -> str:
    """It works well, but another node has written down that it is to be replaced."""
    strikes = place.folder / "strikes"
    strikes.mkdir()
    place.site(strikes_path=str(strikes))
    row = (place.cluster.folder.path / "nodes/n1/gpus").read_text().splitlines()[2]
    strike = {"time": time.time(), "boot": "aaaaaaaa", "node": "n9", "rule": "xid.79"}
    text = json.dumps([{**strike, "action": "replace"}])
    (strikes / f"{row.split('|')[3]}.json").write_text(text)
    return "gpu_strikes"


@pytest.mark.slow
@pytest.mark.parametrize("harm", [lose_a_gpu, condemn_a_gpu])
def test_a_reboot_that_does_not_help_ends_in_a_replacement(
    place: Place, until: Until, harm: Callable[[Place], str]
) -> None:
    """A GPU that is wrong after the reboot, too, fails three verifications."""
    gpus = place.cluster.folder.path / "nodes/n1/gpus"
    check = harm(place)
    before = gpus.read_text()
    place.drain("n1", UNFIT.replace("replace", "reboot"))
    with place.watching():
        until(lambda: "returned" in place.names("n1"), limit_s=180)
    names = place.names("n1")
    assert names[:2] == ["reboot_started", "reboot_ended"]
    refused = [line["why"] for line in place.events("n1") if line["event"] == "verify_failed"]
    assert [check in why for why in refused] == [True] * 3, refused
    assert names[-10:] == ["replace_started", "replace_ended", *BACK]
    (replaced,) = [line for line in place.events("n1") if line["event"] == "replace_started"]
    assert replaced["why"].endswith("a reboot did not help")
    assert gpus.read_text() != before


def test_a_watch_that_was_killed_does_not_replace_twice(place: Place, until: Until) -> None:
    """Killed while the replacement runs, the next watch waits for the new boot it brings."""
    count, bmc = place.folder / "count", place.cluster.folder.path / "bin/bmc"
    slow = f"echo x >>{count}; sleep 2; {bmc} replace " + "{node}"
    place.site(replace_command=["sh", "-c", slow])
    place.drain("n1", UNFIT)
    process = subprocess.Popen(place.cluster.exec_argv(["env", *place.argv("--interval", "0.3")]))
    until(count.exists)
    pid = (place.folder / "watch.json.lock").read_text().strip()
    place.cluster.exec(["bash", "-c", f"kill -KILL {pid}"])
    process.wait(60)
    with place.watching():
        until(lambda: "returned" in place.names("n1"))
    assert count.read_text() == "x\n"


def test_without_slurm_nothing_is_done(place: Place) -> None:
    place.drain("n1", UNFIT)
    assert place.cluster.exec(["scontrol", "shutdown", "slurmctld"]).ok
    boot = place.boot("n1")
    done = place.cluster.exec(place.argv("--once"))
    assert done.rc == 69
    assert "nothing is done" in done.out
    place.cluster.node("gpu-break", "n2", gpu=1)
    acted = place.cluster.exec([place.muster, "check", "--when", "periodic", "--act"], node="n2")
    assert acted.rc == 1
    assert "is not drained: scontrol show" in acted.err
    assert place.boot("n1") == boot


def test_only_one_watch_at_a_time(place: Place, until: Until) -> None:
    with place.watching():
        lock = place.folder / "watch.json.lock"
        until(lambda: lock.exists() and lock.read_text())
        second = place.cluster.exec(place.argv("--once"))
        assert second.rc == 75
        assert "another watch has it" in second.err
