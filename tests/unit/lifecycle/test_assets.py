"""Steps find muster's own files, in a checkout and in muster.pyz."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
set -euo pipefail
source "$1/lifecycle/lib/assets.sh"
step::fail() { echo "$2" >&2; exit "$1"; }
MUSTER_HOME=$2 MUSTER_STATE=$3
folder=$(assets::folder "$4")
echo "$folder"
"""


def folder(home: Path, state: Path, path: str) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-c", SCRIPT, "_", str(ROOT), str(home), str(state), path]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_in_a_checkout_they_are_where_they_are(tmp_path: Path) -> None:
    found = folder(ROOT, tmp_path, "containers/enroot")
    assert found.stdout == f"{ROOT}/containers/enroot\n"
    assert folder(ROOT, tmp_path, "containers/none").returncode == 69


def test_out_of_the_archive_come_those_of_this_muster(tmp_path: Path) -> None:
    home, state = tmp_path / "muster.pyz", tmp_path / "state"
    old = state / "assets" / "a" / "hooks.d" / "10-old.sh"
    old.parent.mkdir(parents=True)
    old.write_text("of an older muster")
    with zipfile.ZipFile(home, "w") as archive:
        archive.writestr("a/hooks.d/20-new.sh", "new")
        archive.writestr("ab/other.sh", "other")
    found = folder(home, state, "a")
    assert (found.stdout, found.returncode) == (f"{state}/assets/a\n", 0)
    assert [path.name for path in (state / "assets").rglob("*.sh")] == ["20-new.sh"]
    missing = folder(home, state, "none")
    assert missing.returncode == 69
    assert missing.stderr.endswith("has no folder none: build muster.pyz with ./run pyz\n")
