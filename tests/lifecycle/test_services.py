"""Daemons of steps: started when they do not run, and again when their files have changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.harness.private_root import ROOT, PrivateRoot

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(not shutil.which("pgrep"), reason="needs the package procps"),
]
TICKER = f"""
export MUSTER_STATE=/root
source {ROOT}/lifecycle/lib/step.sh
STEP_VERB=apply DIFFERENCES=/dev/null
cp /bin/sleep /root/ticker
tick() {{ setsid -f /root/ticker 300; }}
killed() {{ tick; kill -KILL "$BASHPID"; }}
runs() {{
  echo "$1" >/root/conf
  want::service_with "$(service::sum /root/conf)" ticker ticker "$2"
}}
"""


def test_a_run_killed_between_start_and_note_leaves_no_note_of_files_before(tmp_path: Path) -> None:
    machine = PrivateRoot(tmp_path / "n1", "n1", "10.9.0.11", tmp_path)
    script = (
        TICKER + "runs 1 tick; runs 1 tick; { (runs 2 killed) || true; } 2>/dev/null; runs 1 tick"
    )
    rc, out = machine.run(script)
    assert rc == 0, out
    older = "ticker runs with older files"
    assert out.splitlines() == ["ticker does not run", older, older]
