"""The nvidia-smi of the local cluster answers every question that a check asks."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

from healthcheck.read import gpu, gpu_detail, gpu_use

ROOT = Path(__file__).resolve().parents[3]
UUID = "GPU-0a1b2c0{}-3d4e-5f60-7182-93a4b5c6d7e8"


def test_every_question(tmp_path: Path) -> None:
    script = tmp_path / "lib" / "nvidia_smi.sh"
    script.parent.mkdir()
    shutil.copy(ROOT / "muster/cluster/nvidia_smi.sh", script)
    node = tmp_path / "nodes" / socket.gethostname()
    node.mkdir(parents=True)
    rows = [f"{i}|NVIDIA H100|{UUID.format(i)}|16500000{i}|00000000:1{i}:00.0|ok|0" for i in (0, 1)]
    (node / "gpus").write_text("\n".join(rows) + "\n")

    def ask(command: list[str]) -> str:
        done = subprocess.run(
            ["bash", str(script), *command[1:]], capture_output=True, text=True, check=True
        )
        return done.stdout

    found = gpu.parse_gpus(ask(gpu.query(gpu.FIELDS)), gpu.FIELDS)
    assert [one.uuid for one in found] == [UUID.format(0), UUID.format(1)]
    assert {name for name in gpu.FIELDS if found[0].get(name) is None} == {
        name for name in gpu.FIELDS if name.startswith("retired_pages")
    }
    assert gpu.parse_list(ask(["nvidia-smi", "-L"])) == 2
    assert list(gpu_detail.parse_detail(ask(gpu_detail.COMMAND))) == [one.bus for one in found]
    assert gpu_use.parse_use(ask(gpu_use.COMMAND)) == []
