#!/usr/bin/env python3
"""Asks a model for one made-up fact that lies deep in a long public text, dense and under a composed KV plan, and
prints one table of what each answer took. Every figure is a field of `sparse-engine run --json`.

The text runs from the Book of Ruth to the Second Book of Kings as Debian's `bible` command prints them. The fact and
the question stand below; document and question go in one prompt, through the model's chat template, answered greedily.
At the short length smollm2 finds the fact when it reads everything; at the long length it does not (it is a model of
135 million parameters), so there only the cost is compared. qwen0.5b (--model) finds it at both of its lengths."""
import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOKS = "ruth1:1-2kings25:30"
FACT = "The magic number of the harbour is 73."
QUESTION = "What is the magic number of the harbour?"
ANSWER = r"\b73\b"  # a pattern
PLACE = 0.6  # of the verses before the fact
PLAN = "snapkv(budget=512)+kivi(bits=4)+quest(budget=256)"
LENGTHS = {  # by model, prompt tokens; others take the last
    "smollm2": {"dense finds the fact": 1900, "only the cost is compared": 7500},
    "qwen0.5b": {"about 4,000 tokens": 4000, "about 8,000 tokens": 8000},
}
ANSWER_TOKENS = 24
LABEL, COLUMN = 22, 20  # widths of the table
SHARE = "keys the prompt reads"  # a row only where it is not all of them
COLOUR = sys.stdout.isatty() or bool(os.environ.get("CLICOLOR_FORCE"))
BOLD, DIM, GREEN, YELLOW = 1, 2, 32, 33


def die(message):
    print(f"demo: {message}", file=sys.stderr)
    sys.exit(1)


def call(command, text=None):
    """Standard output of a command; its own one-line message and the end of the demo if it fails."""
    try:
        done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=False)
    except OSError as e:
        die(f"{command[0]}: {e.strerror} (./dev demo does all set-up)")
    if done.returncode != 0:
        die(f"{Path(command[0]).name} {command[1]} ended with status {done.returncode}")
    return done.stdout


def verses():
    lines = call(["bible", "-f", BOOKS]).splitlines()  # "Ruth1:1 Now it came to pass ..."
    out = [line.split(" ", 1)[1].strip() for line in lines if " " in line]
    if len(out) < 500:
        die(f"`bible -f {BOOKS}` printed {len(out)} verses, expected more than 500")
    return out


class Engine:
    def __init__(self, path, model, threads):
        self.path, self.model = str(path), str(model)
        self.threads = ["-t", str(threads)] if threads else []

    def tokens(self, text):
        return len(json.loads(call([self.path, "tokenize", "-m", self.model, "--no-special", "--json"], text))["ids"])

    def run(self, prompt_file, plan):
        return json.loads(call([self.path, "run", "-m", self.model, "-f", str(prompt_file), "--plan", plan, "-n",
                                str(ANSWER_TOKENS), "--json", *self.threads]))


def prompt_of(text, n):
    """The first n verses with the fact among them, then the question."""
    at = int(n * PLACE)
    return " ".join(text[:at] + [FACT] + text[at:n]) + "\n\n" + QUESTION


def fit(engine, text, target):
    """A prompt of at most `target` tokens (without the few of the chat template), short of it by less than a verse or
    two. Tokens per verse hardly vary, so a few guesses do."""
    n, best = 40, 1
    for _ in range(6):
        count = engine.tokens(prompt_of(text, n))
        if count <= target:
            best = max(best, n)
        step = int((target - count) * n / count)  # towards zero; a verse over the target goes
        if step == 0 and count <= target:
            break
        n = min(len(text), max(1, n + (step or -1)))
    return prompt_of(text, best)


def mib(n):
    return f"{n / 2**20:.1f} MiB"


def paint(text, *codes):
    return f"\033[{';'.join(map(str, codes))}m{text}\033[0m" if COLOUR and any(codes) and text.strip() else text


def rows_of(answer):
    """Label -> text of one column of the table, from the fields of run's JSON."""
    usage, timing = answer["usage"], answer["timing"]
    kv, steps = usage["kv"], len(timing["token_s"])
    return {
        "prompt tokens": f"{usage['prompt_tokens']:,}",
        SHARE: f"{kv['prompt_read_ratio']:.0%}",
        "time to first token": f"{timing['first_token_s']:.1f} s",
        "tokens per second": f"{steps / timing['decode_s']:.1f}" if steps else "-",
        "KV bytes resident": mib(kv["resident_bytes"]),
        "KV bytes at the peak": mib(kv["peak_bytes"]),
        "tokens read per step": f"{kv['read_tokens']:,.0f}",
        "answer": f'"{" ".join(answer["text"].split())}"',
        "": "right" if re.search(ANSWER, answer["text"]) else "wrong",
    }


