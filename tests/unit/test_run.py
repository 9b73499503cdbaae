"""`./run` without ensurepip, without network, with wrong bytes, interrupted, and twice at once.

The index is a real web server on the loopback; what it serves as nox is a stand-in that prints its
arguments, so that the test needs no network and no minute.
"""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints/cpu.txt").read_text().splitlines()
    if line.startswith(("nox==", "pip=="))
)


@dataclass
class Index:
    """A package index: file name -> contents.

    A request of nox sets `entered` and waits for `gate`.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    url: str = ""
    wrong_checksum: bool = False
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)

    def page(self, project: str) -> bytes:
        """The PEP 503 page of a project."""
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in self.files.items()}
        return "".join(
            f'<a href="../files/{name}#sha256={"0" * 64 if self.wrong_checksum else digest}">x</a>'
            for name, digest in digests.items()
            if name.startswith(f"{project}-")
        ).encode()


@pytest.fixture
def index() -> Iterator[Index]:
    made = Index({wheel[0]: wheel[1] for wheel in (pip_wheel(), nox_wheel())})
    made.gate.set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            folder, name = self.path.strip("/").split("/")[-2:]
            if name.startswith("nox"):
                made.entered.set()
                made.gate.wait(60)
            data = made.files.get(name, b"") if folder == "files" else made.page(name)
            self.send_response(200 if data else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}/simple"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield made
    made.gate.set()
    server.shutdown()
    thread.join()
    server.server_close()


def pip_wheel() -> tuple[str, bytes]:
    """The pip of this environment, packed again under the pinned version."""
    site = Path(str(distribution("pip").locate_file("")))  # without importing it
    info = next(site.glob("pip-*.dist-info"))
    files = [path for top in (site / "pip", info) for path in top.rglob("*") if path.is_file()]
    return f"pip-{PINS['pip']}-py3-none-any.whl", packed(
        {p.relative_to(site).as_posix(): p.read_bytes() for p in files if p.suffix != ".pyc"}
    )


def nox_wheel() -> tuple[str, bytes]:
    """A nox that prints where it runs and what it was told."""
    info = f"nox-{PINS['nox']}.dist-info"
    about = f"Metadata-Version: 2.1\nName: nox\nVersion: {PINS['nox']}\n"
    program = b"import os, sys\nprint(os.getcwd(), sys.argv[1:], sep='\\n')\n"
    return f"nox-{PINS['nox']}-py3-none-any.whl", packed(
        {
            "nox/__init__.py": b"",
            "nox/__main__.py": program,
            f"{info}/METADATA": about.encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": f"nox/__init__.py,,\nnox/__main__.py,,\n{info}/RECORD,,\n".encode(),
        }
    )


def packed(files: dict[str, bytes]) -> bytes:
    """A zip file as bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """As much of a clone as `run` reads, under a path that is awkward."""
    folder = tmp_path / "my clone's $HOME"
    (folder / "constraints").mkdir(parents=True)
    shutil.copy2(ROOT / "run", folder / "run")
    shutil.copy2(ROOT / "constraints/cpu.txt", folder / "constraints/cpu.txt")
    return folder


def environment(index_url: str, **more: str) -> dict[str, str]:
    """A user's environment without any setting of pip but the index."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON", "VIRTUAL"))}
    ours = {"PIP_INDEX_URL": index_url, "PIP_CONFIG_FILE": os.devnull, "no_proxy": "127.0.0.1"}
    return keep | ours | {"MUSTER_PYTHON": sys.executable} | more


def start(clone: Path, *arguments: str, env: dict[str, str]) -> subprocess.Popen[str]:
    """Start run from another folder, without standard input, in a group of its own."""
    return subprocess.Popen(
        [str(clone / "run"), *arguments],
        cwd="/",
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code and output."""
    out, err = process.communicate(timeout=180)
    return process.returncode, out, err


LIKE_DEBIAN = """
import runpy, sys
if "--without-pip" not in sys.argv:
    sys.exit("ensurepip is not available")
sys.path = [path for path in sys.path if path != {hidden!r}]
del sys.modules["venv"]
runpy.run_module("venv", run_name="__main__", alter_sys=True)
"""


def without_ensurepip(folder: Path) -> dict[str, str]:
    """What makes `python3 -m venv` behave like Debian's without the package python3-venv."""
    hidden = folder / "hidden"
    (hidden / "venv").mkdir(parents=True)
    (hidden / "venv" / "__init__.py").write_text("")
    (hidden / "venv" / "__main__.py").write_text(LIKE_DEBIAN.format(hidden=str(hidden)))
    return {"PYTHONPATH": str(hidden)}


