"""People of a local cluster: their jobs run side by side, and nobody reaches another's."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.cluster import LocalCluster, Shape, people
from muster.errors import UsageError

if TYPE_CHECKING:
    from muster.process import Completed

    Until = Callable[..., None]

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shared(slurm_here: None) -> Iterator[LocalCluster]:
    """Two nodes, ana and ben."""
    one = LocalCluster(f"p{os.getpid()}", Shape(nodes=2, boot_s=0.1, people=("ana", "ben")))
    one.up(owner_pid=os.getpid())
    yield one
    one.down()
    assert not one.folder.path.exists()  # homes too


def shell(
    cluster: LocalCluster, user: str | None, script: str, node: str | None = None
) -> Completed:
    """A script of bash as somebody."""
    return cluster.exec(["bash", "-c", script], user=user, node=node)


def test_everybody_has_a_number_and_a_home_that_is_closed(shared: LocalCluster) -> None:
    look = "id -un; id -gn; cd; pwd; stat -c %a .; touch mine && echo written"
    home = shared.folder.path / "home"
    for name in ("ana", "ben"):
        for node in (None, "n1"):
            done = shell(shared, name, look, node)
            assert done.out.split() == [name, name, f"{home}/{name}", "700", "written"], done.err
            assert done.err == ""
    assert shell(shared, "ana", f"ls {home}/ben").rc != 0
    assert shell(shared, "ana", f"touch {home}/other").rc != 0
    assert shell(shared, None, f"ls {home}/ben").out == "mine\n"
    with pytest.raises(KeyError):
        pwd.getpwnam("ana")  # this machine knows nobody of them


def test_their_jobs_run_side_by_side_and_each_ends_only_his_own(
    shared: LocalCluster, until: Until
) -> None:
    jobs = {}
    for name in ("ana", "ben"):
        script = "sbatch --parsable --nodes=1 --gpus-per-node=4 --wrap 'id -un; exec sleep 600'"
        done = shell(shared, name, f"cd; {script}")
        assert done.ok, done.err
        jobs[name] = done.out.strip()
    queue = ["squeue", "-h", "-o", "%u %T"]
    until(lambda: sorted(shared.exec(queue).out.splitlines()) == ["ana RUNNING", "ben RUNNING"])
    home = shared.folder.path / "home" / "ben"
    until(lambda: (home / f"slurm-{jobs['ben']}.out").read_text() == "ben\n")
    # What ana may not do to ben's job.
    job = jobs["ben"]
    for words in (
        f"scancel --verbose {job}",
        f"scontrol requeue {job}",
        f"scontrol hold {job}",
        f"scontrol update jobid={job} timelimit=1",
        f"cat {home}/slurm-{job}.out",
        f"srun --overlap --jobid={job} id",
    ):
        done = shell(shared, "ana", words)
        assert done.rc != 0 or "denied" in done.err, words
    # Nor to what all share.
    assert shell(shared, "ana", "scontrol update nodename=n1 state=drain reason=mine").rc != 0
    assert shell(shared, "ana", "bmc off n1").rc != 0
    assert sorted(shared.exec(queue).out.splitlines()) == ["ana RUNNING", "ben RUNNING"]
    for name in ("ana", "ben"):
        assert shell(shared, name, f"scancel {jobs[name]}").ok
    until(lambda: shared.exec(queue).out == "")
    until(lambda: set(shared.states().values()) == {"idle"})


def test_salloc_takes_whole_nodes_and_gives_them_back(shared: LocalCluster, until: Until) -> None:
    argv = ["salloc", "--quiet", "--nodes=2", "--exclusive", "bash", "-c"]
    script = "srun --label bash -c 'echo $(id -un) $(hostname)' | sort"
    done = shared.exec([*argv, script], user="ana")
    assert done.out == "0: ana n1\n1: ana n2\n", done.err
    hold = shared.exec_argv([*argv, "echo in; exec cat"], user="ana")
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "in\n"
        # Now ben finds no room; an allocation of ana's is hers alone.
        refused = shell(shared, "ben", "srun --immediate=2 hostname")
        assert refused.rc != 0, refused.out
        job = shared.exec(["squeue", "-h", "-u", "ana", "-o", "%A"]).out.strip()
        assert shell(shared, "ben", f"srun --overlap --jobid={job} hostname").rc != 0
        held.communicate("", timeout=60)
    until(lambda: set(shared.states().values()) == {"idle"})
    assert shell(shared, "ben", "srun hostname").out in ("n1\n", "n2\n")


def test_muster_is_there_for_people_who_cannot_read_our_checkout(shared: LocalCluster) -> None:
    done = shell(shared, "ben", "command -v muster; muster run --help | head -n 1", "n2")
    assert done.out.startswith(f"{shared.folder.path}/bin/muster\nusage: muster run"), done.err


def test_who_is_there_already_stays_who_he_is(tmp_path: Path) -> None:
    passwd = "root:x:0:0::/root:/bin/bash\neve:x:5001:5001::/home/eve:/bin/bash\n"
    group = "root:x:0:\nresearch:x:5002:eve\n"
    made = people.accounts(("ana", "ben"), tmp_path, passwd, group)
    assert [(one.name, one.number) for one in made] == [("ana", 5003), ("ben", 5004)]
    assert people.passwd_with(passwd, made).startswith(passwd)
    odd = f"{passwd}x:x:9:9:a\u2028b:/:/bin/sh\n"
    assert people.passwd_with(odd, []) == odd
    assert people.group_with(group, made) == f"{group}ana:x:5003:\nben:x:5004:\n"
    for name in ("eve", "research"):
        with pytest.raises(UsageError, match=f"this machine has a user or group '{name}'"):
            people.accounts((name,), tmp_path, passwd, group)


@pytest.mark.parametrize("text", ["", "ana,", "ana,ana", "Ana", "a b", "a:b", "../x", "ana\n"])
def test_names_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="Fix: --people ana,ben"):
        people.names(text)


def test_what_cannot_have_people(run_cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    for words in (["--people", "a:b"], ["--people", "root"], ["--people", "ana", "--created"]):
        done = run_cli("up", "--name", "refused", *words)
        assert (done.returncode, done.stderr.count("\n")) == (64, 1), done.stderr
        assert "Fix: " in done.stderr


def test_a_shape_with_people_goes_through_json() -> None:
    shape = Shape(people=("ana", "ben"))
    assert Shape.from_json(json.loads(json.dumps(shape.to_json()))) == shape
