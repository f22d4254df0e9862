#!/usr/bin/env python3
"""NumPy oracle of StreamingLLM (Xiao et al. 2024): the first tokens and the newest, the middle goes."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "tools" / "goldens"))
from oracle import Golden, flat, main, table  # noqa: E402


def keep(tokens: int, sink: int, budget: int, encoded: int = 0, tail: int = 0, grain: int = 1) -> np.ndarray:
    """Kept ordinals of a row of `tokens`, ascending.

    Within the budget all stay. Else the first `sink` and the last `budget - sink`; ordinals below `encoded` lie in
    groups of `grain` that stay whole if one of their tokens does, the `tail` ordinals after them always stay.
    """
    t = np.arange(tokens)
    if tokens <= budget:
        return t
    kept = (t < sink) | (t >= tokens - (budget - sink))
    kept |= (t >= encoded) & (t < encoded + tail)
    for first in range(0, encoded, grain):
        group = (t >= first) & (t < min(first + grain, encoded))
        kept |= group & bool((kept & group).any())
    return t[kept]


def due(tokens: int, budget: int, factor: float, prompt_end: bool) -> bool:
    """Is the row cut now? At the prompt's end if over the budget, then when it is `factor` budgets long."""
    return tokens > budget and (prompt_end or tokens >= factor * budget)


def trace(prompt: int, sink: int, budget: int, factor: float, steps: int) -> tuple[list[int], list[int]]:
    """Row length after the prompt and after each decode step, and the positions left at the end."""
    row = list(range(prompt))
    lengths = []
    for step in range(steps + 1):
        if step > 0:
            row.append(prompt + step - 1)
        if due(len(row), budget, factor, step == 0):
            row = [row[i] for i in keep(len(row), sink, budget)]
        lengths.append(len(row))
    return lengths, row


def examples() -> None:
    """methods-eviction.md 8, SLM-*; 3.1."""
    for tokens, want in ((10, [0, 1, 7, 8, 9]), (6, [0, 1, 3, 4, 5]), (5, [0, 1, 2, 3, 4]), (4, [0, 1, 2, 3])):
        assert keep(tokens, 2, 5).tolist() == want
    assert trace(8, 2, 5, 2, 0)[1] == [0, 1, 5, 6, 7]
    lengths, row = trace(8, 2, 5, 2, 5)
    assert lengths == [5, 6, 7, 8, 9, 5] and row == [0, 1, 10, 11, 12]
    assert trace(8, 2, 5, 1, 3)[1] == [0, 1, 8, 9, 10]  # factor 1: every step
    # Groups of 4, 12 encoded, 3 in the tail, 1 of the step: sink 1 keeps 0-3; recent 3 reaches into the tail only.
    assert keep(16, 1, 4, 12, 3, 4).tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    assert keep(16, 1, 6, 12, 3, 4).tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15]


def goldens() -> list[Golden]:
    cases, kept = [], []
    for tokens in (0, 1, 15, 16, 17, 33, 64, 100):
        for sink, budget in ((0, 1), (1, 16), (4, 16), (0, 15), (16, 17), (4, 33), (64, 64), (2, 100)):
            cases.append([tokens, 0, 0, 1, sink, budget])
            kept.append(keep(tokens, sink, budget))
    for tokens, encoded, tail in ((97, 64, 32), (130, 96, 33), (64, 32, 32), (161, 128, 32)):
        for sink, budget in ((0, 40), (4, 16), (33, 60), (1, 70), (32, 64), (4, 160)):
            cases.append([tokens, encoded, tail, 32, sink, budget])
            kept.append(keep(tokens, sink, budget, encoded, tail, 32))
    rows, starts = flat(kept)
    cases = [c + [s, len(k)] for c, s, k in zip(cases, starts, kept)]
    traces, lengths, left = [], [], []
    for prompt, sink, budget, factor in (
        (8, 2, 5, 2.0),
        (1, 0, 4, 2.0),
        (40, 4, 16, 1.0),
        (16, 4, 16, 2.0),
        (17, 4, 16, 1.5),
        (100, 0, 33, 1.25),
        (5, 4, 64, 2.0),
    ):
        n, row = trace(prompt, sink, budget, factor, 96)
        traces.append([prompt, sink, budget, int(factor * 4)])
        lengths.append(n)
        left.append(np.array(row))
    left_rows, left_starts = flat(left)
    traces = [t + [s, len(x)] for t, s, x in zip(traces, left_starts, left)]
    return [
        Golden("cases", table(cases), "a row each: tokens, encoded, tail, grain, sink, budget, start in keep, count"),
        Golden("keep", rows, "kept ordinals of all cases, end to end"),
        Golden("trace_cases", table(traces), "prompt, sink, budget, 4 x factor, start in trace_keep, count"),
        Golden("trace_tokens", table(lengths), "row length after the prompt and after each of 96 decode steps"),
        Golden("trace_keep", left_rows, "positions left after the last step, end to end"),
    ]


if __name__ == "__main__":
    sys.exit(main(__file__, examples, goldens))
