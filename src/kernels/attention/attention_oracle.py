#!/usr/bin/env python3
"""Goldens of paged attention, from NumPy in double precision; written from the formulas alone.

    python src/kernels/attention/attention_oracle.py [--check]

writes goldens/CASE_*.npy beside this file (--check: compares with what is there). A case is one row:
  sizes  i4 [5]  q_heads, kv_heads, unit, split, part: the runs from number `part` on are a second part
  runs   i4 [runs]  tokens in each run
  k, v   f2 [tokens, kv_heads, dim]  the past, in the order of the runs
  k_new, v_new  f2 [fresh, kv_heads, dim]  the present, causal;  q  f4 [fresh, q_heads, dim]
  out    f4 [fresh, q_heads, dim], lse f4 [fresh, q_heads]  one softmax over past and present
  part_lse  f4 [2, fresh, q_heads]  log-sum-exp of each part alone, without the present (-inf: empty)
  logits f4 [fresh, q_heads, cap]  q.k of the past by linear place (run number x unit + place in the run);
         NaN where no token lies
The window's case: position p sees keys at positions > p - window; `dropped` positions lie in no page.
  sizes  i4 [7]  q_heads, kv_heads, unit, split, window, dropped, past (position of the first query)
  k, v   f2 [past - dropped, kv_heads, dim];  k_new, v_new, q, out, lse as above
The latent case (MLA), in head space as a model's paper writes it:
  sizes  i4 [3]  nope, split, past;  w_uk f4 [heads, nope, latent], w_uv f4 [heads, head_v, latent]
  keys   f2 [past + fresh, latent + rope]  q f4 [fresh, heads, nope + rope]
  absorbed f4 [fresh, heads, latent + rope]  queries in latent space;  out f4 [fresh, heads, head_v], lse
"""

import argparse
import pathlib
import sys

import numpy as np

OUT = pathlib.Path(__file__).resolve().parent / "goldens"
CASES = {  # name: q_heads, kv_heads, k_dim, v_dim, unit, split, run lengths, first run of part 2, fresh tokens
    "group3_d64": (3, 1, 64, 64, 16, 64, [16, 16, 7, 16, 1, 16, 3, 16], 5, 1),
    "group1_d80": (2, 2, 80, 80, 16, 32, [16, 5, 2, 16, 16], 2, 6),
    "group3_d128": (3, 1, 128, 128, 8, 64, [8, 8, 1, 8, 3], 3, 9),
    "group2_k48_v32": (4, 2, 48, 32, 1, 16, [1] * 19, 19, 2),
}

WINDOW = {"window_d32": (4, 2, 32, 16, 64, 21, 32, 70, 19)}  # q_heads .. past of `sizes` with dim third, fresh

LATENT = {"latent_d32": (2, 12, 8, 32, 16, 64, 83, 37)}  # heads, nope, rope, latent, head_v, split, past, fresh


def attend(q, k, v, scale):
    """One query [d] over keys [n, d]: (out, lse)."""
    if len(k) == 0:
        return np.zeros(v.shape[1]), -np.inf
    s = scale * (k @ q)
    m = s.max()
    w = np.exp(s - m)
    return (w @ v) / w.sum(), m + np.log(w.sum())


def make(name, seed):
    q_heads, kv_heads, kd, vd, unit, split, runs, part, fresh = CASES[name]
    rng = np.random.default_rng(seed)
    n = sum(runs)
    draw = lambda rows, dim: rng.standard_normal((rows, kv_heads, dim)).astype(np.float16)
    k, v, k_new, v_new = draw(n, kd), draw(n, vd), draw(fresh, kd), draw(fresh, vd)
    q = (1.5 * rng.standard_normal((fresh, q_heads, kd))).astype(np.float32)
    place = np.concatenate([e * unit + np.arange(t) for e, t in enumerate(runs)])
    cut = sum(runs[:part])
    out = np.zeros((fresh, q_heads, vd))
    lse = np.zeros((fresh, q_heads))
    part_lse = np.zeros((2, fresh, q_heads))
    logits = np.full((fresh, q_heads, len(runs) * unit), np.nan)
    scale = float(np.float32(1) / np.sqrt(np.float32(kd)))
    for t in range(fresh):
        for h in range(q_heads):
            g = h // (q_heads // kv_heads)
            x = q[t, h].astype(np.float64)
            past_k, past_v = k[:, g].astype(np.float64), v[:, g].astype(np.float64)
            all_k = np.concatenate([past_k, k_new[: t + 1, g].astype(np.float64)])
            all_v = np.concatenate([past_v, v_new[: t + 1, g].astype(np.float64)])
            out[t, h], lse[t, h] = attend(x, all_k, all_v, scale)
            part_lse[0, t, h] = attend(x, past_k[:cut], past_v[:cut], scale)[1]
            part_lse[1, t, h] = attend(x, past_k[cut:], past_v[cut:], scale)[1]
            logits[t, h, place] = past_k @ x
    f4 = lambda a: a.astype("<f4")
    return {
        "sizes": np.array([q_heads, kv_heads, unit, split, part], "<i4"), "runs": np.array(runs, "<i4"),
        "k": k, "v": v, "k_new": k_new, "v_new": v_new, "q": f4(q),
        "out": f4(out), "lse": f4(lse), "part_lse": f4(part_lse), "logits": f4(logits),
    }  # fmt: skip


