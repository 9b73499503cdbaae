"""The network itself: shapes, attention, positions, initial weights, arithmetic of FLOPs."""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "llama2_fsdp"
PUBLISHED = {"7b": 6_738_415_616, "13b": 13_015_864_320, "70b": 68_976_648_192}


def config(fsdp: Any, *words: str) -> Any:
    return fsdp.config.load(RECIPE, list(words))


def make(fsdp: Any, **changes: Any) -> Any:
    shape = replace(config(fsdp).model, **changes)
    model = fsdp.model.Llama(shape, seq_len=32)
    with torch.no_grad():
        model.reset_buffers()
    fsdp.model.init_weights(model, seed=0)
    return model


@pytest.mark.parametrize("size", sorted(p.stem for p in (RECIPE / "sizes").glob("*.yaml")))
def test_sizes_have_the_published_number_of_parameters(fsdp: Any, size: str) -> None:
    conf = config(fsdp, f"model.size={size}")
    with torch.device("meta"):
        model = fsdp.model.Llama(conf.model, conf.train.seq_len)
    count = sum(p.numel() for p in model.parameters())
    assert count == fsdp.model.count_parameters(conf.model)
    if size != "tiny":
        assert count == PUBLISHED[size]


def test_grouped_query_attention_equals_attention_written_with_loops(fsdp: Any) -> None:
    model = make(fsdp, num_heads=8, num_kv_heads=2)
    layer, shape, length = model.layers[0].attention, model.shape, 7
    x = torch.randn(2, length, shape.dim, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        got = layer(x, model.rope[:, :length])
        q, k, v = (w(x).unflatten(-1, (-1, shape.head_dim)) for w in (layer.wq, layer.wk, layer.wv))
        mixed = torch.zeros_like(q)
        for b in range(2):
            for h in range(8):
                kv = h // 4  # query heads 0..3 share key head 0, 4..7 share 1
                for t in range(length):
                    turn = [_turned(model, k[b, s, kv], s) for s in range(t + 1)]
                    scores = torch.stack([_turned(model, q[b, t, h], t) @ key for key in turn])
                    weights = torch.softmax(scores / math.sqrt(shape.head_dim), 0)
                    mixed[b, t, h] = (weights[:, None] * v[b, : t + 1, kv]).sum(0)
        want = layer.wo(mixed.flatten(-2))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def _turned(model: Any, x: Any, position: int) -> Any:
    """Complex multiplication by exp(i x position x frequency), as in the paper on RoPE."""
    pairs = torch.view_as_complex(x.reshape(-1, 2))
    dim = x.shape[-1]
    frequency = model.shape.rope_theta ** (-torch.arange(0, dim, 2) / dim)
    angle = torch.polar(torch.ones(dim // 2), position * frequency)
    return torch.view_as_real(pairs * angle).flatten()


def test_rope_keeps_lengths_and_depends_on_distance_only(fsdp: Any) -> None:
    rope = fsdp.model.rope_table(16, 64, 10000.0, torch.device("cpu"))
    generator = torch.Generator().manual_seed(2)
    q, k = torch.randn(2, 16, generator=generator)

    def at(x: Any, position: int) -> Any:
        return fsdp.model.rotate(x[None, None, None], rope[:, position : position + 1]).flatten()

    assert torch.equal(at(q, 0), q)
    torch.testing.assert_close(at(q, 50).norm(), q.norm())
    for distance in (0, 1, 13):
        dots = torch.stack([at(q, p + distance) @ at(k, p) for p in (0, 5, 40)])
        torch.testing.assert_close(dots, dots[0].expand(3), rtol=1e-4, atol=1e-5)
    assert not torch.isclose(at(q, 1) @ at(k, 0), at(q, 0) @ at(k, 0))


def test_no_token_sees_the_future(fsdp: Any) -> None:
    model = make(fsdp)
    tokens = torch.arange(20)[None]
    changed = tokens.clone()
    changed[0, 12:] += 100
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :12], after[:, :12])
    assert not torch.equal(before[:, 12], after[:, 12])


def test_rms_norm_by_hand(fsdp: Any) -> None:
    norm = fsdp.model.RMSNorm(4, eps=0.0)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        out = norm(torch.tensor([1.0, -1.0, 1.0, -1.0]) * 5)
    torch.testing.assert_close(out, torch.tensor([1.0, -2.0, 3.0, -4.0]))


def test_initial_weights_are_the_same_however_rows_are_cut(fsdp: Any) -> None:
    whole = torch.empty(200, 8)
    fsdp.model._draw_rows(whole, 0, 200, "0/some.name", 0.02)
    for cuts in ([0, 200], [0, 1, 63, 64, 65, 200], [0, 50, 100, 150, 200], [0, 0, 199, 200]):
        for low, high in itertools.pairwise(cuts):
            part = torch.empty(high - low, 8)
            fsdp.model._draw_rows(part, low, 200, "0/some.name", 0.02)
            assert torch.equal(part, whole[low:high])
    other = torch.empty(200, 8)
    fsdp.model._draw_rows(other, 0, 200, "0/other.name", 0.02)
    assert not torch.isclose(other, whole).any(dim=1).all()


def test_initial_weights_are_the_recorded_ones(fsdp: Any) -> None:
    """A change here changes every loss of every run that starts afterwards."""
    model = make(fsdp)
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode() + parameter.detach().numpy().tobytes())
        if parameter.dim() == 2:
            residual = name.endswith(("wo.weight", "w2.weight"))
            want = 0.02 / math.sqrt(8) if residual else 0.02
            assert parameter.std().item() == pytest.approx(want, rel=0.03), name
    want_digest = "93044ec099cbed244d9ef792a66fc566019c1bfc61cd47b54225c56085771c75"
    assert digest.hexdigest() == want_digest