def test_hands_over_to_nox_in_the_clone_with_all_arguments(clone: Path, index: Index) -> None:
    env = environment(index.url)
    code, out, err = finish(start(clone, "tests", "-k", "a b", "--x=*", env=env))
    assert (code, out) == (0, f"{clone}\n['--session', 'tests', '--', '-k', 'a b', '--x=*']\n")
    assert err.count("\n") == 1
    index.files.clear()  # the second time nothing is installed
    assert finish(start(clone, "demo", env=env))[::2] == (0, "")
    nox_like = finish(start(clone, "demo", "--", "a", "--", "b", env=env))
    assert nox_like == (0, f"{clone}\n['--session', 'demo', '--', 'a', '--', 'b']\n", "")
    for arguments in ((), ("--help",)):
        assert finish(start(clone, *arguments, env=env)) == (0, f"{clone}\n['--list']\n", "")


def test_no_ensurepip(clone: Path, index: Index, tmp_path: Path) -> None:
    env = environment(index.url, **without_ensurepip(tmp_path))
    code, out, _ = finish(start(clone, "demo", env=env))
    log = (clone / ".muster/install.log").read_text()
    assert (code, out) == (0, f"{clone}\n['--session', 'demo', '--']\n"), log
    assert "ensurepip is not available" in log


def test_wrong_checksum_is_refused(clone: Path, index: Index, tmp_path: Path) -> None:
    index.wrong_checksum = True
    env = environment(index.url, **without_ensurepip(tmp_path))
    code, _, err = finish(start(clone, "demo", env=env))
    assert code == 69
    assert f"pip-{PINS['pip']}-py3-none-any.whl: wrong checksum" in err.splitlines()[-1]
    assert list((clone / ".muster/env").iterdir()) == []


@pytest.mark.parametrize("hide_ensurepip", [False, True])
def test_no_network_is_one_line(clone: Path, tmp_path: Path, hide_ensurepip: bool) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        env = environment(f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
        if hide_ensurepip:
            env |= without_ensurepip(tmp_path)
        code, out, err = finish(start(clone, "demo", env=env))
    announcement, problem = err.splitlines()
    assert (code, out) == (69, "")
    assert announcement.startswith("run: installing nox")
    assert problem.startswith("run: cannot install nox from the package index (")
    assert "Fix: check network and proxy" in problem
    assert list((clone / ".muster/env").iterdir()) == []


def test_no_python_is_one_line(clone: Path) -> None:
    code, _, err = finish(start(clone, "demo", env=environment("", MUSTER_PYTHON="/no/python")))
    assert code == 69
    assert err.startswith("run: ")
    assert err.count("\n") == 1


def test_folder_that_cannot_be_written_is_one_line(clone: Path) -> None:
    (clone / ".muster").write_text("a file in the way")
    code, _, err = finish(start(clone, "demo", env=environment("")))
    assert code == 73
    assert err.startswith(f"run: cannot write {clone}/.muster. Fix: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_interrupted_then_started_again(clone: Path, index: Index, kill: signal.Signals) -> None:
    index.gate.clear()
    env = environment(index.url)
    process = start(clone, "demo", env=env)
    assert index.entered.wait(120)
    os.killpg(process.pid, kill)
    assert finish(process)[0] != 0
    index.gate.set()
    assert finish(start(clone, "demo", env=env))[0] == 0


def test_two_at_once(clone: Path, index: Index) -> None:
    index.gate.clear()
    env = environment(index.url)
    both = [start(clone, "demo", env=env) for _ in range(2)]
    assert index.entered.wait(120)
    index.gate.set()
    assert [finish(process)[0] for process in both] == [0, 0]
    assert [path.name for path in (clone / ".muster/env").iterdir()] == [
        f"python{sys.version_info[0]}.{sys.version_info[1]}-nox{PINS['nox']}"
    ]


def test_environment_whose_python_is_gone_is_made_again(clone: Path, index: Index) -> None:
    env = environment(index.url)
    assert finish(start(clone, "demo", env=env))[0] == 0
    (python,) = (clone / ".muster/env").glob("*/bin/python")
    python.unlink()
    python.symlink_to("/no/python")
    assert finish(start(clone, "demo", env=env))[0] == 0
