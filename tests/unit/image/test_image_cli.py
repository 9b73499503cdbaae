"""muster image: what builders, Enroot and people are told, with small programs in their place."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.cli import main
from muster.errors import ConfigError, CreateError, UnavailableError
from muster.image import build, fetch
from muster.image.reference import parse
from muster.image.squash import Settings, prepare
from tests.unit.image.squash_files import write_squash

Program = Callable[[str, str], Path]
NVCR = parse("nvcr.io#nvidia/pytorch:1")


@pytest.fixture
def squash(tmp_path: Path) -> Path:
    """A file that a small program can copy as its result."""
    write_squash(tmp_path / "ready")
    return tmp_path / "ready"


@pytest.fixture(autouse=True)
def no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENROOT_CONFIG_PATH", str(tmp_path / "config"))
    (tmp_path / "local").mkdir()
    return tmp_path / "local"


def test_import(
    program: Program, squash: Path, local: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = tmp_path / "said"
    program("enroot", f'echo "$*" >{said}; env >>{said}; cp {squash} "$3"')
    target = tmp_path / "image.sqsh"
    words = ["image", "import", "nvcr.io/nvidia/a:1", "--output", str(target)]
    words += ["--temp", str(local), "--size-gib", "0.001"]
    assert main(words) == 0
    assert capsys.readouterr().out == f"{target}: made, 0.00 GiB\n"
    argv, *environment = said.read_text().splitlines()
    assert argv.startswith(f"import --output {local}/muster-image-")
    assert argv.endswith("/image.sqsh docker://nvcr.io#nvidia/a:1")
    folder = Path(argv.split()[2]).parent
    assert f"ENROOT_TEMP_PATH={folder}" in environment
    assert any(line.startswith("ENROOT_SQUASH_OPTIONS=-comp zstd") for line in environment)
    assert main(words) == 0
    assert "was there" in capsys.readouterr().out
    assert list(local.iterdir()) == []


def test_an_import_that_fails_leaves_nothing(
    program: Program, local: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program("enroot", 'echo half >"$3"; exit 1')
    target = tmp_path / "image.sqsh"
    words = ["image", "import", "a:1", "--output", str(target), "--size-gib", "0.001"]
    assert main([*words, "--temp", str(local)]) == 75
    assert (
        "muster image import: docker://a:1: enroot import ended with 1" in capsys.readouterr().err
    )
    assert not target.exists()
    assert list(local.iterdir()) == []


def test_no_space_is_said_before_anything_is_fetched(
    program: Program, local: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program("enroot", f"touch {tmp_path}/fetched")
    words = ["image", "import", "a:1", "--output", str(tmp_path / "a.sqsh"), "--temp", str(local)]
    assert main([*words, "--size-gib", "1e6"]) == 73
    assert "3000000.0 GiB needed" in capsys.readouterr().err
    assert not (tmp_path / "fetched").exists()


@pytest.mark.parametrize("size", ["nan", "-5", "0", "inf", "big"])
def test_a_size_is_a_number_above_0(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["image", "import", "a:1", "--output", "a.sqsh", "--size-gib", size])
    assert exit_.value.code == 64
    assert re.search(f"--size-gib: '{size}' is (no number|not above 0)", capsys.readouterr().err)


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
10.0.0.1:/fsx /fsx lustre rw 0 0
server:/home /home/a\\040b nfs4 rw 0 0
/dev/nvme1n1 /fsx/local xfs rw 0 0
10.0.0.2:/x /shared\u2028x nfs4 rw 0 0
"""


@pytest.mark.parametrize("folder", ["/tmp", "/fsx/local/x", "/fsx2", "/home/a"])
def test_local_disk_is_local(folder: str) -> None:
    fetch.require_local(Path(folder), MOUNTS)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/fsx", "lustre"),
        ("/fsx/me", "lustre"),
        ("/home/a b/c", "nfs4"),
        ("/shared\u2028x", "nfs4"),
    ],
)
def test_shared_storage_is_no_place_to_unpack(folder: str, kind: str) -> None:
    with pytest.raises(CreateError, match=f"is on {kind}.*--temp"):
        fetch.require_local(Path(folder), MOUNTS)


