#!/usr/bin/env python3
"""Goldens of a whole model: a PyTorch F32 forward of the dequantised weights of a GGUF file.

    tools/goldens/logits.py                        re-makes tests/goldens/MODEL (needs requirements.txt)
    tools/goldens/logits.py --check                re-makes and compares with what is stored, within a tolerance
    tools/goldens/logits.py --verify               also runs transformers on the same weights, prints the difference
    tools/goldens/logits.py --full OUT.npy [--ids FILE]  writes all logits, f32 [tokens, vocab]; not into the tree
    tools/goldens/logits.py --compare FILE [--reference FULL.npy]   the engine's output against the goldens (NumPy only)

MODEL is the file's stem: --model models/smollm2.gguf (the default), models/qwen0.5b.gguf or models/gemma270m.gguf.
FILE of --compare is one of (G is tests/goldens/MODEL)
    run -m models/smollm2.gguf --raw --ids G/ids_512.txt --compute exact --prompt-logprobs 8 -n 0 --json
    run -m models/smollm2.gguf --raw --ids G/greedy_prompt_ids.txt --compute exact --temp 0 --ignore-eos -n 256 --json
    a dump of all logits, .npy f32 [>= 512, vocab]
"""

import argparse
import pathlib
import sys

import numpy as np

import compare

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "smollm2.gguf"
TEXT = ROOT / "tests" / "goldens" / "smollm2" / "ruth.txt"
TOKENS, LONG, TOP, GREEDY = 512, 2048, 8, 256
COLUMNS = {"smollm2": 64}  # else 24
TOLERANCE = 2e-5  # of the logit range, between two machines' PyTorch


def goldens_of(model: pathlib.Path) -> pathlib.Path:
    return ROOT / "tests" / "goldens" / model.stem


def tokenizer(weights, path: pathlib.Path):
    """A function from text to ids. smollm2: the file's byte-level BPE as the `tokenizers` library runs it
    (pre-tokenizer `smollm`: single digits); others: as transformers reads the file."""
    if weights.kind != "llama":
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).encode
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    tokens, types = weights.value("tokenizer.ggml.tokens"), weights.value("tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ")) for m in weights.value("tokenizer.ggml.merges")]
    tk = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tk.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tk.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types) if k == 3])
    return lambda text: tk.encode(text).ids


def greedy(model, prompt: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest continuation, end tokens ignored, and by how much each token won (of the logit range)."""
    model.reset()
    logits, ids, gaps = model.forward(prompt)[-1], [], []
    for _ in range(GREEDY):
        best = logits.topk(2)
        ids.append(int(best.indices[0]))
        gaps.append(float((best.values[0] - best.values[1]) / (logits.max() - logits.min())))
        logits = model.forward(ids[-1:])[0]
    return np.array(ids, np.int32), np.array(gaps, np.float32)


def make(model_path: pathlib.Path, verify: bool) -> dict[str, np.ndarray]:
    """All arrays of the golden folder by name; ids as int32 vectors."""
    import decoder

    weights = decoder.Weights(model_path)
    encode = tokenizer(weights, model_path)
    ids = encode(TEXT.read_text())[:LONG]
    prompt = encode((goldens_of(model_path) / "greedy_prompt.txt").read_text())
    model = decoder.Decoder(weights)
    logits = model.forward(ids[:TOKENS])
    if verify:
        other = decoder.transformers_logits(weights, ids[:TOKENS])
        span = logits.max(1).values - logits.min(1).values
        worst = float(((logits - other).abs().max(1).values / span).max())
        print(f"transformers on the same weights: largest difference {worst:.1e} of the logit range")
        if worst > TOLERANCE:
            raise compare.Failure(f"the two forwards differ by {worst:.1e} of the range, wanted <= {TOLERANCE}")
    top = logits.topk(TOP)
    count = COLUMNS.get(model_path.stem, 24)
    columns = np.sort(np.random.default_rng(3).choice(logits.shape[1], count, replace=False)).astype(np.int32)
    answer, gaps = greedy(model, prompt)
    follow = np.array(ids[1 : TOKENS + 1])
    return {
        "ids_512": np.array(ids[:TOKENS], np.int32),
        "ids_2048": np.array(ids, np.int32),
        "greedy_prompt_ids": np.array(prompt, np.int32),
        "greedy_ids": answer,
        "greedy_gaps": gaps,
        "top_ids": top.indices.numpy().astype(np.int32),
        "top_logits": top.values.numpy(),
        "columns": columns,
        "column_logits": logits.numpy()[:, columns],
        "next_logits": logits.numpy()[np.arange(TOKENS), follow],
        "lse": logits.double().logsumexp(1).float().numpy(),
        "min_max": np.stack((logits.min(1).values.numpy(), logits.max(1).values.numpy()), 1),
    }


TEXTS = ("ids_512", "ids_2048", "greedy_prompt_ids")


def store(arrays: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    for name, a in arrays.items():
        if name in TEXTS:
            lines = [" ".join(map(str, a[i : i + 16])) for i in range(0, len(a), 16)]
            (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
        else:
            np.save(folder / f"{name}.npy", np.ascontiguousarray(a))
        print(f"{name}: {a.dtype} {list(a.shape)}")


def check(arrays: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    """Ids must be equal (where two of the eight likeliest are all but level, their logits decide); floats close."""
    span = float(np.min(arrays["min_max"][:, 1] - arrays["min_max"][:, 0]))
    for name, a in arrays.items():
        if name in TEXTS:
            stored = np.array(compare.read_ids(folder / f"{name}.txt"))
        else:
            stored = compare.load(folder, name)
        if stored.shape != a.shape:
            raise compare.Failure(f"{name}: stored {stored.shape}, made {a.shape}")
        if name == "top_ids":
            continue
        off = float(np.abs(stored.astype(np.float64) - a).max()) if a.size else 0.0
        bar = 0.0 if a.dtype == np.int32 else TOLERANCE if name == "greedy_gaps" else TOLERANCE * span
        if off > bar:
            raise compare.Failure(f"{name}: stored and made differ by {off:.2e}, wanted <= {bar:.2e}")
    print(f"{folder.relative_to(ROOT)}: {len(arrays)} arrays as stored")


def write_full(model_path: pathlib.Path, ids: list[int], out: pathlib.Path) -> None:
    """All logits of `ids` as one .npy, 256 tokens at a time."""
    import decoder

    model = decoder.Decoder(decoder.Weights(model_path))
    rows = []
    for i in range(0, len(ids), 256):
        rows.append(model.forward(ids[i : i + 256]).numpy())
        print(f"\r{min(i + 256, len(ids))} of {len(ids)} tokens", end="", file=sys.stderr)
    print(file=sys.stderr)
    np.save(out, np.concatenate(rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--ids", type=pathlib.Path, help="ids_512.txt of the model's goldens if left out")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--full", type=pathlib.Path)
    parser.add_argument("--compare", type=pathlib.Path)
    parser.add_argument("--reference", type=pathlib.Path)
    args = parser.parse_args()
    folder = goldens_of(args.model)
    try:
        if args.compare:
            return 0 if compare.compare(args.compare, folder, args.reference) else 1
        if args.full:
            write_full(args.model, compare.read_ids(args.ids or folder / "ids_512.txt"), args.full)
            return 0
        arrays = make(args.model, args.verify)
        check(arrays, folder) if args.check else store(arrays, folder)
    except (compare.Failure, OSError) as e:
        print(f"logits: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
