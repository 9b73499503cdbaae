"""Small files that are whole or not there, and line files that survive a torn line."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resume.durable import append_line, read_json, read_lines, write_json, write_whole

ROOT = Path(__file__).resolve().parents[2]


def test_reader_never_sees_a_part(tmp_path: Path) -> None:
    path, over = tmp_path / "value.json", threading.Event()
    write_json(path, ["a"])

    def write() -> None:
        for n in range(150):
            write_json(path, ["x" * 10_000] * (n % 3 + 1))
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not over.is_set():
        seen.add(len(json.loads(path.read_text())))
    writer.join()
    assert seen <= {1, 2, 3}
    assert [p.name for p in tmp_path.iterdir()] == ["value.json"]


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"\xff\xfe", b"[" * 100_000, b"nothing"], ids=repr
)
def test_what_is_not_whole_reads_as_none(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "f").write_bytes(content)
    assert read_json(tmp_path / "f") is None


def test_write_whole_replaces(tmp_path: Path) -> None:
    write_whole(tmp_path / "f", "old")
    write_whole(tmp_path / "f", "né\n")
    assert (tmp_path / "f").read_text(encoding="utf-8") == "né\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", [{"n": 1}]),
        (b'{"n": 0}\n', [{"n": 0}, {"n": 1}]),
        (b'{"n": 0}\n{"n": ', [{"n": 0}, {"n": 1}]),
        (b'{"n": 0}', [{"n": 0}, {"n": 1}]),
        (b'\xff\x00\n[1]\n3\n{"n": 0}\n' + b"[" * 100_000, [{"n": 0}, {"n": 1}]),
    ],
)
def test_append_closes_a_torn_line(
    before: bytes, after: list[dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(before)
    append_line(tmp_path / "f", {"n": 1})
    assert read_lines(tmp_path / "f") == after


def test_no_file_is_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none") == []


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text() | st.floats(allow_nan=False))))
def test_what_is_appended_is_read(lines: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        for line in lines:
            append_line(Path(place, "f"), line, durable=False)
        assert read_lines(Path(place, "f")) == lines


def test_several_writers_keep_their_lines_apart(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        for n in range(50):
            append_line(tmp_path / "f", {"w": writer, "n": n, "x": "y" * 500}, durable=False)

    threads = [threading.Thread(target=write, args=(w,)) for w in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = read_lines(tmp_path / "f")
    assert [[m["n"] for m in lines if m["w"] == w] for w in range(4)] == [list(range(50))] * 4


def test_a_line_of_which_only_a_part_fits_is_an_error_not_a_silent_loss(tmp_path: Path) -> None:
    text = (
        "import resource\nfrom pathlib import Path\nfrom resume.durable import append_line\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
        f"append_line(Path({str(tmp_path / 'f')!r}), {{'text': 'x' * 100}})\n"
    )
    assert resource.RLIMIT_FSIZE is not None
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "File too large" in done.stderr
    append_line(tmp_path / "f", {"n": 1})
    assert read_lines(tmp_path / "f") == [{"n": 1}]


def test_folder_may_be_renamed_by_whoever_waited_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last seal of a checkpoint lets rank 0 rename the draft in the very next moment."""
    draft, published = tmp_path / "step.tmp", tmp_path / "step"
    draft.mkdir()
    replace = Path.replace

    def replace_then_publish(self: Path, target: Path) -> Path:
        result = replace(self, target)
        draft.rename(published)
        return result

    monkeypatch.setattr(Path, "replace", replace_then_publish)
    write_json(draft / "seal.json", {"a": 1})
    assert read_json(published / "seal.json") == {"a": 1}
