"""Text to tokens: every format, every mistake, killed in the middle, twice at once."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.torch

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "llama2_fsdp"
TOKENIZER = RECIPE / "corpus" / "tokenizer.json"
TEXTS = ["To be, or not to be.\nThat is the question.\n", "Zwölf Boxkämpfer — \U0001f3ad\n"]
TIMEOUT_S = 120


def start(*words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(RECIPE / "prepare.py"), *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd="/")


def prepare(*words: str | Path) -> tuple[int, str, str]:
    process = start(*words)
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def read(folder: Path) -> tuple[Any, dict[str, Any]]:
    meta = json.loads((folder / "meta.json").read_text())
    return np.fromfile(folder / "tokens.bin", dtype=meta["dtype"]), meta


def write_txt(folder: Path) -> None:
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")


def write_txt_xz(folder: Path) -> None:
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt.xz").write_bytes(lzma.compress(text.encode()))


def write_jsonl(folder: Path) -> None:
    lines = [json.dumps({"text": text, "other": 1}) for text in TEXTS]
    (folder / "a.jsonl").write_text("\n\n".join(lines))


def write_jsonl_gz(folder: Path) -> None:
    write_jsonl(folder)
    plain = folder / "a.jsonl"
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


def write_parquet(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": [1, 2], "text": TEXTS}), folder / "a.parquet")


@pytest.mark.parametrize(
    "write", [write_txt, write_txt_xz, write_jsonl, write_jsonl_gz, write_parquet]
)
def test_every_format_gives_the_same_tokens(tmp_path: Path, write: Any) -> None:
    from tokenizers import Tokenizer

    (tmp_path / "in").mkdir()
    write(tmp_path / "in")
    code, _, err = prepare(
        "--input", tmp_path / "in", "--tokenizer", TOKENIZER, "--out", tmp_path / "out"
    )
    assert (code, err) == (0, "")
    tokens, meta = read(tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    want = [number for text in TEXTS for number in [*tokenizer.encode(text).ids, 0]]
    assert tokens.tolist() == want
    assert (meta["eod"], meta["vocab_size"], meta["dtype"]) == (0, 1024, "uint16")
    first, second = np.flatnonzero(tokens == 0)
    assert tokenizer.decode(tokens[:first].tolist()) == TEXTS[0]
    assert tokenizer.decode(tokens[first + 1 : second].tolist()) == TEXTS[1]


def test_the_shipped_corpus_is_what_it_says(tmp_path: Path) -> None:
    code, out, _ = prepare("--out", tmp_path / "out")
    assert code == 0
    assert "484,949 tokens of 9 files, uint16" in out
    tokens, meta = read(tmp_path / "out")
    assert (tokens == meta["eod"]).sum() == 9
    assert len(set(tokens.tolist())) > 800
    before = (tmp_path / "out" / "tokens.bin").stat().st_mtime_ns
    assert "is there: 484,949 tokens" in prepare("--out", tmp_path / "out")[1]
    corpus = ("--input", RECIPE / "corpus", "--out", tmp_path / "out")
    assert "up to date" in prepare(*corpus)[1]
    assert (tmp_path / "out" / "tokens.bin").stat().st_mtime_ns == before
    assert sum(p.stat().st_size for p in (RECIPE / "corpus").iterdir()) < 480_000


def test_sentencepiece_as_of_llama_2(tmp_path: Path) -> None:
    spm = pytest.importorskip("sentencepiece")
    with lzma.open(RECIPE / "corpus" / "macbeth.txt.xz", "rt") as file:
        (tmp_path / "macbeth.txt").write_text(file.read())
    spm.SentencePieceTrainer.train(
        input=str(tmp_path / "macbeth.txt"),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=5,
    )
    model = tmp_path / "tokenizer.model"
    out = tmp_path / "out"
    words = ("--input", tmp_path / "macbeth.txt", "--tokenizer", model, "--out", out)
    assert prepare(*words)[0] == 0
    tokens, meta = read(out)
    pieces = spm.SentencePieceProcessor(model_file=str(model))
    want = pieces.encode((tmp_path / "macbeth.txt").read_text())
    assert tokens.tolist() == [*want, pieces.eos_id()]
    assert (meta["vocab_size"], meta["eod"]) == (400, pieces.eos_id())
    assert prepare(*words, "--end", "nonsense")[0] == 65


def test_large_vocabularies_take_four_bytes(tmp_path: Path, fsdp: Any) -> None:
    (tmp_path / "a.txt").write_text("x")
    tokenizer = fsdp.tokenizer.Tokenizer(lambda texts: [[70_000] for _ in texts], 100_000, 99_999)
    (part,) = fsdp.parts.plan([tmp_path / "a.txt"], 100)
    task = fsdp.parts.Task(tmp_path, TOKENIZER, None, "text", 0.0)
    fsdp.parts.make(task, 0, part, tokenizer)
    facts = {"dtype": "int32"}
    fsdp.prepare.put_together(tmp_path, tmp_path, 1, facts)
    tokens, meta = read(tmp_path)
    assert meta["dtype"] == fsdp.parts.token_dtype(100_000).name == "int32"
    assert tokens.tolist() == [70_000, 99_999]


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.txt", b"abc\xff", "a.txt: unreadable"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": 5}\n', "a.jsonl:2: expected a JSON object"),
        ("a.jsonl", b'{"text": "ok"}\nnot json\n', "a.jsonl:2"),
        ("a.jsonl", b'{"txt": "ok"}\n', "a.jsonl:1"),
        ("a.jsonl", b'["text"]\n', "a.jsonl:1"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "a.jsonl:1"),
        ("a.jsonl", b'{"text": "\xff"}\n', "a.jsonl:1"),
        ("a.jsonl.zst", b"not zst", "a.jsonl.zst: unreadable"),
        ("a.txt.xz", b"not xz", "a.txt.xz: unreadable"),
        ("a.txt.xz", lzma.compress(b"cut short" * 99)[:-9], "a.txt.xz: unreadable"),
        ("a.txt.gz", gzip.compress(b"cut short" * 99, mtime=0)[:-9], "a.txt.gz: unreadable"),
        ("a.parquet", b"not parquet", "a.parquet: unreadable"),
        ("a.pdf", b"", "holds no text"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, name: str, content: bytes, part: str) -> None:
    if name.endswith((".parquet", ".zst")):
        pytest.importorskip("pyarrow")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(content)
    code, out, err = prepare(
        "--input", tmp_path / "in", "--tokenizer", TOKENIZER, "--out", tmp_path / "out"
    )
    assert (code, out) == (65, "")
    assert part in err
    assert ". Fix: " in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out" / "meta.json").exists()


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["--input", "/nowhere.txt"], 65, "/nowhere.txt: file not found"),
        (["--input", str(TOKENIZER)], 65, "not a kind of file"),
        (["--tokenizer", "/nowhere.json"], 65, "/nowhere.json: file not found"),
        (["--tokenizer", str(RECIPE / "config.yaml")], 65, "not a tokenizer.json"),
        (["--end", "<nothing>"], 65, "has no token <nothing>"),
        (["--outt"], 64, "unrecognized arguments"),
        (["--validation", "0.9"], 64, "not from 0 to 0.5"),
        (["--workers", "0"], 64, "at least 1"),
        (["--out", "/proc/nowhere"], 74, "/proc/nowhere"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path: Path, words: list[str], code: int, part: str) -> None:
    out = [] if "--out" in words else ["--out", str(tmp_path)]
    got, _, err = prepare(*words, *out)
    assert got == code, err
    assert part in err
    assert err.count("\n") == 1


def test_parquet_without_the_column(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    for name, table in (("a", {"body": ["x"]}), ("b", {"text": [1]})):
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
        code, _, err = prepare("--input", tmp_path / f"{name}.parquet", "--out", tmp_path / "out")
        assert code == 65
        assert "text" in err
        assert err.count("\n") == 1


def write_much(folder: Path) -> None:
    """300 kB in files of all kinds, with lines that end anywhere."""
    folder.mkdir()
    verses = [f"{n}: {text}" * (1 + n % 7) for n, text in enumerate(TEXTS * 300)]
    lines = [json.dumps({"text": text}) for text in verses]
    (folder / "a.jsonl").write_text("\n".join(lines))  # the last line has no end
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[:50]).encode()))
    (folder / "c").mkdir()
    for number in range(20):
        (folder / "c" / f"{number:02d}.txt").write_text(verses[number], encoding="utf-8")
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": verses}), folder / "d.parquet", row_group_size=100)
    with pa.output_stream(str(folder / "e.jsonl.zst"), compression="zstd") as file:
        file.write("\n".join(lines[50:99]).encode())


@pytest.fixture(scope="module")
def much(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(input, what one worker makes of it in one part)."""
    folder = tmp_path_factory.mktemp("much")
    write_much(folder / "in")
    words = ("--input", folder / "in", "--validation", "0.1", "--workers", "1")
    code, out, err = prepare(*words, "--out", folder / "out", "--part-mb", "1000")
    assert (code, err) == (0, "")
    assert "for validation" in out
    return folder / "in", folder / "out"