def test_nothing_is_left_uninitialised_after_materialising(fsdp: Any) -> None:
    with torch.device("meta"):
        model = fsdp.model.Llama(config(fsdp).model, 32)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(math.nan)
        model.reset_buffers()
    fsdp.model.init_weights(model, seed=0)
    assert all(t.isfinite().all() for t in (*model.parameters(), *model.buffers()))
    want = make(fsdp)
    assert torch.equal(model.rope, want.rope)
    assert torch.equal(model.layers[3].attention.wo.weight, want.layers[3].attention.wo.weight)


def test_recomputing_activations_changes_no_gradient(fsdp: Any) -> None:
    tokens = torch.arange(64).view(2, 32)
    gradients = []
    for recompute in ("none", "full", 2):
        model = fsdp.model.Llama(config(fsdp).model, 32, recompute)
        with torch.no_grad():
            model.reset_buffers()
        fsdp.model.init_weights(model, seed=0)
        count = sum(layer.recompute for layer in model.layers)
        assert count == {"none": 0, "full": 4, 2: 2}[recompute]
        fsdp.train.cross_entropy(model, torch.cat((tokens, tokens[:, :1]), 1)).mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    for other in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], other, strict=True))


def test_flops_are_those_that_torch_counts(fsdp: Any) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = make(fsdp)
    tokens = torch.arange(64).view(2, 32)
    # The plain kernel: its matrix products are seen by the counter, a fused one on CPU is not.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    want = fsdp.model.flops_per_token(model.shape, 32) * tokens.numel()
    assert counter.get_total_flops() == want


def test_learning_rate_warms_up_and_falls_as_a_cosine(fsdp: Any) -> None:
    options = replace(config(fsdp).optim, lr=1.0, warmup_steps=10, min_lr_ratio=0.1)
    rates = [fsdp.train.learning_rate(options, step, 110) for step in range(1, 111)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == 1.0
    assert rates[59] == pytest.approx(0.55)
    assert rates[109] == pytest.approx(0.1)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    none = replace(options, warmup_steps=0)
    assert fsdp.train.learning_rate(none, 110, 110) == pytest.approx(0.1)
