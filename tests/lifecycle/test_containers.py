"""The steps around containers, on machines of their own: Enroot, Pyxis, Docker.

What no distribution has is made by the tests: packages and sources of the same shape, which the
steps fetch, check, install and build for real. No network is there.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.harness.debs import deb, offer
from tests.harness.private_root import ROOT
from tests.lifecycle.test_fabric import put
from tests.lifecycle.test_steps import CLUSTER, Machines, only, steps

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(  # the machines of these tests have the disk of this one and no network
        not all(map(shutil.which, ("pgrep", "ssh-keygen", "curl", "srun"))),
        reason="needs the packages procps, openssh-client, curl and slurm-client",
    ),
]
SCRATCH = {"kinds": ["folder"], "min_free_gib": 0.01}
GPUS = {"hardware": {"sockets": 1, "cores_per_socket": 1, "threads_per_core": 2,
                     "memory_mib": 2000, "gpus": 8}}  # fmt: skip
# As far as the steps use it: where its settings are, what it says, that it needs its folder.
ENROOT = """#!/bin/bash
set -eu
env >/root/enroot.env
[[ ! -e /root/broken ]] || { echo 'enroot: HOME: unbound' >&2; exit 1; }
[[ $1 != version ]] || { echo VERSION; exit; }
eval "data=$(sed -n 's/^ENROOT_DATA_PATH //p' /etc/enroot/enroot.conf.d/*.conf)"
mkdir -p "$data"
"""


def enroot(folder: Path, version: str = "4.1.2") -> list[Path]:
    """Both packages of a release."""
    folder.mkdir(parents=True, exist_ok=True)
    program = {"/usr/bin/enroot": ENROOT.replace("VERSION", version)}
    depends = f"enroot (= {version}-1)"
    return [
        deb(folder, "enroot", f"{version}-1", program),
        deb(folder, "enroot+caps", f"{version}-1", {"/usr/share/enroot/caps": ""}, depends),
    ]


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    """Machines whose shared disk has what the steps fetch."""
    made = Machines(tmp_path)
    made.describe(containers={"enroot": True, "pyxis": True}, scratch=SCRATCH)
    enroot(made.shared / ".muster" / "packages")
    return made


CHOSEN = only("mounts", "scratch", "enroot")
INSTALLED = "; dpkg-query -W -f '${Package} ${Version}\\n' enroot enroot+caps"
AGAIN = f"mount /scratch; {CHOSEN}"


def test_enroot_with_its_settings_and_folders(machines: Machines) -> None:
    look = "; stat -c '%n %a' /run/enroot /var/lib/enroot/*; readlink /var/lib/enroot"
    rc, out = machines["n1"].run(CHOSEN + INSTALLED + look)
    assert (rc, steps(out)["enroot"]) == (0, "changed"), out
    assert "enroot 4.1.2-1\nenroot+caps 4.1.2-1\n" in out
    assert re.findall(r"^(/\S+) (\d+)$", out, re.MULTILINE) == [
        ("/run/enroot", "1777"), ("/var/lib/enroot/cache", "1777"),
        ("/var/lib/enroot/data", "1777"), ("/var/lib/enroot/pyxis", "755"),
        ("/var/lib/enroot/temp", "1777"),
    ]  # fmt: skip
    assert out.endswith("/scratch/enroot\n")
    ours = ROOT / "containers" / "enroot"
    for path in [*ours.glob("*.d/*.*"), *ours.glob("environ.d/fabric/*")]:
        name, mode = path.relative_to(ours), 0o755 if path.suffix == ".sh" else 0o644
        prolog = name.parts[0] == "prolog.d"
        there = machines["n1"].file(
            f"/etc/slurm/muster/{name}" if prolog else f"/etc/enroot/{name}"
        )
        assert (there.read_text(), there.stat().st_mode & 0o777) == (path.read_text(), mode)
    # As Pyxis calls it: with nothing of root's in its environment.
    names = {
        line.partition("=")[0]
        for line in machines["n1"].file("/root/enroot.env").read_text().split()
    }
    assert names <= {"PATH", "PWD", "SHLVL", "_", "OLDPWD"}
    rc, out = machines["n1"].run(AGAIN)
    assert (rc, steps(out)["enroot"]) == (0, "changed"), out  # /run is new after a boot
    rc, out = machines["n1"].run(f"{AGAIN}; {CHOSEN}")
    assert out.splitlines()[-1].startswith("n1 (compute): 3 steps: 0 changed, 3 unchanged"), out


@pytest.mark.slow
def test_settings_of_an_older_muster_go_and_those_of_others_stay(machines: Machines) -> None:
    folder = machines["n1"].file("/etc/enroot/hooks.d")
    folder.mkdir(parents=True)
    (folder / "40-muster-old.sh").write_text("old")
    (folder / "60-site.sh").write_text("theirs")
    rc, out = machines["n1"].run(CHOSEN + "; ls /etc/enroot/hooks.d")
    assert rc == 0, out
    assert "40-muster-old.sh" not in out
    assert "60-site.sh" in out


@pytest.mark.slow
def test_scratch_elsewhere_is_in_containers_too(machines: Machines) -> None:
    scratch = {**SCRATCH, "path": "/local"}
    containers = {"enroot": True, "cache": "/mnt/cache"}
    machines.describe(containers=containers, scratch=scratch)
    rc, out = machines["n1"].run(f"{CHOSEN}; readlink /var/lib/enroot /local/enroot/cache")
    assert rc == 0, out
    assert out.endswith("/local/enroot\n/mnt/cache\n")
    fstab = machines["n1"].file("/etc/enroot/mounts.d/50-muster.fstab").read_text()
    assert "\n/local /local none " in fstab
    drop_in = "/etc/systemd/system/slurmd.service.d/muster_enroot.conf"
    assert "RequiresMountsFor=/local\n" in machines["n1"].file(drop_in).read_text()


@pytest.mark.slow
def test_a_node_without_scratch_has_it_on_its_root_disk(machines: Machines) -> None:
    rc, out = machines["head"].run(
        f"{only('mounts', 'enroot')}; stat -c '%F %a' /var/lib/enroot/data"
    )
    assert rc == 0, out
    assert out.endswith("directory 1777\n")
    assert not machines["head"].file("/etc/slurm/muster/prolog.d").exists()


@pytest.mark.slow
def test_a_version_that_is_there_stays_unless_another_is_named(machines: Machines) -> None:
    here = machines["n1"].file("/srv")
    enroot(here, "3.5.0")
    before = "dpkg -i /srv/enroot*.deb >/dev/null; "
    rc, out = machines["n1"].run(before + CHOSEN + INSTALLED)
    assert "enroot 3.5.0-1\n" in out, out
    machines.describe(containers={"enroot": True, "enroot_version": "4.1.2"}, scratch=SCRATCH)
    rc, out = machines["n1"].run(AGAIN + INSTALLED)
    assert rc == 0, out
    assert "enroot 4.1.2-1\nenroot+caps 4.1.2-1\n" in out


def test_without_a_network_and_without_the_file_it_is_one_line(machines: Machines) -> None:
    shutil.rmtree(machines.shared / ".muster" / "packages")
    rc, out = machines["n1"].run(CHOSEN)
    assert rc == 69
    last = out.splitlines()[-1]
    assert "n1: step 'enroot': failed with exit code 69 after 3 tries: " in last
    assert (
        "cannot be fetched from https://github.com/NVIDIA/enroot/releases/download/v4.1.2/" in last
    )
    assert "Could not resolve host" in last
    assert "put it into /mnt/.muster/packages. Fix: " in last


@pytest.mark.parametrize("name", ["enroot", "enroot+caps"])
@pytest.mark.slow
def test_another_content_than_the_checksum_says_is_not_installed(
    machines: Machines, name: str
) -> None:
    path = next((machines.shared / ".muster" / "packages").glob(f"{name}_*"))
    file = path.name
    machines.describe(
        containers={"enroot": True},
        scratch=SCRATCH,
        checksums={file: hashlib.sha256(b"x").hexdigest()},
    )
    rc, out = machines["n1"].run(CHOSEN + INSTALLED)
    assert rc == 65, out
    assert f"/{file} has another checksum than cluster.yaml says" in out
    assert not machines["n1"].file("/usr/bin/enroot").exists()


@pytest.mark.slow
def test_a_file_that_anybody_could_have_put_there_needs_a_checksum(machines: Machines) -> None:
    folder = machines.shared / ".muster" / "packages"
    folder.chmod(0o777)
    rc, out = machines["n1"].run(CHOSEN)
    assert rc == 65, out
    assert "could be anybody's: give it and its folder to root alone" in out.splitlines()[-1]
    sums = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.deb")
    }
    machines.describe(containers={"enroot": True}, scratch=SCRATCH, checksums=sums)
    assert machines["n1"].run(AGAIN)[0] == 0


@pytest.mark.slow
def test_enroot_that_needs_an_environment_is_one_line(machines: Machines) -> None:
    rc, out = machines["n1"].run("touch /root/broken; " + CHOSEN)
    assert rc == 1, out
    assert (
        "enroot does not work without an environment: enroot: HOME: unbound. Fix: "
        in out.splitlines()[-1]
    )


@pytest.mark.slow
def test_a_node_with_gpus_needs_nvidias_tool(machines: Machines) -> None:
    head, nodes = CLUSTER["groups"]
    machines.describe(
        groups=[head, {**nodes, **GPUS}], containers={"enroot": True}, scratch=SCRATCH
    )
    rc, out = machines["n1"].run(offer(machines["n1"]) + CHOSEN)
    assert rc == 69, out
    last = out.splitlines()[-1]
    assert (
        "no source of packages here has libnvidia-container-tools: containers would see no GPU"
        in last
    )
    tool = {"/usr/bin/nvidia-container-cli": "#!/bin/sh\n"}
    package = deb(machines["n1"].folder, "libnvidia-container-tools", "1.17.8-1", tool)
    rc, out = machines["n1"].run(offer(machines["n1"], package) + AGAIN)
    assert (rc, steps(out)["enroot"]) == (0, "changed"), out


# A plugin of the same shape: built by `make install` with prefix and DESTDIR, flags of its own in
# the makefile, and the option.
PLUGIN = """
#include <slurm/spank.h>
SPANK_PLUGIN(pyxis, 1)
#ifndef PYXIS_VERSION
#error "the flags of the makefile are lost"
#endif
static int set(int value, const char *word, int remote) { return 0; }
static struct spank_option image = {"OPTION", "IMAGE", "[pyxis] image", 1, 0, set};
int slurm_spank_init(spank_t spank, int count, char **words) {
  return spank_option_register(spank, &image);
}
"""
MAKEFILE = """
prefix ?= /usr
CPPFLAGS := -DPYXIS_VERSION=\\"0\\" $(CPPFLAGS)
install:
\t$(CC) -shared -fPIC $(CPPFLAGS) -o spank_pyxis.so pyxis.c
\tinstall -D -m 644 spank_pyxis.so $(DESTDIR)$(prefix)/lib/slurm/spank_pyxis.so
"""


def pyxis(folder: Path, version: str = "0.24.0", option: str = "container-image") -> None:
    """Its sources as GitHub packs them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"Makefile": MAKEFILE, "pyxis.c": PLUGIN.replace("OPTION", option)}
    with tarfile.open(folder / f"pyxis-{version}.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"pyxis-{version}/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


needs_headers = pytest.mark.skipif(
    not Path("/usr/include/slurm/spank.h").exists() or shutil.which("gcc") is None,
    reason="needs the packages libslurm-dev, gcc and make",
)
PYXIS = only("mounts", "pyxis")
READY = only("pyxis_ready")
CONF = (
    "mkdir -p /etc/slurm; "
    "printf 'ClusterName=x\\nSlurmctldHost=head\\nNodeName=n1\\n' >/etc/slurm/slurm.conf; "
    "grep -v '^#' $REPO/containers/pyxis.conf >/etc/slurm/plugstack.conf; "
)


@needs_headers
def test_pyxis_is_built_for_this_slurm_and_srun_takes_it(machines: Machines) -> None:
    pyxis(machines.shared / ".muster" / "packages")
    rc, out = machines["n1"].run(f"{PYXIS}; {PYXIS}; {CONF} {READY}")
    assert rc == 0, out
    found = re.findall(r"^(pyxis\w*): (\w+)", out, re.MULTILINE)
    assert found == [("pyxis", "changed"), ("pyxis", "unchanged"), ("pyxis_ready", "unchanged")]
    built = machines["n1"].file("/usr/local/lib/slurm/spank_pyxis.built")
    version, slurm = built.read_text().split()
    assert version == "0.24.0"
    # After an upgrade of Slurm, and when cluster.yaml names another version, it is built anew.
    built.write_text(f"{version} 21.08.5\n")
    assert steps(machines["n1"].run(PYXIS)[1])["pyxis"] == "changed"
    pyxis(machines.shared / ".muster" / "packages", "0.25.1")
    machines.describe(containers={"enroot": True, "pyxis": True, "pyxis_version": "0.25.1"})
    assert steps(machines["n1"].run(PYXIS)[1])["pyxis"] == "changed"
    assert built.read_text().split() == ["0.25.1", slurm]


@needs_headers
@pytest.mark.slow
def test_a_plugin_that_srun_does_not_take_is_not_installed(machines: Machines) -> None:
    pyxis(machines.shared / ".muster" / "packages", option="container-picture")
    rc, out = machines["n1"].run(PYXIS)
    assert rc == 1, out
    assert "does not take spank_pyxis 0.24.0: --container-image is not in srun --help" in out
    assert not machines["n1"].file("/usr/local/lib/slurm/spank_pyxis.so").exists()


@needs_headers
@pytest.mark.slow
def test_sources_that_do_not_compile_are_one_line(machines: Machines) -> None:
    pyxis(machines.shared / ".muster" / "packages", option='", bad, "')
    rc, out = machines["n1"].run(PYXIS)
    assert rc == 1, out
    assert "| spank_pyxis 0.24.0 cannot be built for Slurm 2" in out.splitlines()[-1]
    assert re.search("error: .bad. undeclared", out.splitlines()[-1])


@needs_headers
@pytest.mark.slow
def test_srun_without_the_plugin_in_its_files_is_one_line(machines: Machines) -> None:
    rc, out = machines["n1"].run(
        f"{CONF} rm /etc/slurm/plugstack.conf; {READY}", MUSTER_READY_WAIT_S="1"
    )
    assert rc == 75, out
    assert (
        "is spank_pyxis.so in plugstack.conf? (scontrol reconfigure). Fix: " in out.splitlines()[-1]
    )


@needs_headers
@pytest.mark.slow
def test_the_plugin_of_auto_resume_is_built_once(machines: Machines) -> None:
    machines.describe(slurm={"auto_resume": True})
    chosen = only("auto_resume")
    rc, out = machines["n1"].run(f"{chosen}; {chosen}")
    assert rc == 0, out
    assert re.findall(r"^auto_resume: (\w+)", out, re.MULTILINE) == ["changed", "unchanged"]


DOCKERD = """#!/bin/bash
cp /etc/docker/daemon.json /run/docker.json
sleep 1000
"""
DOCKER = "#!/bin/bash\n[[ $1 == info ]] && pgrep -x dockerd >/dev/null\n"


@pytest.mark.slow
def test_docker_keeps_its_images_on_scratch_and_what_others_set(machines: Machines) -> None:
    node = machines["n1"]
    files = {"/usr/sbin/dockerd": DOCKERD, "/usr/bin/docker": DOCKER}
    package = deb(node.folder, "docker.io", "26.1-1", files)
    machines.describe(containers={"docker": True}, scratch=SCRATCH)
    own = node.file("/etc/docker/daemon.json")
    own.parent.mkdir(parents=True)
    own.write_text('{"dns": ["10.0.0.2"], "log-opts": {"tag": "x"}}')
    chosen = only("mounts", "scratch", "docker")
    hide = "rm -f /usr/local/bin/docker /usr/bin/docker /usr/sbin/dockerd; "
    rc, out = node.run(f"{hide}{offer(node, package)} {chosen}; {chosen}; cat /run/docker.json")
    assert rc == 0, out
    assert re.findall(r"^docker: (\w+)", out, re.MULTILINE) == ["changed", "unchanged"], out
    assert json.loads(own.read_text()) == {
        "dns": ["10.0.0.2"], "data-root": "/scratch/docker", "live-restore": True,
        "log-driver": "json-file", "log-opts": {"tag": "x", "max-size": "50m", "max-file": "3"},
    }  # fmt: skip


def test_what_a_job_leaves_in_docker_ends_with_its_epilog(machines: Machines) -> None:
    machines.describe(containers={"docker": True}, scratch=SCRATCH)
    ours = ROOT / "containers" / "docker" / "epilog.d" / "muster_docker.sh"
    site = "mkdir -p /etc/slurm/muster/epilog.d; touch /etc/slurm/muster/epilog.d/site.sh; "
    for name, there in (("n1", True), ("head", False)):
        node = machines[name]
        put(node, "/usr/local/bin/dockerd", DOCKERD)
        put(node, "/usr/local/bin/docker", DOCKER)
        path = "export PATH=/usr/local/bin:$PATH; "
        chosen = only("mounts", "scratch", "docker") if there else only("docker")
        rc, out = node.run(f"{path}{site if there else ''}{chosen}; {chosen}")
        assert rc == 0, out
        assert re.findall(r"^docker: (\w+)", out, re.MULTILINE) == ["changed", "unchanged"], out
        epilog = node.file("/etc/slurm/muster/epilog.d/muster_docker.sh")
        assert epilog.exists() == there
        if there:
            assert epilog.read_text() == ours.read_text()
            assert epilog.stat().st_mode & 0o777 == 0o755
            assert (epilog.parent / "site.sh").exists()


def test_docker_that_nobody_has_stops_nothing(machines: Machines) -> None:
    machines.describe(containers={"docker": True}, scratch=SCRATCH)
    hide = "rm -f /usr/local/bin/docker /usr/bin/docker /usr/sbin/dockerd; "
    rc, out = machines["n1"].run(hide + offer(machines["n1"]) + only("mounts", "scratch", "docker"))
    assert rc == 0, out
    assert "docker: failed with exit code 69" in out
    assert "no source of packages here has docker.io: add the source of another package" in out