def assert_same(one: Path, other: Path) -> None:
    names = sorted(path.name for path in one.iterdir())
    assert names == ["meta.json", "tokens.bin", "tokens.idx", "validation.bin", "validation.idx"]
    assert sorted(path.name for path in other.iterdir()) == names
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("part_mb", ["0.0001", "0.02"])
def test_the_result_is_the_same_whatever_the_number_of_workers(
    much: tuple[Path, Path], tmp_path: Path, part_mb: str, fsdp: Any
) -> None:
    """In parts of 100 bytes nearly every line is cut; 2,000 parts are left to one worker."""
    if part_mb == "0.0001":
        found: list[str] = []
        for path in sorted((much[0]).glob("*.jsonl")):
            for piece in fsdp.documents.pieces(path, 100):
                found += fsdp.documents.documents(piece, "text")
        whole = fsdp.documents.Piece(path, 0, path.stat().st_size, 0)
        assert found == list(fsdp.documents.documents(whole, "text"))
        return
    words = ("--input", much[0], "--validation", "0.1", "--workers", "3", "--part-mb", part_mb)
    code, _, err = prepare(*words, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert_same(much[1], tmp_path / "out")


def test_validation_takes_documents_by_their_text_so_copies_stay_together(
    much: tuple[Path, Path],
) -> None:
    meta = json.loads((much[1] / "meta.json").read_text())
    splits = {}
    for split, size in (("tokens", meta["num_tokens"]), ("validation", None)):
        tokens = np.fromfile(much[1] / f"{split}.bin", dtype=meta["dtype"])
        assert size in (None, len(tokens))
        ends = np.flatnonzero(tokens == 0) + 1
        splits[split] = {part.tobytes() for part in np.split(tokens, ends) if len(part)}
    assert len(tokens) == meta["validation"]["num_tokens"]
    assert len(splits["tokens"] | splits["validation"]) == 600
    assert splits["tokens"].isdisjoint(splits["validation"])
    assert 30 < len(splits["validation"]) < 90


def test_killed_at_any_moment_it_goes_on_to_the_same_result(
    much: tuple[Path, Path], tmp_path: Path, fsdp: Any
) -> None:
    """SIGKILL to the command alone; its workers must not go on behind its back."""
    out = tmp_path / "out"
    words = ("--input", much[0], "--validation", "0.1", "--out", out, "--part-mb", "0.01")
    total = len(fsdp.parts.plan(fsdp.documents.find_files([much[0]]), 10_000))
    assert total > 12
    for wanted in (0, 1, 3, total // 2, total - 2):  # parts that are there when it is killed
        process = start(*words, "--workers", str(1 + wanted % 3))
        deadline = time.monotonic() + TIMEOUT_S
        while len(list(out.glob(".parts.*/0*"))) < wanted:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
        process.kill()
        process.communicate(timeout=TIMEOUT_S)  # until its workers have let go of its output
        assert not (out / "meta.json").exists()
        with pytest.raises(fsdp.errors.Stop, match=r"python prepare\.py"):
            fsdp.corpora.read_meta(str(out))
    code, said, err = prepare(*words)
    assert (code, err) == (0, "")
    assert "parts are there" in said.splitlines()[0]
    assert_same(much[1], out)


def test_progress_is_told_now_and_then(
    much: tuple[Path, Path],
    tmp_path: Path,
    fsdp: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(fsdp.prepare, "TALK_S", 0.0)
    words = ["--input", str(much[0]), "--part-mb", "0.05", "--workers", "1"]
    fsdp.prepare.main([*words, "--out", str(tmp_path / "out")])
    *progress, last = capsys.readouterr().out.splitlines()
    total = len(progress) + 1
    for number, line in enumerate(progress, 1):
        want = rf"{number} of {total} parts, [\d.]+ MB/s, \d+ min left"
        assert re.fullmatch(want, line), line
    assert total > 2
    assert "tokens of 24 files" in last


def test_who_is_late_finds_the_work_of_another_node_done(
    much: tuple[Path, Path], tmp_path: Path, fsdp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other has finished, and removed the parts while this one was at work on one."""
    words = ["--input", str(much[0]), "--out", str(tmp_path / "out"), "--workers", "1"]
    make = fsdp.parts.make

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(fsdp.parts, "make", make)
        assert prepare(*words)[0] == 0
        make(*arguments)

    monkeypatch.setattr(fsdp.parts, "make", late)
    fsdp.prepare.main(words)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "meta.json", "tokens.bin", "tokens.idx",
    ]  # fmt: skip


def test_a_line_is_named_by_its_number_in_the_file_wherever_it_was_cut(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"text": f"line {n}"}) for n in range(400)]
    lines[333] = "broken"
    lines[390] = "broken too"
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(lines))
    words = ("--input", tmp_path / "in", "--out", tmp_path / "out", "--part-mb", "0.001")
    code, _, err = prepare(*words, "--workers", "2")
    assert code == 65
    assert "a.jsonl:334: expected" in err
    assert err.count("\n") == 1
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(line for line in lines if line[0] == "{"))
    assert prepare(*words)[0] == 0
    assert not list((tmp_path / "out").glob(".parts*"))  # those of the broken file neither


def test_two_at_once_and_readers_never_see_half(tmp_path: Path, fsdp: Any) -> None:
    out = tmp_path / "out"
    processes = [start("--out", out) for _ in range(2)]
    sizes = set()
    while any(p.poll() is None for p in processes):
        if (out / "meta.json").exists():
            wanted = SimpleNamespace(dir=str(out), blend=None, cache=None)
            sizes.add(fsdp.data.open_samples(wanted, [out], 128, 0).num_train)
        time.sleep(0.002)
    assert [p.communicate()[1] for p in processes] == ["", ""]
    assert [p.returncode for p in processes] == [0, 0]
    assert sizes <= {3788}
    assert sorted(p.name for p in out.iterdir()) == ["meta.json", "tokens.bin", "tokens.idx"]


def test_preparing_other_text_replaces_the_first(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for text in ("first", "the second one"):
        (tmp_path / "a.txt").write_text(text)
        assert prepare("--input", tmp_path / "a.txt", "--out", out)[0] == 0
        tokens, meta = read(out)
        assert len(tokens) == meta["num_tokens"]
    assert prepare("--out", out)[0] == 0  # as a job does: own data is not replaced by the plays
    assert read(out)[1] == meta


def test_in_a_job_data_goes_into_the_folder_that_was_submitted(tmp_path: Path) -> None:
    command = [sys.executable, str(RECIPE / "prepare.py")]
    env = {"PATH": os.environ["PATH"], "MUSTER_RECIPE_DIR": str(tmp_path)}
    subprocess.run(command, env=env, check=True, timeout=TIMEOUT_S, cwd="/", capture_output=True)
    assert read(tmp_path / "data")[1]["num_tokens"] == 484_949


def test_full_disk_is_one_line(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs root to mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "t", small], check=True, timeout=20)
    try:
        code, _, err = prepare("--out", small / "out")
        assert code == 74
        assert "No space left" in err
        assert err.count("\n") == 1
    finally:
        subprocess.run(["umount", small], check=True, timeout=20)


def test_who_is_overtaken_leaves_nothing(
    tmp_path: Path, fsdp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has finished the same and removed the parts that this one reads."""
    program, out = fsdp.prepare, tmp_path / "out"
    (tmp_path / "a.txt").write_text("some text")
    options = program.parse(["--input", str(tmp_path / "a.txt"), "--out", str(out)])
    source = program.source_of(options, [tmp_path / "a.txt"])
    program.main(["--input", str(tmp_path / "a.txt"), "--out", str(out), "--workers", "1"])
    there = sorted(out.iterdir())

    def overtaken(*_: object) -> None:
        program.own_name(out / "tokens.bin").touch()
        raise FileNotFoundError("part_00000")

    monkeypatch.setattr(program, "make_parts", lambda *_: None)
    monkeypatch.setattr(program, "put_together", overtaken)
    meta = program.prepare(options, [tmp_path / "a.txt"], source)
    assert meta["source"] == source
    assert sorted(out.iterdir()) == there
