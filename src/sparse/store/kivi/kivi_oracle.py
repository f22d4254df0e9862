#!/usr/bin/env python3
"""NumPy oracle of KIVI (Liu et al. 2024): keys per channel over 32 tokens, values per token over 32 channels."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "tools" / "goldens"))
from oracle import Golden, Rng, main  # noqa: E402

F32 = np.float32


def affine(
    x: np.ndarray, axis: int, bits: int, meta=np.float16, least=None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes (i32), scale (`meta`) and minimum (`least`, by default x's dtype) of x along `axis`.

    Scale and minimum are rounded to what is stored first, and the codes computed from the rounded ones in f32: a true
    division, ties to even. A scale of 0 (no range, or one too small for the scale's dtype) gives code 0.
    """
    top = F32((1 << bits) - 1)
    low = x.astype(F32).min(axis=axis, keepdims=True) + F32(0)  # which of -0 and +0 is less is nobody's business: +0
    scale = ((x.astype(F32).max(axis=axis, keepdims=True) - low) / top).astype(meta)
    low = low.astype(x.dtype if least is None else least)
    s, m = scale.astype(F32), low.astype(F32)
    codes = np.rint(np.clip((x.astype(F32) - m) / np.where(s == 0, F32(1), s), F32(0), top))
    return np.where(s == 0, 0, codes).astype(np.int32), scale, low


def restore(codes: np.ndarray, scale: np.ndarray, low: np.ndarray) -> np.ndarray:
    """code * scale + minimum in f32 (the product is exact, so a fused multiply-add gives the same)."""
    return codes.astype(F32) * scale.astype(F32) + low.astype(F32)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """u8 along the last axis: 8 / bits codes a byte, the first in the lowest bits."""
    n = 8 // bits
    lanes = codes.astype(np.uint32).reshape(codes.shape[:-1] + (-1, n))
    return (lanes << (np.arange(n, dtype=np.uint32) * np.uint32(bits))).sum(axis=-1).astype(np.uint8)


def words(codes: np.ndarray, bits: int) -> list[str]:
    """The bytes as the spec prints them: little-endian 32-bit words."""
    return [f"{w:08X}" for w in pack(codes, bits).reshape(-1, 4).copy().view("<u4").ravel()]


