"""Seeded weights that C++ makes alike, bit for bit (src/model/testing/tiny_checkpoint.cc): nothing is stored.

Element i of a tensor is  f32(mean + deviation * z)  in double, z = sqrt(3) ((w0 + w1 + w2 + w3) 2^-32 - 2)  of the
four words of Philox 4x32-10 (Salmon et al. 2011; base/rng.h) at key `seed`, stream FNV-1a-64(name), counter i: mean 0,
deviation 1, nearly normal.
"""

import math

import numpy as np

MASK = np.uint64(0xFFFFFFFF)


def philox(seed: int, stream: int, counters: np.ndarray) -> list[np.ndarray]:
    """The four words of each block, as u64 arrays."""
    u64 = np.uint64
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    n = len(counters)
    c = [counters & MASK, counters >> u64(32), np.full(n, stream & 0xFFFFFFFF, u64), np.full(n, stream >> 32, u64)]
    for _ in range(10):
        a, b = c[0] * u64(0xD2511F53), c[2] * u64(0xCD9E8D57)
        c = [(b >> u64(32)) ^ c[1] ^ u64(k0), b & MASK, (a >> u64(32)) ^ c[3] ^ u64(k1), a & MASK]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def fnv1a(name: str) -> int:
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def values(seed: int, name: str, shape: list[int], mean: float, deviation: float) -> np.ndarray:
    words = philox(seed, fnv1a(name), np.arange(math.prod(shape), dtype=np.uint64))
    total = sum(w.astype(np.float64) for w in words)  # exact: below 2^34
    z = (total * 2.0**-32 - 2.0) * math.sqrt(3.0)
    return (mean + deviation * z).astype(np.float32).reshape(shape)


def token_ids(seed: int, count: int, vocab: int) -> list[int]:
    """Ids that C++ draws alike."""
    words = philox(seed, fnv1a("token ids"), np.arange(count, dtype=np.uint64))
    return [int(w) % vocab for w in words[0]]
