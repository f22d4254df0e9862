"""Compares what the engine printed or dumped with the stored goldens of a model. NumPy and the standard library."""

import json
import pathlib

import numpy as np

BAR = 2e-4  # of the range (max - min) of the reference's logits at that position
NEAR_TIE = 2 * BAR  # two logits this close may change places within the bar


class Failure(Exception):
    """One line for the person."""


def read_ids(path: pathlib.Path) -> list[int]:
    return [int(x) for x in path.read_text().split()]


def load(folder: pathlib.Path, name: str) -> np.ndarray:
    return np.load(folder / f"{name}.npy")


def say(text: str) -> None:
    print(text, flush=True)


def verdict(what: str, worst: float, where: str) -> bool:
    good = worst <= BAR
    end = "ok" if good else "FAILED"
    say(f"{what}: largest difference {worst:.2e} of the logit range ({where}), bar {BAR:.0e}: {end}")
    return good


def compare_json(report: dict, folder: pathlib.Path) -> bool:
    """`run --json --prompt-logprobs N` against the golden: log-probabilities, and which tokens lead."""
    ids = read_ids(folder / "ids_512.txt")
    if report.get("prompt_ids") != ids:
        raise Failure(f"prompt_ids: found {len(report.get('prompt_ids') or [])} ids that are not those of ids_512.txt")
    rows = report.get("prompt_logprobs")
    if not rows or len(rows) != len(ids) or rows[0] is not None:
        raise Failure(f"prompt_logprobs: wanted {len(ids)} entries, the first null, found {len(rows or [])}")
    top_ids, top, lse = load(folder, "top_ids"), load(folder, "top_logits"), load(folder, "lse")
    columns, column = load(folder, "columns"), load(folder, "column_logits")
    next_logit, low, high = load(folder, "next_logits"), *load(folder, "min_max").T
    worst, where, seen, swapped = 0.0, "-", 0, 0
    for i in range(1, len(ids)):
        at = i - 1  # entry i is the distribution that ids[i] was drawn from: the logits of position i - 1
        known = dict(zip(columns.tolist(), column[at])) | dict(zip(top_ids[at].tolist(), top[at]))
        known[ids[i]] = next_logit[at]
        got = {int(k): np.nan if v is None else float(v) for k, v in rows[i].items()}  # JSON has no NaN
        span = high[at] - low[at]
        for token in top_ids[at].tolist():
            if token in got:
                continue
            # The last places of the list may differ where logits are all but equal, and nowhere else.
            if abs(known[token] - top[at][-1]) > NEAR_TIE * span:
                raise Failure(f"position {i}: token {token} is among the 8 likeliest of the reference, and missing")
            swapped += 1
        for token, value in got.items():
            if token not in known:
                continue
            seen += 1
            off = abs(value - (known[token] - lse[at])) / span
            if not off <= worst:  # a NaN too
                worst, where = float(off), f"position {i}, token {token}"
    say(f"prompt_logprobs: {seen} values compared, {swapped} near ties at the eighth place")
    return verdict("log-probabilities", worst, where)


def compare_full(logits: np.ndarray, folder: pathlib.Path, reference: np.ndarray | None) -> bool:
    """A full dump [512, vocab] against a full reference, or against the stored columns and leading tokens."""
    low, high = load(folder, "min_max").T
    if logits.ndim != 2 or logits.shape[0] < len(low):
        raise Failure(f"logits: found shape {logits.shape}, wanted [{len(low)}, vocab]")
    logits = np.asarray(logits[: len(low)], dtype=np.float32)
    span = (high - low)[:, None]
    if reference is not None:
        off = np.abs(logits - reference[: len(low)]) / span
    else:
        by_top = np.abs(
            np.take_along_axis(logits, load(folder, "top_ids").astype(np.int64), 1) - load(folder, "top_logits")
        )
        by_column = np.abs(logits[:, load(folder, "columns")] - load(folder, "column_logits"))
        ends = np.abs(np.stack((logits.min(1), logits.max(1)), 1) - np.stack((low, high), 1))
        off = np.concatenate((by_top, by_column, ends), 1) / span
    at = np.unravel_index(np.argmax(off), off.shape)
    say(f"logits: {off.size} values compared, mean difference {off.mean():.2e} of the range")
    return verdict("logits", float(off[at]), f"position {at[0]}") and bool(np.isfinite(off).all())


def compare_greedy(report: dict, folder: pathlib.Path) -> bool:
    """`run --json --temp 0 --ignore-eos -n 256` on greedy_prompt_ids.txt: equal tokens outside near ties."""
    want, gap = load(folder, "greedy_ids"), load(folder, "greedy_gaps")
    got = report.get("ids") or []
    for i, token in enumerate(want.tolist()):
        if i < len(got) and got[i] == token:
            continue
        if i < len(got) and gap[i] <= NEAR_TIE:
            say(f"greedy: {i} tokens equal, then a near tie (gap {gap[i]:.1e} of the range): ok")
            return True
        found = got[i] if i < len(got) else "nothing"
        say(f"greedy: token {i}: found {found}, wanted {token} (gap {gap[i]:.1e} of the range): FAILED")
        return False
    say(f"greedy: all {len(want)} tokens equal (smallest gap {gap.min():.1e} of the range): ok")
    return True


def compare(path: pathlib.Path, folder: pathlib.Path, reference: pathlib.Path | None) -> bool:
    """Picks the comparison by what the file holds."""
    if path.suffix == ".npy":
        full = np.load(reference, mmap_mode="r") if reference else None
        return compare_full(np.load(path, mmap_mode="r"), folder, full)
    try:
        report = json.loads(path.read_text())
    except ValueError as e:
        raise Failure(f"{path} is not JSON: {e}") from e
    if report.get("prompt_ids") == read_ids(folder / "greedy_prompt_ids.txt"):
        return compare_greedy(report, folder)
    return compare_json(report, folder)
