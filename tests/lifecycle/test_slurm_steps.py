"""A head and nodes on one network become a cluster by the real steps: munge, slurmctld, slurmd.

Every machine has its own disk, processes and address; daemons are those of Debian, jobs are real.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.fixtures import slurm_here
from tests.harness.private_network import PrivateNetwork
from tests.harness.small_cluster import (
    CONTROLLER,
    CREATE,
    LOOK,
    WORKER,
    SmallCluster,
    group,
    only,
    steps,
)

__all__ = ["slurm_here"]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("pgrep", "ssh-keygen"))),
        reason="needs the packages procps and openssh-client",
    ),
    pytest.mark.usefixtures("slurm_here"),
]
slow = pytest.mark.slow
TOLD = "Processing Reconfiguration Request"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with PrivateNetwork() as network:
        yield SmallCluster(tmp_path, network)


def test_a_cluster_comes_up_runs_a_job_and_again_not_a_byte_differs(
    cluster: SmallCluster,
) -> None:
    cluster.describe(fabric={"environment": {"NCCL_DEBUG": "WARN", "NCCL_X": "it's $HOME"}})
    names = ("head", "n1", "n2")
    done = cluster.create(**dict.fromkeys(names, CREATE))
    assert done["head"]["slurmctld"] == done["n1"]["slurmd"] == done["n2"]["slurmd"] == "changed"
    assert "a job ran on n1 n2" in cluster.log("head", "validation")
    # Nobody had older files: who tells a slurmd that is just starting may make it crash.
    assert TOLD not in cluster["head"].file("/var/log/slurm/slurmctld.log").read_text()
    out = cluster.works("head", "srun -N2 bash -c 'echo $NCCL_X'; NCCL_X=own srun -n1 env")
    assert out.splitlines()[:2] == ["it's $HOME"] * 2
    assert {"NCCL_X=own", "NCCL_DEBUG=WARN"} <= set(out.splitlines())
    before = {name: cluster.works(name, LOOK) for name in names}
    assert all(text.count("\n") > 40 for text in before.values())
    pids = "pgrep -x 'munged|slurmctld|slurmd' | sort"
    running = {name: cluster.works(name, pids) for name in names}
    again = cluster.create(**dict.fromkeys(names, CREATE))
    assert [set(states.values()) for states in again.values()] == [{"unchanged"}] * 3
    assert {name: cluster.works(name, LOOK) for name in names} == before
    assert {name: cluster.works(name, pids) for name in names} == running


@slow
def test_a_node_is_added_and_the_job_that_runs_stays(cluster: SmallCluster) -> None:
    cluster.describe(group("compute", "n1"))
    cluster.create(head=f"{CONTROLLER} --only validation", n1=WORKER)
    assert "a job ran on n1\n" in cluster.log("head", "validation")
    own = cluster["head"].file("/etc/slurm/slurm.conf")
    own.write_text(own.read_text() + "# mine\nDebugFlags=Power\n")
    job = cluster.works("head", "sbatch --parsable --chdir=/ --output=/dev/null --wrap 'sleep 600'")
    slurmd = cluster.works("n1", "pgrep -x slurmd")
    cluster.describe(group("compute", "n1", "n2"))
    done = cluster.create(head=f"{CONTROLLER} --only validation", n1=WORKER, n2=WORKER)
    assert (done["head"]["slurm_conf"], done["head"]["slurmctld"]) == ("changed", "changed")
    assert TOLD in cluster["head"].file("/var/log/slurm/slurmctld.log").read_text()
    assert done["n1"] == {**dict.fromkeys(done["n1"], "unchanged"), "hosts": "changed"}
    assert cluster.works("n1", "pgrep -x slurmd") == slurmd
    look = "cat /run/slurm/conf/*.conf; scontrol show config"
    for name in ("n1", "n2"):
        text = cluster.works(name, look)
        assert "NodeName=n[1-2] " in text
        assert re.search(r"^DebugFlags += Power$", text, re.MULTILINE)
    assert own.read_text().endswith("# mine\nDebugFlags=Power\n")
    assert "users' jobs run" in cluster.log("head", "validation")
    out = cluster.works("head", f"squeue -h -j {job.strip()} -o '%T %N'; srun -w n2 hostname")
    assert out == "RUNNING n1\nn2\n"
    assert set(cluster.create(head=CONTROLLER)["head"].values()) == {"unchanged"}


@slow
def test_a_slurmctld_that_comes_late_is_waited_for(cluster: SmallCluster) -> None:
    cluster.create(head=only("hosts", "users", "mounts", "munge"))
    early = cluster.start("n1", WORKER)
    cluster.wait_until_applying("n1", "slurmd")
    cluster.create(head=CONTROLLER)
    out = early.communicate()[0]
    assert early.returncode == 0, out
    assert cluster.works("head", "srun -w n1 hostname") == "n1\n"


# At its first start something of that name runs for a while.
CRASH = """\
#!/bin/bash
[[ ! -e /root/crashed ]] || exec /opt/real/slurmd "$@"
touch /root/crashed
/opt/short/slurmd 5 &>/dev/null &
"""


@slow
def test_a_slurmd_that_crashes_is_not_waited_for(cluster: SmallCluster) -> None:
    cluster.create(head=CONTROLLER)
    cluster.works("n1", "mkdir /opt/real /opt/short; mv /usr/sbin/slurmd /opt/real")
    cluster.works("n1", "cp /bin/sleep /opt/short/slurmd")
    cluster.works("n1", 'echo "$CRASH" >/usr/sbin/slurmd; chmod 755 /usr/sbin/slurmd', CRASH=CRASH)
    out = cluster.works("n1", WORKER)
    assert "slurmd: changed after 2 tries" in out
    assert "slurmd has ended" in cluster.log("n1", "slurmd")
    assert cluster.works("head", "srun -w n1 hostname") == "n1\n"


@slow
@pytest.mark.parametrize("step", ["slurm_conf", "slurmctld"])
def test_killed_in_the_middle_a_second_run_repairs(cluster: SmallCluster, step: str) -> None:
    begun = cluster.start("head", CONTROLLER)
    cluster.wait_until_applying("head", step)
    # The runner and its step at once, as a power loss would; daemons that run already go on.
    cluster.works("head", "pkill -KILL -f 'steps/[a-z_]*[.]sh|[-]m muster'; true")
    begun.communicate()
    assert begun.returncode != 0
    done = cluster.create(head=CONTROLLER, n1=WORKER)
    assert done["head"][step] == "changed"
    assert cluster.works("head", "srun -w n1 hostname") == "n1\n"
    assert set(cluster.create(head=CONTROLLER)["head"].values()) == {"unchanged"}


@slow
def test_a_full_disk_is_one_line_and_room_repairs(cluster: SmallCluster) -> None:
    full = "mkdir -p /etc/slurm; mount -t tmpfs -o size=4k full /etc/slurm; "
    rc, out = cluster.run("head", full + CONTROLLER)
    last = out.splitlines()[-1]
    assert rc == 73
    assert last.startswith("muster create: head: step 'slurm_conf': failed with exit code 73")
    assert "cannot be written (No space left on device)" in last
    cluster.works("head", "umount /etc/slurm")
    assert cluster.create(head=CONTROLLER)["head"]["slurmctld"] == "changed"


@slow
def test_what_slurm_refuses_stops_no_controller_that_runs(cluster: SmallCluster) -> None:
    cluster.create(head=CONTROLLER)
    pid = cluster.works("head", "pgrep -x slurmctld")
    own = cluster["head"].file("/etc/slurm/slurm.conf")
    good = own.read_text()
    own.write_text(good + "PartitionName=more Nodes=nobody\n")
    rc, out = cluster.run("head", CONTROLLER)
    assert rc == 78
    assert "Slurm does not accept the files in /etc/slurm, nothing was started" in out
    assert "nobody" in out.splitlines()[-1]
    assert cluster.works("head", "pgrep -x slurmctld; scontrol ping").startswith(pid)
    own.write_text(good)
    assert set(cluster.create(head=CONTROLLER)["head"].values()) == {"unchanged"}


GPU = """\
#!/bin/sh
for i in $(cat /root/gpus); do echo "GPU $i: H100 (UUID: GPU-$i)"; done
"""


@slow
def test_a_node_without_all_its_gpus_gets_no_slurmd(cluster: SmallCluster) -> None:
    cluster.describe(group("compute", "n1", gpus=2, gpu_type="h100"))
    program = cluster["n1"].file("/usr/local/bin/nvidia-smi")
    program.write_text(GPU)
    program.chmod(0o755)
    gpus = cluster["n1"].file("/root/gpus")
    gpus.write_text("0")
    # /dev is everybody's here: the node's own devices lie over it.
    devices = (
        "mount -t tmpfs dev /dev; mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/zero c 1 5; "
    )
    devices += "mknod -m 666 /dev/urandom c 1 9; "
    devices += "ln -s /proc/self/fd /dev/fd; mkdir /dev/shm; "
    devices += "for i in 0 1; do mknod -m 666 /dev/nvidia$i c 195 $i; done"
    cluster.works("n1", devices)
    cluster.create(head=CONTROLLER)
    rc, out = cluster.run("n1", WORKER, MUSTER_GPU_WAIT_S="0")
    assert rc == 69
    assert (
        "1 of 2 GPUs are there (nvidia-smi -L, /dev/nvidia*): slurmd is not started"
        in (out.splitlines()[-1])
    )
    assert cluster.run("n1", "pgrep -x slurmd")[0] == 1
    gpus.write_text("0 1")
    cluster.create(n1=WORKER, head=only("validation"))
    assert "a job ran on n1\n" in cluster.log("head", "validation")
    assert cluster.works("head", "srun --gpus=2 printenv CUDA_VISIBLE_DEVICES") == "0,1\n"
    # One that is lost while jobs run is told, and stops no slurmd.
    gpus.write_text("0")
    rc, out = cluster.run("n1", WORKER, MUSTER_GPU_WAIT_S="0")
    assert (rc, steps(out)["slurmd"]) == (69, "failed")
    cluster.works("n1", "pgrep -x slurmd")


@slow
def test_a_node_that_has_less_than_the_description_says(cluster: SmallCluster) -> None:
    cluster.describe(group("compute", "n1", memory_mib=9_000_000))
    cluster.create(head=CONTROLLER)
    rc, out = cluster.run("n1", WORKER)
    assert rc == 65
    assert (
        "slurmctld does not take n1, since it has less than cluster.yaml says: Low RealM"
        in (out.splitlines()[-1])
    )


@slow
def test_a_slurm_conf_on_a_node_would_be_read_in_place_of_the_heads(
    cluster: SmallCluster,
) -> None:
    rc, out = cluster.run(
        "n1", f"mkdir -p /etc/slurm; echo >/etc/slurm/slurm.conf; {only('slurmd')}"
    )
    assert rc == 65
    assert "/etc/slurm/slurm.conf would be read here in place of the head's" in out


@slow
def test_a_login_node_submits_and_runs_nothing(cluster: SmallCluster) -> None:
    cluster.describe(group("login", "n2"), group("compute", "n1"))
    done = cluster.create(head=CONTROLLER, n1=WORKER, n2=CREATE)
    assert done["n2"]["slurm_conf"] == "changed"
    assert not {"slurmd", "slurmctld", "validation"} & set(done["n2"])
    assert cluster.works("n2", "srun hostname; pgrep -x slurmd || echo none") == "n1\nnone\n"


@slow
def test_a_platform_has_the_rest_of_slurm_conf(cluster: SmallCluster) -> None:
    cluster.describe(platform="hyperpod")
    begun = cluster.start("head", only("users", "mounts", "slurm_conf"))
    cluster.wait_until_applying("head", "slurm_conf")
    cluster.works("head", "mkdir -p /opt/slurm/etc; echo ClusterName=x >/opt/slurm/etc/slurm.conf")
    out = begun.communicate()[0]
    assert (begun.returncode, steps(out)["slurm_conf"]) == (0, "changed"), out
    text = cluster["head"].file("/opt/slurm/etc/slurm.conf").read_text()
    assert text == "Include muster.conf\nClusterName=x\n"
    again = cluster.create(head=only("users", "mounts", "slurm_conf"))
    assert again["head"]["slurm_conf"] == "unchanged"
    assert cluster.create(n1=only("slurm_programs"))["n1"] == {"slurm_programs": "changed"}
    assert cluster["n1"].file("/opt/slurm/etc/muster/prolog.d/muster_health.sh").exists()


@slow
def test_a_node_passes_its_deep_test_once(cluster: SmallCluster) -> None:
    site = "mkdir -p /etc/muster; printf '%s\\n' \"profile: $P\" 'deep_python: [/nowhere]' "
    site += "'deep_disk_mib: 1' >/etc/muster/site.yaml"
    cluster.works("n1", site, P="cpu")
    cluster.describe(health={"deep": True, "profile": "cpu"})
    chosen = only("hosts", "mounts", "muster", "scratch", "deep_health")
    assert cluster.create(n1=chosen)["n1"]["deep_health"] == "changed"
    assert cluster.create(n1=chosen)["n1"]["deep_health"] == "unchanged"
    cluster.works("n1", site, P="p5.48xlarge")
    cluster.describe(health={"deep": True, "profile": "p5.48xlarge"})
    rc, out = cluster.run("n1", chosen)
    assert rc == 1
    assert re.search(r"n1 is not fit: HEALTH_CHECK_RESULT:n1:Failed:", out.splitlines()[-1])
