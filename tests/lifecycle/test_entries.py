"""What platforms call: each script finds muster and the description, and hands its words over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.created import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests")
EXAMPLES = ROOT / "lifecycle" / "examples"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The folder as it is uploaded, and beside the scripts a muster that tells its words."""
    folder = tmp_path / "lifecycle"
    shutil.copytree(
        ROOT / "lifecycle", folder, ignore=shutil.ignore_patterns("*.py", "__pycache__")
    )
    (folder / "muster.pyz").write_text("import sys\nprint(sys.argv[1:])\n")
    return folder


def run(script: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(script), *words],
        env={**os.environ, "MUSTER_FLUSH_S": "0", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def words_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    words: list[str] = json.loads(done.stdout.replace("'", '"'))
    return words[3:]  # create --steps FOLDER


def test_hyperpod_needs_no_words(bundle: Path) -> None:
    example = EXAMPLES / "hyperpod_p5"
    env = {"SAGEMAKER_RESOURCE_CONFIG_PATH": str(example / "resource_config.json")}
    resources = ["--resource-config", env["SAGEMAKER_RESOURCE_CONFIG_PATH"]]
    assert words_of(run(bundle / "on_create.sh", **env)) == resources
    parameters = bundle / "provisioning_parameters.json"
    shutil.copy(example / parameters.name, parameters)
    shutil.copy(example / "cluster.yaml", bundle)
    expected = [str(bundle / "cluster.yaml"), *resources, "--provisioning", str(parameters)]
    assert words_of(run(bundle / "on_create.sh", **env)) == expected
    assert words_of(run(bundle / "on_create.sh", "--check", **env)) == [*expected, "--check"]


def test_hyperpod_is_told_the_exit_code(bundle: Path) -> None:
    (bundle / "muster.pyz").write_text("import sys\nsys.exit(75)\n")
    assert run(bundle / "on_create.sh").returncode == 75


def test_parallelcluster_gives_words(bundle: Path) -> None:
    words = ("s3://bucket/on_node_configured.sh", "/shared/cluster.yaml", "slurm.lost_after_s=60")
    expected = ["--cfnconfig", "/etc/parallelcluster/cfnconfig", *words[1:]]
    assert words_of(run(bundle / "on_node_configured.sh", *words)) == expected


def test_cloud_init_has_user_data(bundle: Path) -> None:
    done = run(bundle / "on_first_boot.sh", MUSTER_USER_DATA="/x")
    assert words_of(done) == ["--user-data", "/x"]


def test_a_real_hyperpod_description_reaches_the_steps(tmp_path: Path) -> None:
    example = EXAMPLES / "hyperpod_p5"
    folder = tmp_path / "repo"
    shutil.copytree(ROOT / "lifecycle", folder / "lifecycle")
    (folder / "muster").symlink_to(ROOT / "muster")
    (folder / "healthcheck").symlink_to(ROOT / "healthcheck")
    for name in ("cluster.yaml", "provisioning_parameters.json"):
        shutil.copy(example / name, folder / "lifecycle")
    env = {
        "SAGEMAKER_RESOURCE_CONFIG_PATH": str(example / "resource_config.json"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    words = ("--list", "--node", "ip-10-1-71-11")
    done = run(folder / "lifecycle" / "on_create.sh", *words, **env)
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert {"hosts", "mounts", "homes"} <= set(names)
    assert "munge" not in names  # the platform's own


def test_without_python_it_says_so(bundle: Path, tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "hostname"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    done = run(bundle / "create.sh", PATH=str(tmp_path))
    assert done.returncode == 69
    assert "Fix: apt-get install python3" in done.stderr


def test_a_checkout_reads_a_file_of_the_folder_one_is_in(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "on_premises" / "cluster.yaml", tmp_path)
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["bash", str(ROOT / "lifecycle" / "create.sh"), "cluster.yaml", "--node", "gpu001"]
    done = subprocess.run(
        [*words, "--list"],
        cwd=tmp_path,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "munge" in done.stdout
