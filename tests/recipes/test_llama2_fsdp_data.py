"""Which rank sees which sample: each once, in an order that depends on nothing but the seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def data(fsdp: Any) -> Any:
    return fsdp.data


def test_permutation_visits_everything_once_exhaustively(data: Any) -> None:
    for size in (*range(1, 200), 1000, 1023, 1024, 1025):
        for key in (0, 1, 2**64 - 1):
            assert sorted(data.permute(i, size, key) for i in range(size)) == list(range(size))


def test_permutation_scatters(data: Any) -> None:
    order = np.array([data.permute(i, 4000, 7) for i in range(4000)])
    assert abs(np.abs(order - np.arange(4000)).mean() - 4000 / 3) < 100  # what a random one has
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05
    assert (order == [data.permute(i, 4000, 8) for i in range(4000)]).sum() < 10


def test_order_is_the_recorded_one(data: Any) -> None:
    """A change here makes every run that is resumed afterwards skip and repeat samples."""
    assert [data.sample_id(p, 3788, 0) for p in range(6)] == [203, 2806, 3485, 1662, 2868, 3313]
    assert data.digest([16, 17], [5, 6], 16) == 8021595255568773102


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(5, 400),
    seed=st.integers(0, 2**32),
    plan=st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.integers(1, 3)), min_size=1),
)
def test_ranks_share_an_epoch_without_gap_or_overlap(
    data: Any, size: int, seed: int, plan: list[tuple[int, int]]
) -> None:
    """12 samples a step; the plan changes world size and micro batch as restarts would."""
    consumed, seen, at_step = 0, [], 0
    while consumed < 2 * size:
        world_size, micro = plan[at_step % len(plan)]
        micro = micro if 12 % (world_size * micro) == 0 else 1
        taken = []
        for rank in range(world_size):
            for positions in data.own_positions(
                consumed, micro, 12 // (world_size * micro), rank, world_size
            ):
                assert len(positions) == micro
                taken += positions
        assert sorted(taken) == list(range(consumed, consumed + 12))
        seen += [data.sample_id(p, size, seed) for p in sorted(taken)]
        consumed, at_step = consumed + 12, at_step + 1
    for epoch in range(2):
        assert sorted(seen[epoch * size : (epoch + 1) * size]) == list(range(size))
    assert size < 50 or seen[:size] != seen[size : 2 * size]


def test_digest_is_the_same_for_every_world_size_and_sees_a_swap(data: Any) -> None:
    ids = {p: data.sample_id(p, 1000, 0) for p in range(160, 176)}

    def step(world_size: int, micro: int, ids: dict[int, int]) -> int:
        total = 0
        for rank in range(world_size):
            for positions in data.own_positions(
                160, micro, 16 // (world_size * micro), rank, world_size
            ):
                words = data.digest(positions, [ids[p] for p in positions], 160)
                total += data.as_int64(words)
        return int(total % 2**64)

    want = step(1, 16, ids)
    assert {step(w, m, ids) for w, m in ((1, 1), (2, 4), (4, 4), (8, 1), (16, 1))} == {want}
    swapped = {**ids, 160: ids[161], 161: ids[160]}
    assert step(2, 4, swapped) != want
    assert step(2, 4, {**ids, 170: ids[171]}) != want


def test_as_int64_adds_up_modulo_two_to_the_64(data: Any) -> None:
    for value in (0, 1, 2**63 - 1, 2**63, 2**64 - 1):
        assert data.as_int64(value) % 2**64 == value
        assert -(2**63) <= data.as_int64(value) < 2**63


def _write(folder: Path, num_tokens: int, **changes: Any) -> None:
    folder.mkdir(exist_ok=True)
    np.arange(num_tokens, dtype=np.uint16).tofile(folder / "tokens.bin")
    meta = {"dtype": "uint16", "num_tokens": num_tokens, "vocab_size": 1024, "sha256": "x"}
    (folder / "meta.json").write_text(json.dumps({**meta, **changes}))


def test_samples_overlap_by_the_one_token_that_is_only_a_target(data: Any, tmp_path: Path) -> None:
    _write(tmp_path, 101)
    samples = data.open_samples(tmp_path, seq_len=10, held_out=2)
    assert samples.num_train == 8
    assert samples.fetch([0, 9]).tolist() == [list(range(11)), list(range(90, 101))]


@pytest.mark.parametrize(
    ("damage", "code", "words"),
    [
        (lambda d: (d / "meta.json").unlink(), 65, "python prepare.py"),
        (lambda d: (d / "tokens.bin").unlink(), 65, "python prepare.py"),
        (lambda d: (d / "tokens.bin").write_bytes(b"12345"), 65, "5 bytes instead of 101 x 2"),
        (lambda d: (d / "meta.json").write_text("{"), 65, "unreadable"),
        (lambda d: (d / "meta.json").write_text('{"dtype": "uint16"}'), 65, "unreadable"),
        (lambda d: _write(d, 5), 78, "5 tokens leave no sample of 10"),
    ],
)
def test_bad_data_is_one_line(  # noqa: PLR0917  (a row of the table)
    data: Any, fsdp: Any, tmp_path: Path, damage: Any, code: int, words: str
) -> None:
    _write(tmp_path, 101)
    damage(tmp_path)
    with pytest.raises(fsdp.errors.Stop) as caught:
        data.open_samples(tmp_path, seq_len=10, held_out=0)
    assert caught.value.code == code
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