def test_credentials_are_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / ".credentials"
    fetch.require_credentials(path, NVCR)  # none: a public image
    lines = "machine nvcr.io login $oauthtoken password secret\n"
    path.write_text(lines + "machine authn.nvidia.com login $oauthtoken password secret\n")
    for mode in (0o644, 0o640, 0o620):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            fetch.require_credentials(path, NVCR)
    path.chmod(0o600)
    fetch.require_credentials(path, NVCR)


@pytest.mark.parametrize(
    ("there", "missing"), [("nvcr.io", "authn.nvidia.com"), ("authn.nvidia.com", "nvcr.io")]
)
def test_nvcr_needs_two_lines(tmp_path: Path, there: str, missing: str) -> None:
    path = tmp_path / ".credentials"
    path.touch(mode=0o600)
    path.write_text(f"machine {there} login a password secret\n")
    with pytest.raises(ConfigError, match=f"no line 'machine {missing}'") as error:
        fetch.require_credentials(path, NVCR)
    assert "secret" not in str(error.value)
    fetch.require_credentials(path, parse("quay.io#a/b:1"))


def test_where_credentials_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert fetch.credentials_path({}) == Path("/home/me/.config/enroot/.credentials")
    assert fetch.credentials_path({"ENROOT_CONFIG_PATH": "/e"}) == Path("/e/.credentials")


BUILDAH = """
echo "$*" >>{said}
case $1 in
  build) [ "$2$3" = "--formatdocker" ];;
  from) echo working;;
  mount) echo {root};;
  inspect) echo '{{"Docker": {{"config": {{"Env": ["A=1"], "WorkingDir": "/w"}}}}}}';;
esac
"""


