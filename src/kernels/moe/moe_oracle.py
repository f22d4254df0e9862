#!/ usr / bin / env python3
"""Mixtures of experts in NumPy, from spec/models.md 2.5 and the papers (Mixtral 2024; DeepSeek-V3 2024, 2.1.2)."""

import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools" / "goldens"))
from oracle import Golden, Rng, main, order  # noqa: E402

EXPERTS, HIDDEN, FFN, TOKENS = 8, 32, 32, 9
#name : used, score, normalise, scale, groups, groups used, biased
ROUTINGS = {
    "softmax": (2, "softmax", False, 1.0, 1, 1, False),
    "softmax_norm": (3, "softmax", True, 1.0, 1, 1, False),
    "sigmoid": (2, "sigmoid", True, 1.8, 1, 1, True),
    "grouped": (3, "sigmoid", True, 2.5, 4, 2, True),
}


def route(logits, bias, used, score, normalise, scale, groups, groups_used, biased):
    if score == "softmax":
        s = np.exp(logits - logits.max())
        s /= s.sum()
    else:
        s = 1 / (1 + np.exp(-logits))
    choice = s + bias if biased else s.copy()
    if groups > 1:
        by_group = choice.reshape(groups, -1)
        rank = np.sort(by_group, axis=1)[:, -2:].sum(axis=1)
        by_group[order(rank)[groups_used:]] = -np.inf
        choice = by_group.reshape(-1)
    ids = order(choice)[:used]
    weights = s[ids] / (s[ids].sum() if normalise else 1.0) * scale
    return ids.astype(np.int32), weights


def expert(x, gate, up, down):
    g = gate @ x
    return down @ (g / (1 + np.exp(-g)) * (up @ x))


def examples():
    """Two of three experts by softmax; a bias that changes the choice and not the weight."""
    ids, w = route(np.log([1.0, 2.0, 5.0]), np.zeros(3), 2, "softmax", False, 1.0, 1, 1, False)
    assert ids.tolist() == [2, 1] and np.allclose(w, [5 / 8, 2 / 8])
    ids, w = route(np.log([1.0, 2.0, 5.0]), np.zeros(3), 2, "softmax", True, 1.0, 1, 1, False)
    assert np.allclose(w, [5 / 7, 2 / 7])
    ids, w = route(np.zeros(4), np.array([0.0, 0.0, 1.0, 0.0]), 1, "sigmoid", False, 3.0, 1, 1, True)
    assert ids.tolist() == [2] and np.allclose(w, [1.5])
#The best single expert(7) is in a group whose two best sum to less than another's.
    bias = np.array([0.3, 0.3, 0, 0, 0, 0, 0, 0.5])
    ids, _ = route(np.zeros(8), bias, 2, "sigmoid", True, 1.0, 4, 1, True)
    assert ids.tolist() == [0, 1]


def goldens():
    rng = Rng(41)
    logits, bias = rng.normal(TOKENS, EXPERTS) * 2, rng.normal(EXPERTS) * 0.2
    logits, bias = logits.astype(np.float32), bias.astype(np.float32)
    x = rng.normal(TOKENS, HIDDEN).astype(np.float32)
    gate, up = (rng.half(EXPERTS, FFN, HIDDEN, scale=0.2) for _ in range(2))
    down = rng.half(EXPERTS, HIDDEN, FFN, scale=0.2)
    out = [
        Golden("logits", logits, "router logits [tokens, experts]"),
        Golden("bias", bias, "correction bias [experts]"),
        Golden("x", x, "tokens [tokens, hidden]"),
        Golden("gate", gate, "[experts, ffn, hidden]"),
        Golden("up", up, "[experts, ffn, hidden]"),
        Golden("down", down, "[experts, hidden, ffn]"),
    ]
    for name, routing in ROUTINGS.items():
        rows = [route(l.astype(np.float64), bias.astype(np.float64), *routing) for l in logits]
        y = [
            sum(w * expert(t, *(m[e].astype(np.float64) for m in (gate, up, down))) for e, w in zip(*row))
            for t, row in zip(x.astype(np.float64), rows)
        ]
        out += [
            Golden(f"{name}_ids", np.stack([r[0] for r in rows]), "chosen experts, best first"),
            Golden(f"{name}_weights", np.stack([r[1] for r in rows]).astype(np.float32), "their weights", True),
            Golden(f"{name}_out", np.stack(y).astype(np.float32), "the weighted sums [tokens, hidden]", True),
        ]
    return out


if __name__ == "__main__":
    sys.exit(main(__file__, examples, goldens))
