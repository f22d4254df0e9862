"""Goldens of dequantisation: random blocks of every GGUF type and what the gguf package makes of them.

    .venv/bin/python tools/goldens/quant.py [--check]

Writes tests/goldens/quant/TYPE.blocks.npy (u1 [rows, row_bytes]) and TYPE.values.npy (f4 [rows, row]). Bytes are
uniform, except that the f16 scales are finite and of ordinary size, since no quantiser writes others. Seeded:
--check makes them again and compares.
"""

import argparse
import pathlib

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "quant"
ROWS, SEED = 2, 20240229
# Byte offsets of the f16 fields of a block (spec/models.md 8.2).
HALVES = {
    "F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip


def make(name: str) -> tuple[np.ndarray, np.ndarray]:
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = 1024 // elements if elements == 1 else 512 // elements
    rng = np.random.default_rng([SEED, int(kind)])
    data = rng.integers(0, 256, (ROWS, blocks, size), dtype=np.uint8)
    for at in HALVES.get(name, []):
        scale = (rng.standard_normal((ROWS, blocks)) * 0.05).astype("<f2")
        data[:, :, at : at + 2] = scale.view(np.uint8).reshape(ROWS, blocks, 2)
    if name == "BF16":  # upper halves of ordinary floats
        values = rng.standard_normal((ROWS, blocks)).astype("<f4")
        data = values.view(np.uint8).reshape(ROWS, blocks, 4)[:, :, 2:].copy()
    if name == "Q8_0":  # the one value that quantisers avoid, and both ends
        data[0, 0, 2:5] = [128, 129, 127]
    data = data.reshape(ROWS, blocks * size)
    return data, gguf.quants.dequantize(data, kind).astype("<f4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    check = parser.parse_args().check
    OUT.mkdir(parents=True, exist_ok=True)
    for name in [*HALVES, "BF16"]:
        for part, value in zip(("blocks", "values"), make(name), strict=True):
            path = OUT / f"{name.lower()}.{part}.npy"
            if not check:
                np.save(path, value)
            elif not np.array_equal(np.load(path), value):
                raise SystemExit(f"{path}: differs from what gguf {part} gives now")
    print(f"{OUT}: {'unchanged' if check else 'written'}")


if __name__ == "__main__":
    main()