def test_build_with_buildah(
    program: Program, squash: Path, local: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, said = tmp_path / "root", tmp_path / "said"
    root.mkdir()
    program("buildah", BUILDAH.format(said=said, root=root))
    program("mksquashfs", f'echo "mksquashfs $*" >>{said}; cp {squash} "$2"')
    target = tmp_path / "pytorch.sqsh"
    words = ["image", "build", "pytorch", "--base", "localhost/small", "--no-packages"]
    assert main([*words, "--no-fabric", "--output", str(target), "--temp", str(local)]) == 0
    built, *rest = said.read_text().splitlines()
    assert "--pull-never --build-arg BASE_IMAGE=localhost/small" in built
    assert "--build-arg PACKAGES= " in built
    assert "/containers/pytorch.Dockerfile --tag localhost/muster/pytorch:latest" in built
    assert [line.split()[0] for line in rest] == ["from", "mount", "inspect", "mksquashfs", "rm"]
    assert (root / "etc" / "environment").read_text() == "A=1\n"
    assert 'cd "/w"' in (root / "etc" / "rc").read_text()
    assert target.is_file()
    assert "-all-root" in rest[3]


def test_the_real_base_is_asked_for_by_its_digest(
    program: Program, local: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = tmp_path / "said"
    program("buildah", f'echo "$*" >>{said}; exit 3')
    images = Path(__file__).resolve().parents[3] / "containers"
    shutil.copytree(images, tmp_path / "containers")
    file = tmp_path / "containers" / "images.yaml"
    file.write_text(file.read_text().replace("size_gib: 22", "size_gib: 0.001"))
    words = ["image", "build", "megatron", "--images", str(file), "--temp", str(local)]
    assert main([*words, "--output", str(tmp_path / "a.sqsh")]) == 65
    assert "megatron.Dockerfile: buildah ended with 3" in capfd.readouterr().err
    line = said.read_text()
    assert "BASE_IMAGE=nvcr.io/nvidia/pytorch:25.12-py3@sha256:" in line
    assert "megatron-core==0.16.1" in line
    assert "EFA_INSTALLER_VERSION=1.43.2" in line
    assert "--pull-never" not in line


def test_docker_is_the_second_choice(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = program("docker", "exit 0").parent
    monkeypatch.setenv("PATH", str(folder))
    assert build.find_tool() == "docker"
    with pytest.raises(UnavailableError, match="apt-get install buildah"):
        build.find_tool("buildah")
    assert build.build_argv("docker", Path("/c/a.Dockerfile"), "t", "b", {}, local=True) == [
        *("docker", "build", "--build-arg", "BASE_IMAGE=b"),
        *("--file", "/c/a.Dockerfile", "--tag", "t", "/c"),
    ]


def test_wheels_are_seen_by_the_build_alone(
    program: Program, squash: Path, local: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, said = tmp_path / "root", tmp_path / "said"
    root.mkdir()
    program("buildah", BUILDAH.format(said=said, root=root))
    program("mksquashfs", f'cp {squash} "$2"')
    words = ["image", "build", "pytorch", "--base", "localhost/torch", "--temp", str(local)]
    words += ["--output", str(tmp_path / "a.sqsh"), "--wheels", str(tmp_path)]
    assert main(words) == 0
    (built,) = [line for line in said.read_text().splitlines() if line.startswith("build ")]
    assert f"--volume {tmp_path}:{build.WHEELS}:ro --build-arg" in built
    shown = (Path(build.__file__).resolve().parents[2] / "containers/packages.sh").read_text(
        "utf-8"
    )
    assert f"wheels={build.WHEELS}\n" in shown
    assert main([*words[:-1], str(tmp_path / "none")]) == 64
    assert "is no folder. Fix: name a folder of .whl files" in capsys.readouterr().err
    program("docker", "exit 0")
    assert main([*words, "--tool", "docker"]) == 64
    assert "use --tool buildah" in capsys.readouterr().err


def test_a_file_that_is_fit_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an overlay each touch would copy the file."""
    (tmp_path / "bin").mkdir(mode=0o755)
    for name, mode in (("fit", 0o755), ("closed", 0o600), ("closed-program", 0o700)):
        (tmp_path / "bin" / name).touch()
        (tmp_path / "bin" / name).chmod(mode)
    touched: list[str] = []
    chmod = Path.chmod

    def noted(path: Path, mode: int) -> None:
        touched.append(path.name)
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", noted)
    prepare(tmp_path, Settings())
    assert sorted(touched) == ["closed", "closed-program"]
    assert (tmp_path / "bin" / "closed").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "bin" / "closed-program").stat().st_mode & 0o777 == 0o755


def test_check_says_each_problem_and_looks_at_every_file(
    program: Program, squash: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program("unsquashfs", "echo 'crw-r--r-- 0/0 1, 3 2026-11-29 22:36 squashfs-root/null'")
    damaged = tmp_path / "damaged.sqsh"
    damaged.write_text("half")
    assert main(["image", "check", str(damaged), str(squash)]) == 65
    out, err = capsys.readouterr()
    assert f"{squash}: device-nodes: /null: an ordinary user cannot unpack it" in out
    assert f"muster image check: {damaged}: is no squashfs" in err
    assert main(["image", "check", str(squash)]) == 1


def test_a_name_is_no_option(
    program: Program,
    squash: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    squash.rename("-x.sqsh")
    said = tmp_path / "said"
    line = "-rw-r--r-- 0/0 1 2026-11-29 22:36 squashfs-root/etc/environment"
    program("unsquashfs", f'echo "$*" >>{said}; echo "{line}"')
    assert main(["image", "check", "--", "-x.sqsh"]) == 1
    assert said.read_text() == f"-lln {tmp_path}/-x.sqsh\n-cat {tmp_path}/-x.sqsh etc/environment\n"


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "list"]) == 0
    assert (
        "pytorch: for llama2_fsdp; on nvcr.io/nvidia/pytorch:25.12-py3\n" in capsys.readouterr().out
    )
