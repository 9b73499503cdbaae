"""Which rank sees which sample: each once, in an order that depends on nothing but the seed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
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


def write(folder: Path, num_tokens: int, first: int = 0, **changes: Any) -> None:
    folder.mkdir(exist_ok=True)
    np.arange(first, first + num_tokens, dtype=np.uint16).tofile(folder / "tokens.bin")
    meta = {"dtype": "uint16", "num_tokens": num_tokens, "vocab_size": 1024, "sha256": f"{first}"}
    (folder / "meta.json").write_text(json.dumps({**meta, **changes}))


def open_samples(data: Any, folder: Path, seq_len: int, num_eval: int, blend: Any = None) -> Any:
    wanted = SimpleNamespace(dir=str(folder), blend=blend, cache=None)
    return data.open_samples(wanted, [Path("/")], seq_len, num_eval)


def test_samples_overlap_by_the_one_token_that_is_only_a_target(data: Any, tmp_path: Path) -> None:
    write(tmp_path, 101)
    samples = open_samples(data, tmp_path, 10, 2)
    assert samples.num_train == 8
    assert samples.fetch([0, 9]).tolist() == [list(range(11)), list(range(90, 101))]
    assert samples.eval_ids([0, 1, 2]) == [8, 9, 8]
    assert samples.order(range(3, 20), 5) == [data.sample_id(p, 8, 5) for p in range(3, 20)]


def test_validation_of_its_own_is_read_and_nothing_else_is_held_out(
    data: Any, fsdp: Any, tmp_path: Path
) -> None:
    write(tmp_path, 101, validation={"num_tokens": 31, "sha256": "v"})
    np.arange(500, 531, dtype=np.uint16).tofile(tmp_path / "validation.bin")
    samples = open_samples(data, tmp_path, 10, 3)
    assert samples.num_train == 10
    rows = samples.fetch(samples.eval_ids(range(3)))
    assert rows[:, 0].tolist() == [500, 510, 520]
    with pytest.raises(fsdp.errors.Stop, match=r"4 samples .* more than validation\.bin has"):
        open_samples(data, tmp_path, 10, 4)
    (tmp_path / "validation.bin").unlink()
    with pytest.raises(fsdp.errors.Stop, match=r"python prepare\.py"):
        open_samples(data, tmp_path, 10, 3)
    assert open_samples(data, tmp_path, 10, 0).num_train == 10


weights = st.lists(st.integers(1, 60), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(weights)
def test_at_no_place_a_corpus_is_a_sample_off_its_share(fsdp: Any, weights: list[int]) -> None:
    blend = fsdp.blend.Blend(weights)
    taken = [0] * len(weights)
    for position in range(2 * blend.period):
        corpus, index = blend.place(position)
        assert index == taken[corpus]  # the next one of that corpus, none left out
        taken[corpus] += 1
        assert blend.counts(position + 1) == taken
        for count, weight in zip(taken, weights, strict=True):
            assert abs(count - (position + 1) * weight / sum(weights)) < 1
    assert [count * sum(weights) for count in taken] == [
        w * 2 * blend.period for w in weights
    ]  # exact


@pytest.mark.parametrize(
    ("weights", "want"),
    [([7, 3], (7, 3)), ([0.7, 0.3], (7, 3)), ([50, 50], (1, 1)), ([0.1, 1], (1, 10)), ([5], (1,))],
)
def test_weights_become_the_smallest_whole_numbers(fsdp: Any, weights: Any, want: Any) -> None:
    assert fsdp.blend.Blend(weights).weights == want


@pytest.mark.parametrize(
    ("weights", "part"),
    [
        ([1, 0], "not positive numbers"),
        ([1, -2], "not positive numbers"),
        ([1, True], "not positive numbers"),
        ([1, "2"], "not positive numbers"),
        ([1, float("inf")], "not positive numbers"),
        ([0.3333333, 0.6666667], "use fewer digits"),
    ],
)
def test_bad_weights_are_one_line(fsdp: Any, weights: Any, part: str) -> None:
    with pytest.raises(fsdp.errors.Stop, match=part) as caught:
        fsdp.blend.Blend(weights)
    assert caught.value.code == 78


def test_no_sample_of_a_blend_comes_twice_in_an_epoch_of_its_corpus(
    data: Any, tmp_path: Path
) -> None:
    """Small and large corpora, and evaluation that is never trained on."""
    write(tmp_path / "large", 1001)
    write(tmp_path / "small", 201, first=2000)
    samples = open_samples(data, tmp_path, 10, 4, {"large": 0.75, "small": 0.25})
    held = samples.fetch(samples.eval_ids(range(4)))[:, 0].tolist()
    assert sorted(held) == [970, 980, 990, 2190]  # 3 of 4 are of the large one
    assert samples.num_train == 97 + 19
    first_tokens = samples.fetch(samples.order(range(4 * 97), 7))[:, 0].tolist()
    large = [token for token in first_tokens if token < 2000]
    small = [token for token in first_tokens if token >= 2000]
    assert len(large) == 3 * len(small) == 3 * 97
    for epoch in range(3):
        assert sorted(large[epoch * 97 : (epoch + 1) * 97]) == list(range(0, 970, 10))
    for epoch in range(5):
        assert sorted(small[epoch * 19 : (epoch + 1) * 19]) == list(range(2000, 2190, 10))
    assert set(held).isdisjoint(first_tokens)
    assert samples.facts["data.blend"] == {"large": 3, "small": 1}
    turned = open_samples(data, tmp_path, 10, 4, {"small": 0.25, "large": 0.75})
    assert turned.facts["data.tokens"] != samples.facts["data.tokens"]  # another order


def test_corpora_of_different_tokenizers_are_not_blended(
    data: Any, fsdp: Any, tmp_path: Path
) -> None:
    write(tmp_path / "a", 101, tokenizer="t.json", tokenizer_sha256="11")
    write(tmp_path / "b", 101, tokenizer="t.json", tokenizer_sha256="22")
    with pytest.raises(fsdp.errors.Stop, match="a and b were prepared with different tokenizers"):
        open_samples(data, tmp_path, 10, 0, {"a": 1, "b": 1})
    with pytest.raises(fsdp.errors.Stop, match=r"/c/meta\.json: file not found"):
        open_samples(data, tmp_path, 10, 0, {"a": 1, "c": 1})


@settings(max_examples=60, deadline=None)
@given(
    plan=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=6),
)
def test_batches_of_changing_size_leave_nothing_out(fsdp: Any, plan: list[tuple[int, int]]) -> None:
    """Attempts of some training steps each, every one with a size of its own."""
    saved: Any = None
    batch = position = 0
    for num_steps, size in plan:
        batches = fsdp.batches.go_on(saved, batch, size, ())
        for _ in range(num_steps):
            batch += 1
            assert batches.first(batch) == position
            position += size
        saved = json.loads(json.dumps(batches.sizes))
    again = fsdp.batches.Batches(tuple(map(tuple, saved)))
    assert [again.first(b) for b in range(1, batch + 1)][-1] == position - plan[-1][1]


def test_the_size_does_not_change_in_front_of_batches_to_be_left_out(fsdp: Any) -> None:
    saved = [[1, 0, 16]]
    assert fsdp.batches.go_on(saved, 30, 8, [(11, 25)]).first(31) == 480
    assert fsdp.batches.go_on(saved, 10, 16, [(11, 25)]).first(26) == 400
    with pytest.raises(fsdp.errors.Stop, match="keep 16 until that batch is passed") as caught:
        fsdp.batches.go_on(saved, 10, 8, [(11, 25)])
    assert caught.value.code == 78


@pytest.mark.parametrize(
    ("damage", "code", "words"),
    [
        (lambda d: (d / "meta.json").unlink(), 65, "python prepare.py"),
        (lambda d: (d / "tokens.bin").unlink(), 65, "python prepare.py"),
        (lambda d: (d / "tokens.bin").write_bytes(b"12345"), 65, "5 bytes instead of 101 x 2"),
        (lambda d: (d / "meta.json").write_text("{"), 65, "unreadable"),
        (lambda d: (d / "meta.json").write_text('{"dtype": "uint16"}'), 65, "unreadable"),
        (lambda d: write(d, 5), 78, "5 tokens leave no sample of 10"),
    ],
)
def test_bad_data_is_one_line(  # noqa: PLR0917  (a row of the table)
    data: Any, fsdp: Any, tmp_path: Path, damage: Any, code: int, words: str
) -> None:
    write(tmp_path, 101)
    damage(tmp_path)
    with pytest.raises(fsdp.errors.Stop) as caught:
        open_samples(data, tmp_path, 10, 0)
    assert caught.value.code == code
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
