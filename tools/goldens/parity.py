#!/usr/bin/env python3
"""Is the engine's model the model? Runs it on the goldens' tokens and prints the figures against their bars.

    tools/goldens/parity.py [--engine build/sparse-engine] [--model models/NAME.gguf] [--tokens 2048]

NAME is smollm2 (the default), qwen0.5b or gemma270m.

1. exact mode, 512 tokens: log-probabilities within 2e-4 of the logit range of the PyTorch golden
2. exact mode, 256 greedy tokens: equal outside near ties
3. the default path against exact mode on 2,048 tokens: mean KL divergence at most 0.005 nats, and the same likeliest
   token at 98 % of the positions where exact mode's two likeliest differ by more than 0.1 nat
Needs NumPy. Exits with 1 if one fails.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from python_env import ROOT, prefer

prefer("numpy")
import compare  # noqa: E402
import kl  # noqa: E402


def run(engine: pathlib.Path, model: pathlib.Path, ids: pathlib.Path, *more: str) -> dict:
    command = [str(engine), "run", "-m", str(model), "--raw", "--ids", str(ids), "--json", *more]
    begun = time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise compare.Failure(f"{' '.join(command)}: exit code {result.returncode}: {result.stderr.strip()[-300:]}")
    print(f"  run {ids.name} {' '.join(more)}: {time.monotonic() - begun:.1f} s", flush=True)
    return json.loads(result.stdout)


def divergence(args: argparse.Namespace, goldens: pathlib.Path, folder: pathlib.Path) -> bool:
    ids = folder / "ids.txt"
    ids.write_text(" ".join(map(str, compare.read_ids(goldens / "ids_2048.txt")[: args.tokens])))
    wide = ("--prompt-logprobs", "1000", "-n", "0")
    exact = run(args.engine, args.model, ids, "--compute", "exact", *wide)
    return kl.report(exact, run(args.engine, args.model, ids, *wide), 0.005)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=pathlib.Path, default=ROOT / "build" / "sparse-engine")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "smollm2.gguf")
    parser.add_argument("--tokens", type=int, default=2048, help="of the third bar")
    args = parser.parse_args()
    exact, goldens = ("--compute", "exact"), ROOT / "tests" / "goldens" / args.model.stem
    try:
        scored = run(args.engine, args.model, goldens / "ids_512.txt", *exact, "--prompt-logprobs", "8", "-n", "0")
        good = [compare.compare_json(scored, goldens)]
        told = ("--temp", "0", "--ignore-eos", "-n", "256")
        spoken = run(args.engine, args.model, goldens / "greedy_prompt_ids.txt", *exact, *told)
        good.append(compare.compare_greedy(spoken, goldens))
        with tempfile.TemporaryDirectory() as folder:
            good.append(divergence(args, goldens, pathlib.Path(folder)))
    except (compare.Failure, OSError, ValueError, KeyError) as e:
        print(f"parity: {e}", file=sys.stderr)
        return 1
    print(f"{sum(good)} passed, {len(good) - sum(good)} failed")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
