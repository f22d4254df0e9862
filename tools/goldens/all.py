#!/usr/bin/env python3
"""Re-makes every golden of the tree, or checks that they are what their oracles make now.

    tools/goldens/all.py [--check] [--only numpy|model]

Runs each `*_oracle.py` under src/ (they need NumPy alone), then, where PyTorch is there, families.py and logits.py of
the models that have been fetched; `--only` asks for one half and then fails if it cannot run. New oracles are found by their name. If this Python has no
NumPy or PyTorch and .venv exists, that one runs.
"""

import argparse
import pathlib
import subprocess
import sys

from python_env import ROOT, missing, prefer

HERE = pathlib.Path(__file__).resolve().parent
MODELS = [ROOT / "models" / f"{name}.gguf" for name in ("smollm2", "qwen0.5b", "gemma270m")]


def run(script: pathlib.Path, check: bool, *more: str) -> bool:
    command = [sys.executable, str(script), *more] + (["--check"] if check else [])
    good = subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    if not good:
        print(f"{script.relative_to(ROOT)}: FAILED", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--only", choices=("numpy", "model"))
    args = parser.parse_args()
    prefer("numpy", "torch")
    results = []
    if args.only != "model":
        if missing("numpy"):
            print("all: NumPy is missing: apt-get install python3-numpy, or use .venv/bin/python", file=sys.stderr)
            return 1
        results += [run(x, args.check) for x in sorted((ROOT / "src").rglob("*_oracle.py"))]
    if args.only != "numpy":
        lacks = missing("torch", "gguf", "tokenizers", "transformers")
        if not lacks:
            results.append(run(HERE / "families.py", args.check))
            for model in MODELS:
                if model.exists():
                    results.append(run(HERE / "logits.py", args.check, "--model", str(model)))
                else:
                    print(f"goldens of {model.stem} left out: {model.relative_to(ROOT)} is not here")
        elif args.only == "model":
            print(f"all: the model goldens need {', '.join(lacks)}", file=sys.stderr)
            return 1
        else:
            print(f"model goldens left out: {', '.join(lacks)} not here")
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
