#!/usr/bin/env python3
"""NumPy oracle of Quest (Tang et al. 2024): read the units whose key bounds promise the largest logit."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "tools" / "goldens"))
from oracle import Golden, Rng, clear_cut, flat, main, order, table  # noqa: E402


def unit_tokens(tokens: int, unit: int) -> list[int]:
    """Tokens in each unit of an unbroken row."""
    return [min(unit, tokens - i) for i in range(0, tokens, unit)]


def bounds(k: np.ndarray, held: list[int], unit: int) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest key per unit, KV head and channel, [units, kv_heads, dim], of keys as stored.

    k [ordinals, kv_heads, dim]; unit u holds its first held[u] ordinals from u * unit on.
    """
    spans = [k[u * unit : u * unit + n].astype(np.float64) for u, n in enumerate(held)]
    shape = (-1,) + k.shape[1:]
    lo = np.array([s.min(axis=0) for s in spans]).reshape(shape)
    hi = np.array([s.max(axis=0) for s in spans]).reshape(shape)
    return lo + 0.0, hi + 0.0  # which of -0 and +0 is the lesser is left open: always +0 here


def unit_scores(q: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    """Per unit the largest over all query heads of sum_d max(q_d lo_d, q_d hi_d), f64; q [q_heads, dim]."""
    group = q.shape[0] // lo.shape[1]
    q = q.astype(np.float64)[None]
    lo, hi = np.repeat(lo, group, axis=1), np.repeat(hi, group, axis=1)
    return np.maximum(q * lo, q * hi).sum(axis=2).max(axis=1, initial=-np.inf)


def select(score: np.ndarray, held: list[int], unit: int, budget: int) -> list[int]:
    """Units to read, ascending.

    The budget buys max(3, budget // unit) units. One is the unit that holds the token of the step: if the last
    stored unit is not full, it is that one and is read unscored; else the token begins a unit of its own.
    """
    chosen = max(3, budget // unit) - 1
    last = [len(held) - 1] if held and held[-1] < unit else []
    scored = len(held) - len(last)
    return sorted(order(score[:scored])[:chosen].tolist() + last)


def examples() -> None:
    """methods-dynamic.md 2.4, Q-1, Q-2, Q-5 (there `n` counts the token of the step)."""
    h0 = [[1, 0, -1], [0, 2, -1], [3, -2, 0], [-1, 1, 1], [0, 0, 4], [2, 2, 0], [-3, 1, 2], [1, -1, -2]]
    h1 = [[0, 1, 1], [1, -1, 0], [-2, 0, 3], [2, 1, -1], [1, 1, 1], [0, -3, 2], [4, 0, 0], [-1, 2, -2]]
    k = np.array([h0, h1], dtype=np.float64).transpose(1, 0, 2)
    lo, hi = bounds(k, [2] * 4, 2)
    assert hi[:, 0].tolist() == [[1, 2, -1], [3, 1, 1], [2, 2, 4], [1, 1, 2]]
    assert lo[:, 0].tolist() == [[0, 0, -1], [-1, -2, 0], [0, 0, 0], [-3, -1, -2]]
    assert hi[:, 1].tolist() == [[1, 1, 1], [2, 1, 3], [1, 1, 2], [4, 2, 0]]
    assert lo[:, 1].tolist() == [[0, -1, 0], [-2, 0, -1], [0, -3, 1], [-1, 0, -2]]
    q = np.array([[1, 2, -1], [-1, 0, 2], [2, -1, 0], [0, 1, -3]])
    single = [[6, 5, 6, 5], [-2, 3, 8, 7], [3, 4, 5, 8], [1, 4, -2, 8]]
    for a in range(4):
        assert unit_scores(q[a : a + 1], lo[:, a // 2][:, None], hi[:, a // 2][:, None]).tolist() == single[a]
        true = (k[:, a // 2] @ q[a]).reshape(4, 2).max(axis=1)
        assert (true <= single[a]).all()
    score = unit_scores(q, lo, hi)
    assert score.tolist() == [6, 5, 8, 8]
    for count, want in ((1, [2]), (2, [2, 3]), (3, [0, 2, 3])):
        assert sorted(order(score)[:count].tolist()) == want
    ties = np.array([5.0, 7, 7, 5, 7, 1])
    for count, want in ((1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (4, [0, 1, 2, 4])):
        assert sorted(order(ties)[:count].tolist()) == want
    # (budget, unit, n): units of the view and its tokens, the token of the step included.
    views = [(2048, 16, 2048, 128, 2048), (2048, 16, 2049, 128, 2033), (2048, 16, 4096, 128, 2048)]
    views += [(2048, 16, 1000, 63, 1000), (2048, 16, 2064, 128, 2048), (4416, 16, 32768, 276, 4416)]
    views += [(3072, 16, 32768, 192, 3072), (40, 16, 100, 3, 36), (2048, 32, 131072, 64, 2048)]
    for budget, unit, n, units, view in views:
        held = unit_tokens(n - 1, unit)
        read = select(np.zeros(len(held)), held, unit, budget)
        own = 1 if (n - 1) % unit == 0 else 0  # the token of the step begins a unit
        assert len(read) + own == units and sum(held[u] for u in read) + 1 == view, (budget, unit, n)


def runs(units: list[int], held: list[int], unit: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array([u * unit for u in units], np.int32), np.array([held[u] for u in units], np.int32)


def row_goldens() -> list[Golden]:
    rng = Rng(21)
    k, q = rng.half(305, 2, 16), rng.half(8, 4, 16, scale=1.5).astype(np.float32)
    out = [
        Golden("keys", k, "keys as stored [token, KV head, dim]; a case holds the first `tokens`"),
        Golden("queries", q, "queries [query, query head, dim]"),
    ]
    cases, first, count = [], [], []
    for unit in (16, 32):
        held = [unit] * (len(k) // unit)
        lo, hi = bounds(k, held, unit)
        scores = np.array([unit_scores(x, lo, hi) for x in q])
        out += [
            Golden(f"lo_{unit}", lo.astype(np.float32), f"least key of each full unit of {unit} [unit, KV head, dim]"),
            Golden(f"hi_{unit}", hi.astype(np.float32), "greatest key of each"),
            Golden(f"scores_{unit}", scores.astype(np.float32), "[query, unit]", True),
        ]
        for tokens in (0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 160, 271, 272, 289, 304):
            for n, budget in enumerate((1, 48, 64, 100, 160, 304, 4096)):
                query = (tokens + n) % len(q)
                held = unit_tokens(tokens, unit)
                score = np.resize(scores[query], len(held))
                full = tokens // unit
                if not clear_cut(score[:full], max(3, budget // unit) - 1):
                    continue
                ordinals, sizes = runs(select(score, held, unit, budget), held, unit)
                cases.append([tokens, unit, budget, query])
                first.append(ordinals)
                count.append(sizes)
    picks, starts = flat(first)
    cases = [c + [s, len(x)] for c, s, x in zip(cases, starts, first)]
    return out + [
        Golden("cases", table(cases), "tokens stored before the step, unit, budget, query, start in picks, runs"),
        Golden("picks", picks, "ordinal of the first token of each run read, ascending, end to end"),
        Golden("pick_tokens", flat(count)[0], "tokens of each of those runs"),
    ]


def special_goldens() -> list[Golden]:
    """Short units in the middle, equal scores, and the head counts of a real model."""
    rng = Rng(22)
    held, unit = [16, 7, 16, 1, 15, 16, 9, 16, 3], 16
    k, q = rng.half(len(held) * unit, 2, 16), rng.half(2, 4, 16).astype(np.float32)
    for u, n in enumerate(held):
        k[u * unit + n : (u + 1) * unit] = 30000.0  # what no one may read
    lo, hi = bounds(k, held, unit)
    scores = np.array([unit_scores(x, lo, hi) for x in q])
    out = [
        Golden(
            "short_keys", k, "by ordinal [units * 16, KV head, dim]; unit u holds short_held[u], the rest is poison"
        ),
        Golden("short_held", np.array(held, np.int32), "tokens of each unit; the last is not full yet"),
        Golden("short_queries", q, "[query, query head, dim]"),
        Golden("short_lo", lo.astype(np.float32), "[unit, KV head, dim]"),
        Golden("short_hi", hi.astype(np.float32), "[unit, KV head, dim]"),
        Golden("short_scores", scores.astype(np.float32), "[query, unit]", True),
    ]
    picks = [runs(select(s, held, unit, b), held, unit)[0] for s in scores for b in (48, 80)]
    assert all(clear_cut(s[:-1], n) for s in scores for n in (2, 4))
    ordinals, starts = flat(picks)
    cases = [[i // 2, (48, 80)[i % 2], s, len(x)] for i, (s, x) in enumerate(zip(starts, picks))]
    out += [
        Golden("short_cases", table(cases), "query, budget, start in short_picks, runs"),
        Golden("short_picks", ordinals, "ordinals of the runs read"),
    ]
    # Units whose scores are exactly 5 7 7 5 7 1: every key of a unit is that number in channel 0, the query is 1 there.
    k = np.zeros((6 * 16, 2, 16), np.float16)
    k[:, 0, 0] = np.repeat([5, 7, 7, 5, 7, 1], 16)
    k[:, 1, 0] = -1
    q = np.zeros((4, 16), np.float32)
    q[:, 0] = 1
    lo, hi = bounds(k, [16] * 6, 16)
    score = unit_scores(q, lo, hi)
    assert score.tolist() == [5, 7, 7, 5, 7, 1]
    picks = [runs(select(score, [16] * 6, 16, b), [16] * 6, 16)[0] for b in (48, 64, 80, 96)]
    ordinals, starts = flat(picks)
    cases = [[b, s, len(x)] for b, s, x in zip((48, 64, 80, 96), starts, picks)]
    out += [
        Golden("tie_keys", k, "six full units with scores 5 7 7 5 7 1 [token, KV head, dim]"),
        Golden("tie_query", q, "[query head, dim]"),
        Golden("tie_cases", table(cases), "budget, start in tie_picks, runs"),
        Golden("tie_picks", ordinals, "ordinals of the runs read"),
    ]
    k, q = rng.half(7 * 16, 3, 64), rng.half(4, 9, 64, scale=2.0).astype(np.float32)
    lo, hi = bounds(k, [16] * 7, 16)
    scores = np.array([unit_scores(x, lo, hi) for x in q])
    return out + [
        Golden("wide_keys", k, "seven full units of 16 with smollm2's heads [token, 3, 64]"),
        Golden("wide_queries", q, "[query, 9, 64]"),
        Golden("wide_scores", scores.astype(np.float32), "[query, unit]", True),
    ]


def goldens() -> list[Golden]:
    return row_goldens() + special_goldens()


if __name__ == "__main__":
    sys.exit(main(__file__, examples, goldens))
