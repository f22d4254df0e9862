#!/usr/bin/env python3
"""Kullback-Leibler divergence between two dumps of logits of the same tokens, in nats. NumPy only.

    tools/goldens/kl.py EXACT.npy OTHER.npy [--bar 0.005]

Both are .npy f32 [tokens, vocab]. Row by row KL(softmax(EXACT) || softmax(OTHER)); prints the mean and its
standard error, quantiles, and how often the likeliest token is the same. Exits with 1 if the mean is over the bar.
"""

import argparse
import pathlib
import sys

import numpy as np


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def divergence(exact: np.ndarray, other: np.ndarray, block: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Per row: KL in nats (f64), and whether the two agree on the likeliest token."""
    kl, same = [], []
    for i in range(0, len(exact), block):
        p, q = log_softmax(exact[i : i + block]), log_softmax(other[i : i + block])
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
    return np.concatenate(kl), np.concatenate(same)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exact", type=pathlib.Path)
    parser.add_argument("other", type=pathlib.Path)
    parser.add_argument("--bar", type=float, default=0.005, help="nats, of the mean")
    args = parser.parse_args()
    try:
        exact, other = (np.load(p, mmap_mode="r") for p in (args.exact, args.other))
    except (OSError, ValueError) as e:
        print(f"kl: {e}", file=sys.stderr)
        return 1
    if exact.ndim != 2 or exact.shape != other.shape or not len(exact):
        print(f"kl: found shapes {exact.shape} and {other.shape}, wanted two equal [tokens, vocab]", file=sys.stderr)
        return 1
    kl, same = divergence(exact, other)
    error = kl.std() / np.sqrt(len(kl))
    median, p99 = np.quantile(kl, (0.5, 0.99))
    print(f"tokens {len(kl)}  mean KL {kl.mean():.6f} +- {error:.6f} nats")
    print(f"median {median:.6f}  p99 {p99:.6f}  max {kl.max():.6f}  same likeliest token {100 * same.mean():.2f} %")
    good = bool(kl.mean() <= args.bar)  # a NaN fails
    print(f"mean <= {args.bar}: {'ok' if good else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
