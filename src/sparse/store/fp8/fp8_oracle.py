#!/usr/bin/env python3
"""NumPy oracle of the fp8 store: OCP E4M3FN and E5M2 (Micikevicius et al. 2022), one scale per token and head."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "tools" / "goldens"))
from oracle import Golden, Rng, main  # noqa: E402

F32 = np.float32
LEAST_SCALE = F32(1e-30)


class Format:
    """A sign-magnitude 8-bit float; `positive` holds the finite values of codes 0, 1, 2, ... ascending."""

    def __init__(self, name: str, mantissa: int, bias: int, finite: int):
        self.name = name
        steps = 1 << mantissa
        codes = np.arange(finite)
        e, m = codes // steps, codes % steps
        self.positive = np.where(e == 0, m / steps * 2.0 ** (1 - bias), (1 + m / steps) * 2.0 ** (e - bias))
        self.top = F32(self.positive[-1])

    def table(self) -> np.ndarray:
        """f32 value of each of the 256 codes; those past the finite ones are inf (E5M2 0x7C) and NaN."""
        half = np.full(128, np.nan, F32)
        half[: len(self.positive)] = self.positive
        if self.name == "e5m2":
            half[0x7C] = np.inf
        return np.concatenate((half, -half))

    def encode(self, x: np.ndarray) -> np.ndarray:
        """Nearest code, ties to the even one, saturating: all beyond the largest value become that value."""
        x = np.asarray(x, F32)
        a = np.minimum(np.abs(x.astype(np.float64)), float(self.top))
        above = np.clip(np.searchsorted(self.positive, a), 1, len(self.positive) - 1)
        down, up = a - self.positive[above - 1], self.positive[above] - a
        nearest = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, above - 1)
        return (nearest + np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        return self.table()[codes]


E4M3 = Format("e4m3", 3, 7, 127)  # S.EEEE.MMM, 0x7F is NaN, no infinity, top 448
E5M2 = Format("e5m2", 2, 15, 124)  # S.EEEEE.MM, 0x7C is infinity, top 57344


def scales(x: np.ndarray, fmt: Format, per_head: bool) -> np.ndarray:
    """f32 [tokens, kv_heads] (or [tokens, 1]) that multiplies codes: largest magnitude / top, at least 1e-30."""
    amax = np.abs(x.astype(F32)).max(axis=(2,) if per_head else (1, 2), keepdims=True)[..., 0].reshape(len(x), -1)
    return np.maximum(amax / fmt.top, LEAST_SCALE).astype(F32)


def store(x: np.ndarray, fmt: Format, per_head: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes u8 [tokens, kv_heads, dim], scales, and the values f32 that a later read sees (code value * scale)."""
    s = scales(x, fmt, per_head)
    codes = fmt.encode(x.astype(F32) / s[..., None])  # a true division in f32
    return codes, s, fmt.decode(codes) * s[..., None]


def examples() -> None:
    """methods-compressed.md 13.1, and codes that the formats' definition fixes."""
    pairs = [
        (1, 0x38, 1),
        (0.1, 0x1D, 0.1015625),
        (0.3, 0x2A, 0.3125),
        (3.3, 0x45, 3.25),
        (17, 0x58, 16),
        (19, 0x5A, 20),
        (2**-9, 0x01, 0.001953125),
        (2**-10, 0x00, 0),
        (300, 0x79, 288),
        (447, 0x7E, 448),
        (448, 0x7E, 448),
        (1000, 0x7E, 448),
        (-0.0625, 0x98, -0.0625),
        (0.0175, 0x09, 0.017578125),
        (np.inf, 0x7E, 448),
        (-0.0, 0x80, 0),
    ]
    for x, code, value in pairs:
        found = E4M3.encode(np.array([x], F32))
        assert found[0] == code and E4M3.decode(found)[0] == value, (x, found)
    fixed = np.array([0.137, -0.5, 1.0, 8.9, 9.5], F32) / F32(0.02)
    codes = E4M3.encode(fixed)
    assert codes.tolist() == [0x4E, 0xDC, 0x64, 0x7E, 0x7E]
    assert np.allclose(E4M3.decode(codes) * F32(0.02), [0.14, -0.48, 0.96, 8.96, 8.96])
    codes, s, back = store(np.array([[[0.25, -1, 3.5, 0.01]]], F32), E4M3, True)
    assert s[0, 0] == 0.0078125 and codes[0, 0].tolist() == [0x60, 0xF0, 0x7E, 0x3A]
    assert back[0, 0].tolist() == [0.25, -1, 3.5, 0.009765625]
    for x, code in (
        (1, 0x3C),
        (57344, 0x7B),
        (61440, 0x7B),
        (1e9, 0x7B),
        (2**-16, 0x01),
        (2**-17, 0x00),
        (1.125, 0x3C),
        (1.375, 0x3E),
    ):
        assert E5M2.encode(np.array([x], F32))[0] == code, x
    for fmt in (E4M3, E5M2):
        finite = np.arange(len(fmt.positive))
        assert (fmt.encode(fmt.decode(finite)) == finite).all()


def encode_inputs(fmt: Format) -> np.ndarray:
    """Every value, every midpoint and its two f32 neighbours, the ends, and some others; both signs."""
    middle = ((fmt.positive[1:] + fmt.positive[:-1]) / 2).astype(F32)
    beside = [np.nextafter(middle, F32(np.inf)), np.nextafter(middle, F32(0))]
    ends = np.array([0, 1e-45, 1e-38, 1e-12, fmt.top * F32(1.01), 1e30, np.inf], F32)
    rest = (Rng(31).normal(64) * 10.0 ** Rng(32).integers(-4, 4, 64)).astype(F32)
    x = np.concatenate([fmt.positive.astype(F32), middle, *beside, ends, np.abs(rest)])
    return np.concatenate((x, -x))


def goldens() -> list[Golden]:
    out = []
    for fmt in (E4M3, E5M2):
        x = encode_inputs(fmt)
        out += [
            Golden(
                f"{fmt.name}_table",
                fmt.table(),
                "value of each code; the non-finite codes never come out of the encoder",
            ),
            Golden(f"{fmt.name}_in", x, "values, midpoints and their neighbours, ends"),
            Golden(f"{fmt.name}_out", fmt.encode(x), "their codes"),
        ]
    x = Rng(33).half(33, 3, 64)
    x[0] = 0  # nothing: the least scale, codes 0
    x[1, 0] = -0.0  # codes 0x80
    x[2, 1] = 0
    x[2, 1, 5] = 2**-24  # one subnormal of f16
    x[3, :, ::7] *= np.float16(300)  # outliers
    x[4, 0, 3] = 65504
    x[5] *= np.float16(1e-4)
    x[15, 2] = x[15, 2, 0]  # all equal
    out.append(Golden("kv", x, "keys or values as projected [token, KV head, dim]"))
    for fmt in (E4M3, E5M2):
        for per_head in (True, False):
            codes, s, back = store(x, fmt, per_head)
            name = f"{fmt.name}_{'head' if per_head else 'token'}"
            what = "[token, KV head]" if per_head else "[token, 1]"
            out.append(Golden(f"{name}_scale", s, f"{what}: largest magnitude / {fmt.top:.0f}, at least 1e-30"))
            out.append(Golden(f"{name}_codes", codes, "[token, KV head, dim]: codes of kv / scale"))
            if per_head and fmt is E4M3:
                out.append(Golden(f"{name}_values", back, "code value * scale"))
    return out


if __name__ == "__main__":
    sys.exit(main(__file__, examples, goldens))
