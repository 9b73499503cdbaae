"""Jobs that nobody alive can help, on a real Slurm: `muster watch` helps, once, and only ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from muster import slurm
from muster.cluster import LocalCluster
from tests.cluster.test_watch import Place

pytestmark = pytest.mark.cluster

OURS, THEIRS = "sleep 600; muster run", "sleep 600"


class Jobs:
    """Jobs on a cluster whose prolog fails on the nodes that a folder names."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.place, self.cluster, self.bad = Place(cluster, folder), cluster, folder / "bad"

    def submit(self, script: str, *options: str) -> str:
        argv = ["sbatch", "--parsable", "--requeue", "--no-kill", "--output=/dev/null", *options]
        done = self.cluster.exec([*argv, "--wrap", script])
        assert done.ok, done
        return done.out.strip()

    def show(self, job: str) -> str:
        return self.cluster.exec(["scontrol", "show", "job", job]).out

    def scontrol(self, *words: str) -> None:
        assert self.cluster.exec(["scontrol", *words]).ok

    def said(self, job: str) -> list[tuple[str, str]]:
        """Events of a job in the action log, with the reason."""
        log = self.place.folder / "log"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [(line["event"], line["why"]) for line in lines if line.get("job") == job]


@pytest.fixture
def jobs(make_cluster: Callable[..., LocalCluster], tmp_path: Path) -> Jobs:
    (tmp_path / "bad").mkdir()
    prolog = tmp_path / "prolog"
    prolog.write_text(f'#!/bin/sh\n[ ! -e "{tmp_path}/bad/$SLURMD_NODENAME" ]\n')
    prolog.chmod(0o755)
    tmp_path.chmod(0o755)
    settings = (
        ("HealthCheckInterval", "0"),
        ("SchedulerParameters", "bf_interval=1,sched_interval=1"),  # a failed launch is held
        ("Prolog", str(prolog)),
    )
    return Jobs(make_cluster(nodes=4, settings=settings), tmp_path)


def test_a_job_whose_launch_failed_is_released_without_the_node(
    jobs: Jobs, until: Callable[..., None]
) -> None:
    (jobs.bad / "n1").touch()
    ours = jobs.submit(OURS)
    until(lambda: "Reason=launch_failed_requeued_held" in jobs.show(ours))
    by_hand = jobs.submit(OURS, "--hold")
    back_by_hand = jobs.submit(OURS)
    until(lambda: "JobState=RUNNING" in jobs.show(back_by_hand))
    jobs.scontrol("requeuehold", back_by_hand)
    until(lambda: "JobState=PENDING" in jobs.show(back_by_hand))
    (jobs.bad / "n2").touch()
    theirs = jobs.submit(THEIRS, "--nodelist=n2")
    until(lambda: "Reason=launch_failed_requeued_held" in jobs.show(theirs))
    jobs.place.once("--dry-run")
    assert "Reason=launch_failed_requeued_held" in jobs.show(ours)
    jobs.place.once()
    until(lambda: "JobState=RUNNING" in jobs.show(ours))
    assert "Restarts=1 " in jobs.show(ours)
    excluded = slurm.fields(jobs.show(ours))["ExcNodeList"]
    assert "n1" in slurm.hostnames(excluded)  # n2 too: it failed in the same minute
    (dry, released) = jobs.said(ours)
    assert dry[1].startswith("dry run: would release it")
    assert released[0] == "job_released"
    for job in (by_hand, back_by_hand, theirs):
        assert "Priority=0 " in jobs.show(job)
        assert jobs.said(job) == []


@pytest.mark.slow  # ./run health
def test_a_job_that_lost_its_batch_host_and_its_guards_is_requeued(
    jobs: Jobs, until: Callable[..., None]
) -> None:
    """No guard lives: the script never started one. With --no-kill it would run for ever."""
    ours = jobs.submit(OURS, "--nodes=2", "--nodelist=n3,n4")
    theirs = jobs.submit(THEIRS, "--nodes=2", "--nodelist=n1,n2")
    until(lambda: all("JobState=RUNNING" in jobs.show(job) for job in (ours, theirs)))
    for name in ("n1", "n3"):
        jobs.cluster.node("kill", name, silent=True)
    until(lambda: all("down" in jobs.cluster.states()[name] for name in ("n1", "n3")))
    jobs.place.site(stranded_after_s=1000)
    jobs.place.once()
    assert "Restarts=0 " in jobs.show(ours)
    ((event, why),) = jobs.said(ours)
    assert (event, "its batch host n3 is lost" in why) == ("waits", True)
    jobs.place.site(stranded_after_s=0.1)
    until(lambda: jobs.place.once() and jobs.said(ours)[-1][0] == "job_requeued")
    until(lambda: "Restarts=1 " in jobs.show(ours))
    assert "Restarts=0 " in jobs.show(theirs)
    assert jobs.said(theirs) == []
