#!/usr/bin/env python3
"""NumPy oracle of SnapKV (Li et al. 2024): the last queries vote for the tokens that stay, one set per layer."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "tools" / "goldens"))
from oracle import Golden, Rng, flat, main, order, table  # noqa: E402


def raw_logits(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """q.k [q_heads, queries, tokens] in f64 of q [queries, q_heads, dim] and k [tokens, kv_heads, dim], unscaled."""
    group = q.shape[1] // k.shape[1]
    wide = np.repeat(k.astype(np.float64), group, axis=1)  # query head a reads KV head a // group
    return (q.astype(np.float64).transpose(1, 0, 2)[:, :, None, :] * wide.transpose(1, 0, 2)[:, None, :, :]).sum(-1)


def probabilities(z: np.ndarray, ordinals: np.ndarray, lo: int, hi: int) -> np.ndarray:
    """Softmax of scaled logits z [heads, queries, tokens] over the candidates [lo, hi) that a query may see.

    The denominator holds candidates only. A query without a candidate gives zeros.
    """
    j = np.arange(z.shape[2])
    seen = (j >= lo) & (j < hi) & (j[None, :] <= ordinals[:, None])
    p = np.zeros_like(z)
    for a in range(z.shape[0]):
        for i in range(z.shape[1]):
            if seen[i].any():
                e = np.exp(z[a, i, seen[i]] - z[a, i, seen[i]].max())
                p[a, i, seen[i]] = e / e.sum()
    return p


def window_score(z: np.ndarray, ordinals: np.ndarray, lo: int, hi: int, prob: bool, scale: float) -> np.ndarray:
    """One score per token from raw logits z [heads, queries, tokens]; queries stand at `ordinals`.

    prob: mean over the queries inside a head, then the largest of all query heads; 0 outside [lo, hi).
    else: the largest raw logit over heads and queries; -inf outside [lo, hi) and where no query may look.
    """
    if prob:
        if z.shape[1] == 0:
            return np.zeros(z.shape[2])
        return probabilities(z * scale, ordinals, lo, hi).mean(axis=1).max(axis=0)
    j = np.arange(z.shape[2])
    seen = (j >= lo) & (j < hi) & (j[None, :] <= ordinals[:, None])
    return np.where(seen[None], z, -np.inf).max(axis=(0, 1), initial=-np.inf)


def max_pool(score: np.ndarray, width: int) -> np.ndarray:
    """Largest of the `width` (odd) neighbours around each place; places outside do not count."""
    half = width // 2
    return np.array([score[max(0, i - half) : i + half + 1].max() for i in range(len(score))])


def keep(score, given, sink, recent, budget, pool=1, encoded=0, tail=0, grain=1, margins=None) -> np.ndarray:
    """Kept ordinals, ascending, out of the ordinals `given` (ascending); `score` goes by ordinal.

    Within the budget all stay. Else: the first `sink` and the last `recent` of `given` and the `tail` ordinals after
    `encoded` are protected. What lies between sink and recent is pooled as one list and fills the budget, best first
    (ties: lower ordinal): exact tokens singly; ordinals below `encoded` in aligned groups of `grain` by the mean of
    their pooled scores, a protected token protecting its group. Groups enter while there is room for a part of one.
    `margins` (a list) takes, for each choice between two candidates, the difference of their scores.
    """
    given = np.asarray(given, dtype=np.int64)
    if len(given) <= budget:
        return given
    place = np.arange(len(given))
    middle = (place >= sink) & (place < len(given) - recent)
    kept = ~middle | ((given >= encoded) & (given < encoded + tail))
    pooled = np.full(len(given), -np.inf)
    if middle.any():
        pooled[middle] = max_pool(np.asarray(score, dtype=np.float64)[given[middle]], pool)
    group = np.where(given < encoded, given // grain, encoded + given)  # exact tokens are groups of their own
    for g in np.unique(group[kept]):
        kept |= group == g
    names = [g for g in np.unique(group) if not kept[group == g].any()]
    ranks = np.array([pooled[group == g].mean() for g in names])
    best = order(ranks) if names else []
    for n, i in enumerate(best):
        if kept.sum() >= budget:
            if margins is not None:
                margins.append(ranks[best[n - 1]] - ranks[i] if n > 0 else np.inf)
            break
        kept |= group == names[i]
    return given[kept]


WEIGHTS = np.array(  # SNAP-data: [head, query, key]
    [[[6, 3, 2, 1, 8, 3, 9, 2], [3, 5, 3, 6, 1, 1, 9, 5]], [[5, 2, 6, 6, 2, 4, 5, 3], [1, 4, 7, 6, 8, 9, 5, 8]]],
    dtype=np.float64,
)


def pick(z, ordinals, tokens, sink, recent, count, prob=True, pool=1) -> list[int]:
    score = window_score(z, ordinals, sink, tokens - recent, prob, 1.0)
    return keep(score, np.arange(tokens), sink, recent, sink + count + recent, pool).tolist()


def formula(queries: list[int], keys: list[int]) -> np.ndarray:
    return np.log(np.array([[[1 + (3 * q + 5 * j) % 7 for j in keys] for q in queries]], dtype=np.float64))


def examples() -> None:
    """methods-eviction.md 8, SNAP-* (the token-shared ones, and the paper's per-head rule from the same pieces)."""
    z, at = np.log(WEIGHTS), np.array([6, 7])
    score = window_score(z, at, 1, 6, True, 1.0)
    assert np.allclose(score[1:6], [0.244485, 0.252941, 0.238235, 0.266544, 0.232353], atol=1e-6)
    assert score[0] == 0 and (score[6:] == 0).all()
    assert np.allclose(np.exp(window_score(z, at, 1, 6, False, 1.0)[1:6]), [5, 7, 6, 8, 9])
    assert pick(z, at, 8, 1, 2, 1) == [0, 4, 6, 7]
    assert pick(z, at, 8, 1, 2, 1, prob=False) == [0, 5, 6, 7]
    assert pick(z, at, 8, 1, 2, 1, pool=3) == [0, 3, 6, 7]  # a plateau over 3, 4, 5: the lowest
    mean_heads = probabilities(z, at, 1, 6).mean(axis=1).mean(axis=0)
    assert keep(mean_heads, np.arange(8), 1, 2, 4).tolist() == [0, 3, 6, 7]
    full = probabilities(z, at, 0, 8)
    assert keep(full.mean(axis=1).max(axis=0), np.arange(8), 1, 2, 4).tolist() == [0, 2, 6, 7]
    for pool, want in ((1, [[0, 4, 6, 7], [2, 3, 6, 7]]), (3, [[3, 4, 6, 7], [1, 2, 6, 7]])):
        assert [keep(full.sum(axis=1)[a], np.arange(8), 0, 2, 4, pool).tolist() for a in (0, 1)] == want
    for pool, want in ((1, [3, 4, 6, 7]), (3, [2, 3, 6, 7])):
        assert keep(full.sum(axis=1).mean(axis=0), np.arange(8), 0, 2, 4, pool).tolist() == want
    assert keep(np.ones(8), np.arange(8), 1, 2, 5).tolist() == [0, 1, 2, 6, 7]
    assert keep([9, 1, 1, 1, 2, 1, 1, 8], np.arange(8), 1, 2, 5, 3).tolist() == [0, 3, 4, 6, 7]  # sinks do not leak
    assert keep(np.ones(4), np.arange(4), 1, 2, 4).tolist() == [0, 1, 2, 3]
    row = np.array([0, 4, 6, 7, 8, 9])
    places = pick(formula([8, 9], row.tolist()), np.array([4, 5]), 6, 1, 2, 1)
    assert row[places].tolist() == [0, 7, 8, 9]
    row = np.array([0, 4, 6, 7, 8, 9, 10, 11])
    for prob in (True, False):
        assert pick(formula([10, 11], row.tolist()), np.array([6, 7]), 8, 1, 2, 1, prob) == [0, 3, 6, 7]
    # Groups of 4 below 8, then exact ones: means 2.5 and 3, the exact tokens score 9 and 2; sink 0, recent 1.
    score = [1, 2, 3, 4, 3, 3, 3, 3, 9, 2, 0]
    assert keep(score, np.arange(11), 0, 1, 5, 1, 8, 0, 4).tolist() == [4, 5, 6, 7, 8, 10]  # one over the budget
    assert keep(score, np.arange(11), 0, 1, 2, 1, 8, 0, 4).tolist() == [8, 10]
    assert keep(score, np.arange(11), 1, 1, 6, 1, 8, 0, 4).tolist() == [0, 1, 2, 3, 8, 10]  # the sink protects 0-3
    assert keep(score, np.arange(11), 0, 1, 3, 1, 8, 2, 4).tolist() == [8, 9, 10]  # the tail stays and counts


def scored_cases() -> list[Golden]:
    rng = Rng(11)
    dim, window_bank = 8, 97
    k, q = rng.half(window_bank, 2, dim), rng.half(window_bank, 4, dim, scale=1.5)
    cases, scores, kept = [], [], []
    shapes = (
        (1, 0, 0, 1),
        (4, 1, 2, 8),
        (8, 4, 8, 24),
        (32, 4, 8, 33),
        (32, 0, 32, 40),
        (16, 16, 1, 30),
        (3, 2, 5, 64),
    )
    for tokens in (0, 1, 15, 16, 17, 33, 64, 97):
        for window, sink, recent, budget in shapes:
            for pool, prob in ((1, True), (7, True), (1, False), (5, False)):
                w = min(window, tokens)
                z = raw_logits(q[tokens - w : tokens], k[:tokens])
                score = window_score(z, np.arange(tokens - w, tokens), sink, tokens - recent, prob, dim**-0.5)
                margins: list[float] = []
                score = score.astype(np.float32)
                left = keep(score, np.arange(tokens), sink, recent, budget, pool, margins=margins)
                # A cut that hangs on rounding is no golden; one between equal scores (a plateau) is.
                if any(0 < m < 1e-5 for m in margins):
                    continue
                cases.append([tokens, w, sink, recent, budget, pool, int(prob)])
                scores.append(score)
                kept.append(left)
    rows, starts = flat(kept)
    where = np.cumsum([0] + [len(s) for s in scores]).tolist()
    cases = [c + [w, s, len(x)] for c, w, s, x in zip(cases, where, starts, kept)]
    return [
        Golden("keys", k, "keys [token, KV head, dim]; a case uses the first `tokens`"),
        Golden(
            "queries",
            q.astype(np.float32),
            "a query per token [token, query head, dim]; a case uses the last `window` of its tokens",
        ),
        Golden(
            "cases",
            table(cases),
            "tokens, window, sink, recent, budget, pool, prob (0: raw logits), start in scores, start in keep, count",
        ),
        Golden(
            "scores",
            np.concatenate(scores),
            "window_score by ordinal, end to end; scale dim^-0.5; outside [sink, tokens - recent) 0 or -inf",
            True,
        ),
        Golden("keep", rows, "kept ordinals, end to end"),
    ]


def grouped_cases() -> list[Golden]:
    rng = Rng(12)
    cases, scores, given, kept = [], [], [], []
    shapes = ((97, 64, 32), (130, 96, 33), (64, 32, 32), (161, 128, 32), (33, 32, 0), (32, 32, 0), (90, 0, 40))
    plans = (
        (4, 16, 48, 1),
        (0, 1, 40, 1),
        (33, 20, 90, 7),
        (1, 40, 64, 3),
        (0, 0, 33, 1),
        (4, 8, 12, 1),
        (4, 16, 150, 5),
    )
    for tokens, encoded, tail in shapes:
        for sink, recent, budget, pool in plans:
            for thin in (False, True):
                # Multiples of 1/64 in [0, 16): sums over 32 tokens are exact in f32, and ties happen.
                score = (rng.integers(0, 1024, tokens) / 64.0).astype(np.float32)
                ordinals = np.arange(tokens)
                if thin:  # an earlier keeper left out the second group and every third exact token
                    gone = ((ordinals // 32 == 1) & (ordinals < encoded)) | (
                        (ordinals >= encoded + tail) & (ordinals % 3 == 0)
                    )
                    ordinals = ordinals[~gone]
                margins: list[float] = []
                left = keep(score, ordinals, sink, recent, budget, pool, encoded, tail, 32, margins)
                if any(0 < m < 1e-3 for m in margins):
                    continue
                cases.append([tokens, encoded, tail, 32, sink, recent, budget, pool])
                scores.append(score)
                given.append(ordinals)
                kept.append(left)
    # Group sums that are equal for certain: both groups hold the same scores in another order.
    score = np.concatenate((np.arange(32), np.arange(32)[::-1], np.arange(32), [0.5])).astype(np.float32)
    for budget in (2, 33, 34, 65, 66):
        cases.append([97, 96, 0, 32, 0, 1, budget, 1])
        scores.append(score)
        given.append(np.arange(97))
        kept.append(keep(score, np.arange(97), 0, 1, budget, 1, 96, 0, 32))
    ins, in_starts = flat(given)
    rows, starts = flat(kept)
    where = np.cumsum([0] + [len(s) for s in scores]).tolist()
    cases = [c + [w, i, len(g), s, len(x)] for c, w, i, g, s, x in zip(cases, where, in_starts, given, starts, kept)]
    note = "tokens, encoded, tail, grain, sink, recent, budget, pool, start in group_scores, "
    note += "start in group_in, count, start in group_keep, count"
    return [
        Golden("group_cases", table(cases), note),
        Golden("group_scores", np.concatenate(scores), "scores by ordinal (`tokens` of them a case)"),
        Golden("group_in", ins, "ordinals to choose from, end to end"),
        Golden("group_keep", rows, "kept ordinals, end to end"),
    ]


def goldens() -> list[Golden]:
    return scored_cases() + grouped_cases()


if __name__ == "__main__":
    sys.exit(main(__file__, examples, goldens))