def packed_tokens(tokens: int, residual: int, group: int = 32) -> int:
    """How many of a row's oldest tokens are encoded: whole groups, with at least `residual` newest ones left exact."""
    return max(0, (tokens - residual) // group * group)


def examples() -> None:
    """methods-compressed.md 13.2."""
    k = np.array(
        [
            [0, -1, 8, 0.5, 0.25, -3, 1, 2],
            [1, -0.5, 9, 0.5, -0.25, 3, 1.5, 2],
            [2, 0, 10, 0.5, 0.75, 0, 0, 2],
            [3, 0.5, 12, 0.5, -0.75, 1, 0.5, 2],
        ],
        F32,
    )
    c, s, m = affine(k, 0, 4, F32)
    assert m[0].tolist() == [0, -1, 8, 0.5, -0.75, -3, 0, 2]
    assert np.allclose(s[0], [0.2, 0.1, 0.26666668, 0, 0.1, 0.4, 0.1, 0])
    assert c.tolist() == [
        [0, 0, 0, 0, 10, 0, 10, 0],
        [5, 5, 4, 0, 5, 15, 15, 0],
        [10, 10, 7, 0, 15, 8, 0, 0],
        [15, 15, 15, 0, 0, 10, 5, 0],
    ]
    assert words(c, 4) == ["0A0A0000", "0FF50455", "008F07AA", "05A00FFF"]
    back = restore(c, s, m)
    want = k.copy()
    want[1, 2], want[2, 2], want[2, 5] = 9.066667, 9.866667, 0.2
    assert np.allclose(back, want, atol=1e-6)
    q = np.array([1, -1, 0.5, 2, 0, 1, -2, 0.25], F32)
    assert np.allclose(k @ q, [1.5, 7.5, 8.5, 10]) and np.allclose(back @ q, [1.5, 7.533333, 8.633333, 10], atol=2e-6)
    folded = c @ (q * s[0]) + (q * m[0]).sum()
    assert (q * m[0]).sum() == 3.5 and np.allclose(folded, back @ q, atol=2e-6)
    c, s, m = affine(k, 0, 2, F32)
    assert np.allclose(s[0], [1, 0.5, 1.3333334, 0, 0.5, 2, 0.5, 0])
    assert c.tolist() == [
        [0, 0, 0, 0, 2, 0, 2, 0],
        [1, 1, 1, 0, 1, 3, 3, 0],
        [2, 2, 2, 0, 3, 2, 0, 0],
        [3, 3, 3, 0, 0, 2, 1, 0],
    ]
    assert pack(c, 2).copy().view("<u2").ravel().tolist() == [0x2200, 0x3D15, 0x0B2A, 0x183F]
    assert np.allclose(restore(c, s, m) @ q, [1.5, 7.666667, 9.833333, 10], atol=2e-6)
    v = np.array([[0.1, 0.2, 0.3, 0.4, -1, 1, 0, 0.5], [2, 2, 2, 2, 0, 0, 0, 3]], F32).reshape(2, 2, 4)
    c, s, m = affine(v, 2, 4, F32)
    assert c.reshape(2, 8).tolist() == [[0, 5, 10, 15, 0, 15, 7, 11], [0, 0, 0, 0, 0, 0, 0, 15]]
    assert words(c.reshape(2, 8), 4) == ["B7F0FA50", "F0000000"]
    assert np.allclose(restore(c, s, m)[0].ravel(), [0.1, 0.2, 0.3, 0.4, -1, 1, -0.0666666, 0.4666667], atol=1e-6)
    c, s, m = affine(v, 2, 2, F32)
    assert c.reshape(2, 8).tolist() == [[0, 1, 2, 3, 0, 3, 2, 2], [0, 0, 0, 0, 0, 0, 0, 3]]
    assert pack(c.reshape(2, 8), 2).copy().view("<u2").ravel().tolist() == [0xACE4, 0xC000]
    assert affine(np.array([0, 0.5, 2.5, 15], F32), 0, 4, F32)[0].tolist() == [0, 0, 2, 15]
    x = np.array([0.013, -0.21, 0.4, 1.7, -0.9, 0.05, 0.6, -1.3], F32)
    c, s, m = affine(x, 0, 4, np.float16, np.float16)
    assert m.view(np.uint16)[0] == 0xBD33 and s.view(np.uint16)[0] == 0x3266
    assert c.tolist() == [7, 5, 9, 15, 2, 7, 10, 0] and words(c, 4) == ["0A72F957"]
    want = [0.0998535, -0.3000488, 0.4997559, 1.6994629, -0.8999023, 0.0998535, 0.699707, -1.2998047]
    assert np.allclose(restore(c, s, m), want, atol=1e-6)
    for tokens, want in ((31, 0), (32, 32), (33, 32), (63, 32), (64, 64), (100, 96)):
        assert packed_tokens(tokens, 0) == want
    for tokens, want in ((0, 0), (32, 0), (63, 0), (64, 32), (95, 32), (96, 64)):
        assert packed_tokens(tokens, 32) == want


def bank(dtype) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values [64 tokens, 2 heads, 64 channels] full of traps: no range, tiny and huge ones, ties, -0."""
    rng = Rng(41)
    k, v = rng.half(64, 2, 64).astype(dtype), rng.half(64, 2, 64).astype(dtype)
    t = np.arange(64)
    k[:, 0, 0] = 0.75  # no range
    k[:, 0, 1] = np.where(t % 2, 2.0**-24, 0)  # a range whose scale is 0 in f16
    k[:, 0, 2] = (t * 7) % 31  # scale 2 in 4 bits: odd values are ties
    k[:, 0, 3] *= dtype(40)  # an outlier channel
    k[:, 0, 4] = np.where(t % 3 == 0, 65504, -65504)  # the ends of f16
    k[:, 0, 5] = np.where(t % 2, -0.0, 0.0)
    k[:, 0, 6] = k[:, 0, 6] * dtype(2.0**-14)  # subnormal scale
    k[:, 1, 7] = 1000 + (t % 32) / 2  # a small range far from 0
    v[0] = 0
    v[1, 0] = -3.5
    v[2, 0, :32] = np.arange(32) % 31  # ties
    v[3, 1, 40] = 65504
    v[4] = v[4] * dtype(2.0**-14)
    v[5, 0] = np.where(np.arange(64) % 2, 2.0**-24, 0)
    return k, v


def encode(k: np.ndarray, v: np.ndarray, bits: int) -> dict[str, np.ndarray]:
    """All planes of k, v [tokens, heads, dim] (tokens % 32 == 0), names and shapes as the codec declares them."""
    tokens, heads, dim = k.shape
    items = k.reshape(-1, 32, heads, dim).transpose(0, 2, 1, 3)  # [group of tokens, head, 32, dim]
    kc, ks, km = affine(items, 2, bits)
    vals = v.reshape(-1, 32, heads, dim).transpose(0, 2, 1, 3).reshape(-1, heads, 32, dim // 32, 32)
    vc, vs, vm = affine(vals, 4, bits)
    whole = lambda x: x.transpose(0, 2, 1, 3).reshape(tokens, heads, dim)  # noqa: E731
    return {
        "k_codes": pack(kc, bits),
        "k_min": km[:, :, 0],
        "k_scale": ks[:, :, 0],
        "v_codes": pack(vc.reshape(items.shape), bits),
        "v_min": vm[..., 0],
        "v_scale": vs[..., 0],
        "k_values": whole(restore(kc, ks, km)),
        "v_values": whole(restore(vc, vs, vm).reshape(items.shape)),
    }


NOTES = {
    "k_codes": "[group of 32 tokens, KV head, token, bytes]",
    "k_min": "[group, KV head, channel]",
    "k_scale": "[group, KV head, channel]",
    "v_codes": "[group of 32 tokens, KV head, token, bytes]",
    "v_min": "[group, KV head, token, 32 channels]",
    "v_scale": "[group, KV head, token, 32 channels]",
    "k_values": "code * scale + min [token, KV head, channel]",
    "v_values": "the same of the values",
}


def goldens() -> list[Golden]:
    out = []
    k, v = bank(np.float16)
    out += [Golden("k", k, "keys [token, KV head, channel], two groups"), Golden("v", v, "values")]
    for bits in (4, 2):
        out += [Golden(f"b{bits}_{n}", a, f"{bits} bits: {NOTES[n]}") for n, a in encode(k, v, bits).items()]
    # A cache in f32 (exact mode): the scale is f16 all the same, the minimum f32. Values that f16 does not hold.
    rng = Rng(42)
    k, v = rng.normal(32, 1, 32).astype(F32), rng.normal(32, 1, 32).astype(F32)
    out += [Golden("f32_k", k, "keys in f32, one group"), Golden("f32_v", v, "values in f32")]
    out += [Golden(f"f32_b4_{n}", a, f"4 bits: {NOTES[n]}") for n, a in encode(k, v, 4).items()]
    flush = [[packed_tokens(n, r) for n in range(200)] for r in (0, 32, 64)]
    out.append(
        Golden("flush", np.array(flush, np.int32), "encoded tokens of a row of 0..199 tokens, residual 0, 32, 64")
    )
    return out


if __name__ == "__main__":
    sys.exit(main(__file__, examples, goldens))
