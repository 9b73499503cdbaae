"""Whether a node starts containers: each thing that users report is named, on a node of files."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

import pytest

from muster.cli import main
from muster.errors import DataError, UnavailableError
from muster.image import preflight
from muster.image.preflight import RULES, Node, enroot_paths, problems, readable
from resume.container import Container
from resume.container_preflight import require_startable
from tests.unit.image.squash_files import write_squash

CONF = """\
# ENROOT_DATA_PATH /not/this
ENROOT_DATA_PATH /local/data/user-$(id -u)
ENROOT_TEMP_PATH = /local/temp
ENROOT_DATA_PATH /nor/this
"""
MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
tmpfs /run tmpfs rw,nosuid 0 0
server:/home /home nfs4 rw,relatime 0 0
/dev/nvme0n1 /local xfs rw,noatime 0 0
"""
PLUGSTACK = "optional /usr/lib/spank_pyxis.so runtime_path=/var/lib/enroot/pyxis\n"
HELP = "#!/bin/sh\necho '  --container-image=IMAGE [pyxis] the image'\n"


class Files:
    """A node that starts containers; a test takes something away from it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("etc/enroot/enroot.conf.d/50-site.conf", CONF)
        self.put("etc/slurm/plugstack.conf", f"# comment\n{PLUGSTACK}")
        self.put("proc/mounts", MOUNTS)
        self.put("proc/sys/user/max_user_namespaces", "514000\n")
        self.put("usr/bin/enroot", "#!/bin/sh\n[ $# = 1 ] && [ $1 = list ] && [ -z $HOME ]\n")
        self.put("usr/bin/srun", HELP)
        self.image = root / "image.sqsh"
        write_squash(self.image)

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def node(self, memlock: float = float("inf")) -> Node:
        return Node(self.root, 1234, memlock)

    def found(self, memlock: float = float("inf"), *, file: bool = True) -> list[str]:
        image = self.image if file else None
        return [str(problem) for problem in problems(self.node(memlock), image)]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_node_that_starts_containers_has_no_problem(files: Files) -> None:
    assert files.found() == []
    assert files.found(file=False) == []


def test_the_paths_are_those_that_enroot_takes(files: Files) -> None:
    assert enroot_paths(files.node()) == {
        "ENROOT_DATA_PATH": Path(f"/local/data/user-{os.geteuid()}"),
        "ENROOT_TEMP_PATH": Path("/local/temp"),
    }
    site = "etc/enroot/enroot.conf.d/50-site.conf"
    files.put(site, "ENROOT_DATA_PATH /a\u2028b\n")
    assert enroot_paths(files.node()) == {
        "ENROOT_DATA_PATH": Path("/a\u2028b"), "ENROOT_TEMP_PATH": Path("/tmp"),
    }  # fmt: skip
    files.put(site, "")
    home = Path(os.path.expanduser(f"~{_user()}"))  # noqa: PTH111
    assert enroot_paths(files.node())["ENROOT_DATA_PATH"] == home / ".local/share/enroot"


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


FAULTS = {
    "enroot": ("usr/bin/enroot", "#!/bin/sh\necho 'mkdir: Permission denied' >&2; exit 1\n",
               "'env -i PATH=.* enroot list' ends with: mkdir: Permission denied"),
    "pyxis": ("usr/bin/srun", "#!/bin/sh\necho srun\n", "srun does not have its options"),
    "user-namespaces": ("proc/sys/user/max_user_namespaces", "0\n", "max_user_namespaces is 0"),
    "user-namespaces old": ("proc/sys/kernel/unprivileged_userns_clone", "0\n", "clone is 0"),
    "user-namespaces apparmor": ("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n",
                                 "AppArmor lets only"),
    "noexec": ("proc/mounts", MOUNTS.replace("xfs rw", "xfs rw,noexec"), "is mounted noexec"),
    "local-disk": ("proc/mounts", MOUNTS.replace("/local xfs", "/local lustre"), "on lustre"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named(name: str, files: Files) -> None:
    path, text, said = FAULTS[name]
    files.put(path, text)
    found = files.found()
    assert {line.partition(":")[0] for line in found} == {name.partition(" ")[0]}
    assert len(found) == (2 if name == "local-disk" else 1)  # data and temp
    assert re.search(f"{said}.* Fix: ", found[0])


def test_enroots_own_profile_is_enough_for_apparmor(files: Files) -> None:
    files.put("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
    files.put("etc/apparmor.d/enroot", "profile")
    assert files.found() == []


@pytest.mark.parametrize(("sparse", "stops"), [(0.5, False), (2, True)])
def test_too_little_space_for_the_unpacked_image(
    sparse: float, stops: bool, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 1 << 30
    monkeypatch.setattr(preflight, "_free", lambda _folder: free)
    os.truncate(files.image, int(sparse * free))
    (problem,) = problems(files.node(), files.image)
    assert (problem.rule, problem.stops) == ("space", stops)
    files.put("etc/slurm/plugstack.conf", PLUGSTACK.replace("\n", " use_squashfuse=1\n"))
    assert files.found() == []  # it is mounted, not unpacked


@pytest.mark.parametrize(
    "line", ["optional spank_pyxis.so\n", "required /lib/spank_pyxis.so a=b\n"]
)
def test_an_image_of_a_registry_in_memory(line: str, files: Files) -> None:
    (files.root / "etc/slurm/plugstack.conf").unlink()
    files.put("run/slurm/conf/plugstack.conf", line)
    assert [text.partition(":")[0] for text in files.found(file=False)] == ["runtime-path"]
    assert files.found() == []


def test_locked_memory(files: Files) -> None:
    (line,) = files.found(memlock=65536)
    assert line.startswith("memlock: ulimit -l is 64 KiB, ulimit -n ")


def test_enroot_where_pyxis_does_not_find_it(files: Files) -> None:
    (files.root / "usr/bin/enroot").rename(files.root / "enroot")
    (line,) = files.found()
    assert line.startswith("enroot: not found in /usr/local/bin:/usr/bin:/bin")
    (files.root / "etc/slurm/plugstack.conf").unlink()
    assert files.found() == []  # no containers here at all: srun says so


def test_every_rule_has_its_fault() -> None:
    named = {name.partition(" ")[0] for name in FAULTS} | {"space", "runtime-path", "memlock"}
    assert named == set(RULES)


def test_a_run_stops_before_it_waits_for_nodes(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    container = Container(str(files.image))
    require_startable(container, files.node(memlock=1024))  # only costs
    assert capsys.readouterr().err.startswith("muster run: memlock: ")
    files.put("usr/bin/enroot", "#!/bin/sh\nexit 3\n")
    with pytest.raises(UnavailableError, match=r"--image: enroot: .* Fix: containers/enroot"):
        require_startable(container, files.node())
    write_squash(files.image, missing=1)
    with pytest.raises(DataError, match="of 5000 bytes"):
        require_startable(container, files.node())
    with pytest.raises(UnavailableError):  # there is no file to look at
        require_startable(Container("docker://nvcr.io#a:1"), files.node())


def test_an_image_that_only_others_can_read(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    assert readable(files.image, 1234) is None
    files.image.chmod(0o600)
    monkeypatch.setattr(os, "access", lambda *_: False)
    said = readable(files.image, 0)
    assert (
        said
        == "cannot be read by user 0 (mode -rw-------, and root is nobody on many file servers)"
    )
    with pytest.raises(DataError, match="chmod a\\+r"):
        require_startable(Container(str(files.image)), files.node())


def test_the_verb(
    files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Node, "here", classmethod(lambda _cls: files.node()))
    assert main(["image", "preflight", str(files.image)]) == 0
    files.put("proc/sys/user/max_user_namespaces", "0")
    assert main(["image", "preflight"]) == 1
    assert capsys.readouterr().out.startswith("user-namespaces: ")
    (files.root / "usr/bin/enroot").unlink()
    assert main(["image", "preflight"]) == 69
