#!/usr/bin/env python3
"""Kullback-Leibler divergence between two dumps of logits of the same tokens, in nats. NumPy only.

    tools/goldens/kl.py EXACT OTHER [--bar 0.005]

Both are .npy f32 [tokens, vocab], or both JSON reports of `run --json --prompt-logprobs 1000`. Row by row
KL(EXACT || OTHER); prints the mean and its standard error, quantiles, and how often the likeliest token is the same:
everywhere, and where the two likeliest of EXACT differ by more than 0.1 nat. Exits with 1 if the mean is over the bar
or the latter is below 98 %.

A report names the likeliest tokens only. Those that both name are compared one by one and all others as one event.
That can only lower a divergence, by what tells the two apart inside the rest: about the mean times the mass of the
rest, which is printed.
"""

import argparse
import json
import pathlib
import sys

import numpy as np


CLEAR, TOP1_BAR = 0.1, 0.98  # nats between the two likeliest; share of such positions where the likeliest is the same


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def divergence(exact: np.ndarray, other: np.ndarray, block: int = 64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per row: KL in nats (f64), whether the two agree on the likeliest token, by how much it leads in `exact`."""
    kl, same, lead = [], [], []
    for i in range(0, len(exact), block):
        p, q = log_softmax(exact[i : i + block]), log_softmax(other[i : i + block])
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
        best = np.partition(p, -2, axis=1)
        lead.append(best[:, -1] - best[:, -2])
    return np.concatenate(kl), np.concatenate(same), np.concatenate(lead)


def divergence_of_reports(exact: dict, other: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """The same from two reports' prompt_logprobs, and the mean probability of the tokens taken as one event."""
    if exact["prompt_ids"] != other["prompt_ids"]:
        raise ValueError("the two reports are of different prompts")
    kl, same, lead, rest = [], [], [], []
    for a, b in zip(exact["prompt_logprobs"], other["prompt_logprobs"]):
        if a is None or b is None:  # the first token has no probability
            continue
        both = [t for t in a if t in b]
        p = np.array([a[t] for t in both], dtype=np.float64)  # a null (no number) becomes NaN, and fails the bar
        q = np.array([b[t] for t in both], dtype=np.float64)
        left_p, left_q = (max(1 - np.exp(x).sum(), 1e-9) for x in (p, q))
        kl.append((np.exp(p) * (p - q)).sum() + left_p * np.log(left_p / left_q))
        same.append(max(a, key=a.get) == max(b, key=b.get))
        best = sorted(a.values())
        lead.append(best[-1] - best[-2])
        rest.append(left_p)
    return np.array(kl), np.array(same), np.array(lead), float(np.mean(rest))


def load(path: pathlib.Path) -> np.ndarray | dict:
    return np.load(path, mmap_mode="r") if path.suffix == ".npy" else json.loads(path.read_text())


def report(exact: np.ndarray | dict, other: np.ndarray | dict, bar: float) -> bool:
    """Prints the figures; true if the mean and the share of equal likeliest tokens are within their bars."""
    if isinstance(exact, dict) and isinstance(other, dict):
        kl, same, lead, rest = divergence_of_reports(exact, other)
        print(f"probability outside the tokens that both reports name: {rest:.4f}")
    elif isinstance(exact, dict) or isinstance(other, dict):
        raise ValueError("one file is a report and the other a dump")
    elif exact.ndim != 2 or exact.shape != other.shape or not len(exact):
        raise ValueError(f"found shapes {exact.shape} and {other.shape}, wanted two equal [tokens, vocab]")
    else:
        kl, same, lead = divergence(exact, other)
    error = kl.std() / np.sqrt(len(kl))
    median, p99 = np.quantile(kl, (0.5, 0.99))
    print(f"tokens {len(kl)}  mean KL {kl.mean():.6f} +- {error:.6f} nats")
    print(f"median {median:.6f}  p99 {p99:.6f}  max {kl.max():.6f}  same likeliest token {100 * same.mean():.2f} %")
    good = bool(kl.mean() <= bar)  # a NaN fails
    print(f"mean KL <= {bar}: {'ok' if good else 'FAILED'}")
    clear = same[lead > CLEAR]
    share = float(clear.mean()) if len(clear) else 1.0
    equal = share >= TOP1_BAR
    print(f"same likeliest token where it leads by > {CLEAR} nat: {100 * share:.2f} % of {len(clear)}, bar "
          f"{100 * TOP1_BAR:.0f} %: {'ok' if equal else 'FAILED'}", flush=True)  # fmt: skip
    return good and equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exact", type=pathlib.Path)
    parser.add_argument("other", type=pathlib.Path)
    parser.add_argument("--bar", type=float, default=0.005, help="nats, of the mean")
    args = parser.parse_args()
    try:
        return 0 if report(load(args.exact), load(args.other), args.bar) else 1
    except (OSError, ValueError, KeyError) as e:
        print(f"kl: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