def make_window(name, seed):
    q_heads, kv_heads, dim, unit, split, window, dropped, past, fresh = WINDOW[name]
    rng = np.random.default_rng(seed)
    draw = lambda rows: rng.standard_normal((rows, kv_heads, dim)).astype(np.float16)
    k, v, q = draw(past + fresh), draw(past + fresh), 1.5 * rng.standard_normal((fresh, q_heads, dim))
    q = q.astype(np.float32)
    out, lse = np.zeros((fresh, q_heads, dim)), np.zeros((fresh, q_heads))
    scale = float(np.float32(1) / np.sqrt(np.float32(dim)))
    for i in range(fresh):
        p = past + i
        seen = np.array([j for j in range(past + fresh) if j <= p and p - j < window])
        assert seen.min() >= dropped
        for h in range(q_heads):
            g = h // (q_heads // kv_heads)
            out[i, h], lse[i, h] = attend(
                q[i, h].astype(np.float64), k[seen, g].astype(np.float64), v[seen, g].astype(np.float64), scale
            )
    return {
        "sizes": np.array([q_heads, kv_heads, unit, split, window, dropped, past], "<i4"),
        "k": k[dropped:past], "v": v[dropped:past], "k_new": k[past:], "v_new": v[past:], "q": q,
        "out": out.astype("<f4"), "lse": lse.astype("<f4"),
    }  # fmt: skip


def make_latent(name, seed):
    heads, nope, rope, latent, head_v, split, past, fresh = LATENT[name]
    rng = np.random.default_rng(seed)
    w_uk = (rng.standard_normal((heads, nope, latent)) / np.sqrt(latent)).astype("<f4")
    w_uv = (rng.standard_normal((heads, head_v, latent)) / np.sqrt(latent)).astype("<f4")
    keys = rng.standard_normal((past + fresh, latent + rope)).astype(np.float16)
    q = (1.5 * rng.standard_normal((fresh, heads, nope + rope))).astype("<f4")
    c, r = keys[:, :latent].astype(np.float64), keys[:, latent:].astype(np.float64)
    out, lse = np.zeros((fresh, heads, head_v)), np.zeros((fresh, heads))
    absorbed = np.zeros((fresh, heads, latent + rope))
    scale = float(np.float32(1) / np.sqrt(np.float32(nope + rope)))
    for h in range(heads):
        uk, uv = w_uk[h].astype(np.float64), w_uv[h].astype(np.float64)
        k, v = np.concatenate([c @ uk.T, r], axis=1), c @ uv.T
        for i in range(fresh):
            x = q[i, h].astype(np.float64)
            out[i, h], lse[i, h] = attend(x, k[: past + i + 1], v[: past + i + 1], scale)
            absorbed[i, h] = np.concatenate([uk.T @ x[:nope], x[nope:]])
    f4 = lambda a: a.astype("<f4")
    return {
        "sizes": np.array([nope, split, past], "<i4"), "w_uk": w_uk, "w_uv": w_uv, "keys": keys, "q": q,
        "absorbed": f4(absorbed), "out": f4(out), "lse": f4(lse),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    OUT.mkdir(exist_ok=True)
    bad = []
    made = [(name, make(name, seed)) for seed, name in enumerate(CASES)]
    made += [(name, make_window(name, 100 + seed)) for seed, name in enumerate(WINDOW)]
    made += [(name, make_latent(name, 200 + seed)) for seed, name in enumerate(LATENT)]
    for name, fields in made:
        for field, value in fields.items():
            path = OUT / f"{name}_{field}.npy"
            if not check:
                np.save(path, value)
            elif not np.allclose(np.load(path), value, rtol=1e-6, atol=1e-6, equal_nan=True):
                bad.append(path.name)
    if bad:
        sys.exit(f"goldens differ from the oracle: {', '.join(bad)}; run without --check")


if __name__ == "__main__":
    main()
