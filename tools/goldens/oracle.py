"""What the NumPy oracles of the stages share: seeded numbers, writing goldens, checking them, a command line.

An oracle is `x_oracle.py` in the folder of stage x. It is written from the paper and our spec, never from the C++,
and has two functions: `examples()` asserts the worked examples of the spec, `goldens()` returns a list of Golden.

    python3 x_oracle.py           checks the examples and writes goldens/*.npy and goldens/README.md beside itself
    python3 x_oracle.py --check   checks the examples and that the goldens it makes are those stored
"""

import argparse
import pathlib
import sys
from typing import Callable, NamedTuple

import numpy as np

DTYPES = {"<f4", "<f2", "<i4", "|u1"}  # what base/npy.h reads
MOST_BYTES = 300_000  # per stage


class Golden(NamedTuple):
    """One array. `loose`: made with exp or long sums, so that another NumPy may differ in the last place."""

    name: str
    array: np.ndarray
    note: str
    loose: bool = False


class Rng:
    """Numbers that stay the same for every NumPy version: only raw 64-bit outputs of PCG64 and exact arithmetic."""

    def __init__(self, seed: int):
        self.bits = np.random.PCG64(seed)

    def uniform(self, *shape: int) -> np.ndarray:
        """f64 in [0, 1)."""
        n = int(np.prod(shape))
        raw = np.array([self.bits.random_raw() for _ in range(n)], dtype=np.uint64)
        return ((raw >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)

    def normal(self, *shape: int) -> np.ndarray:
        """Nearly Gaussian: the sum of 12 uniforms less 6; f64."""
        return self.uniform(*shape, 12).cumsum(-1)[..., -1] - 6.0

    def half(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """`normal` rounded to f16: values that a cache in f16 and one in f32 hold alike."""
        return (self.normal(*shape) * scale).astype(np.float16)

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        """i32 in [low, high)."""
        return (low + np.floor(self.uniform(*shape) * (high - low))).astype(np.int32)


def order(score: np.ndarray) -> np.ndarray:
    """Indices by (score descending, index ascending); a NaN ranks last, -0 equals +0."""
    s = np.where(np.isnan(score), -np.inf, score) + 0.0
    nan_last = np.isnan(score)
    return np.lexsort((np.arange(len(s)), -s, nan_last))


def clear_cut(score: np.ndarray, count: int, margin: float = 1e-4) -> bool:
    """Does rounding decide which `count` are best? True where the scores at the cut differ by more than `margin`."""
    o = order(score)
    return count <= 0 or count >= len(score) or bool(score[o[count - 1]] - score[o[count]] > margin)


def flat(lists: list[np.ndarray]) -> tuple[np.ndarray, list[int]]:
    """Ragged i32 lists end to end, and where each begins."""
    starts = np.cumsum([0] + [len(x) for x in lists]).tolist()
    return np.concatenate([np.asarray(x, np.int32) for x in lists] or [np.zeros(0, np.int32)]), starts[:-1]


def table(rows: list[list[int]]) -> np.ndarray:
    return np.array(rows, dtype=np.int32)


def readme(stage: str, goldens: list[Golden]) -> str:
    names = {"<f4": "f32", "<f2": "f16", "<i4": "i32", "|u1": "u8"}
    lines = [
        f"# Goldens of {stage}",
        "",
        f"Written by `{stage}_oracle.py`.",
        "",
        "| File | Type and shape | Holds |",
        "|---|---|---|",
    ]
    lines += [f"| `{g.name}.npy` | {names[g.array.dtype.str]} {list(g.array.shape)} | {g.note} |" for g in goldens]
    return "\n".join(lines) + "\n"


def same(stored: np.ndarray, made: np.ndarray, loose: bool) -> bool:
    if stored.dtype != made.dtype or stored.shape != made.shape:
        return False
    if loose:
        return bool(np.allclose(stored, made, rtol=2e-6, atol=1e-7, equal_nan=True))
    return stored.tobytes() == made.tobytes()


def check(folder: pathlib.Path, goldens: list[Golden]) -> list[str]:
    """What differs between the stored goldens and these, a line each."""
    wrong = []
    for g in goldens:
        path = folder / f"{g.name}.npy"
        if not path.exists():
            wrong.append(f"{path}: missing")
        elif not same(np.load(path), g.array, g.loose):
            wrong.append(f"{path}: differs from what the oracle makes now")
    extra = {p.stem for p in folder.glob("*.npy")} - {g.name for g in goldens}
    wrong += [f"{folder / name}.npy: no oracle makes it" for name in sorted(extra)]
    return wrong


def main(file: str, examples: Callable[[], None], goldens: Callable[[], list[Golden]]) -> int:
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare with what is stored")
    args = parser.parse_args()
    stage = pathlib.Path(file).stem.removesuffix("_oracle")
    folder = pathlib.Path(file).resolve().parent / "goldens"
    examples()
    made = [g._replace(array=np.ascontiguousarray(g.array)) for g in goldens()]
    size = sum(g.array.nbytes for g in made)
    for g in made:
        assert g.array.dtype.str in DTYPES, f"{g.name}: {g.array.dtype}"
    assert size < MOST_BYTES, f"{stage}: {size} bytes of goldens, wanted < {MOST_BYTES}"
    if args.check:
        wrong = check(folder, made)
        print("\n".join(wrong) if wrong else f"{stage}: examples hold, {len(made)} goldens as stored")
        return 1 if wrong else 0
    folder.mkdir(exist_ok=True)
    for g in made:
        np.save(folder / f"{g.name}.npy", g.array)
    (folder / "README.md").write_text(readme(stage, made))
    print(f"{stage}: examples hold, {len(made)} goldens, {size} bytes")
    return 0