def table(answers):
    """One column per answer: (length, plan name) -> run's JSON."""
    columns = {key: rows_of(answer) for key, answer in answers.items()}
    line = paint("-" * (LABEL + len(columns) * (COLUMN + 2)), DIM)
    together = Counter(length for length, _ in columns)
    lengths = [f"{length:^{n * (COLUMN + 2) - 2}}" for length, n in together.items()]
    names = [f"{name:>{COLUMN}}" for _, name in columns]
    out = [line, " " * LABEL + "".join("  " + paint(t, DIM) for t in lengths),
           " " * LABEL + "".join("  " + paint(t, BOLD) for t in names), line]
    for label in next(iter(columns.values())):
        if label == SHARE and all(c[label] == "100%" for c in columns.values()):
            continue
        cells = [textwrap.wrap(c[label], COLUMN) for c in columns.values()]
        for i in range(max(map(len, cells))):
            texts = [f"{c[i] if i < len(c) else '':>{COLUMN}}" for c in cells]
            codes = [{"right": GREEN, "wrong": YELLOW}.get(t.strip(), 0) for t in texts]
            out.append(f"{label if i == 0 else '':<{LABEL}}" + "".join("  " + paint(*x) for x in zip(texts, codes)))
    return "\n".join(out + [line])


def closing(plan, dense, composed):
    d, c = dense["usage"]["kv"], composed["usage"]["kv"]
    facts = []
    if c["prompt_read_ratio"] < 1:
        facts.append(f"reads {c['prompt_read_ratio']:.0%} of the keys while it computes the prompt "
                     f"({composed['timing']['first_token_s']:.1f} s to the first token instead of "
                     f"{dense['timing']['first_token_s']:.1f})")
    if c["resident_bytes"] < d["resident_bytes"]:
        facts.append(f"keeps {mib(c['resident_bytes'])} of KV instead of {mib(d['resident_bytes'])}, "
                     f"{d['resident_bytes'] / c['resident_bytes']:.0f} times less")
    if c["read_tokens"] < d["read_tokens"]:
        facts.append(f"reads {c['read_tokens']:,.0f} tokens a step instead of {d['read_tokens']:,.0f}")
    facts = facts or ["keeps and reads what dense does"]
    listed = " and ".join(part for part in (", ".join(facts[:-1]), facts[-1]) if part)
    line = (f"At {dense['usage']['prompt_tokens']:,} tokens {plan} {listed}; its peak was priced at "
            f"{c['predicted_peak_bytes']:,} bytes before it ran and counted at {c['peak_bytes']:,}.")
    return textwrap.fill(line, LABEL + 4 * (COLUMN + 2))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="smollm2", help="a name of models/ or the path of a GGUF file")
    p.add_argument("--engine", type=Path, default=ROOT / "build" / "sparse-engine", help="the binary")
    p.add_argument("--plan", action="append", help=f"compared with dense; may be repeated (default: {PLAN})")
    p.add_argument("--length", type=int, action="append",
                   help="prompt tokens, about; may be repeated (default: two, by model)")
    p.add_argument("--threads", type=int, default=0, help="of the engine (default: the cores it may use)")
    args = p.parse_args()
    model = Path(args.model) if args.model.endswith(".gguf") else ROOT / "models" / f"{args.model}.gguf"
    if not args.engine.is_file():
        die(f"{args.engine} is missing; ./dev build makes it")
    if not args.model.endswith(".gguf") and subprocess.run([ROOT / "dev", "model", args.model], check=False).returncode:
        sys.exit(1)
    if not model.is_file():
        die(f"{model} is missing")
    lengths = LENGTHS.get(args.model, LENGTHS["qwen0.5b"])
    if args.length:
        lengths = {f"about {n:,} tokens": n for n in args.length}
    plans = {"dense": "dense", "the plan": PLAN}
    if args.plan:
        plans = {"dense": "dense", "the plan": args.plan[0]}
        if len(args.plan) > 1:
            plans = {"dense": "dense"} | {f"plan {n}": p for n, p in enumerate(args.plan, 1)}

    progress = os.isatty(2)
    began = time.monotonic()
    engine, text, answers = Engine(args.engine, model, args.threads), verses(), {}
    prompt_file = ROOT / "build" / "demo-prompt.txt"
    prompt_file.parent.mkdir(exist_ok=True)
    print(f'fact      "{FACT}" (made up, planted {PLACE:.0%} into the text from Ruth on, King James version)')
    print(f'question  "{QUESTION}" (after the text, in one prompt)')
    for name, plan in list(plans.items())[1:]:
        print(f"{name:<8}  {plan}", flush=True)
    for n, (length, target) in enumerate(lengths.items()):
        if progress:
            print(f"making a prompt of about {target:,} tokens ...", file=sys.stderr)
        prompt_file.write_text(fit(engine, text, target), encoding="utf-8")
        for m, (name, plan) in enumerate(plans.items()):
            if progress:
                print(f"run {len(plans) * n + m + 1} of {len(plans) * len(lengths)}: about {target:,} tokens, {name}, "
                      f"{time.monotonic() - began:.0f} s so far", file=sys.stderr)
            answers[length, name] = engine.run(prompt_file, plan)
    print(table(answers))
    for name in list(plans)[1:]:
        print(closing(name, answers[length, "dense"], answers[length, name]))


if __name__ == "__main__":
    main()
