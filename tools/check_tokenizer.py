#!/usr/bin/env python3
"""Compares the engine's token ids with Hugging Face `tokenizers` on at least 1 MB of mixed text.

    python tools/check_tokenizer.py [--model models/smollm2.gguf] [--command CMD]

The text is the same on every run: the Bible of Debian's bible-kjv (skipped when not installed), code,
many scripts, emoji, odd spaces, control characters and random assigned code points. CMD reads the text on
standard input and prints {"ids": [...]}. Exit code 1 on the first difference, which is printed.
"""

import argparse
import json
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import time
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools/goldens"))
import vocabularies  # noqa: E402  (the pipeline of the reference is built there)

WORDS = (
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u03ba\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u4f60\u597d\u4e16\u754c \u65e5\u672c\u8a9e "
    "\ud55c\uad6d\uc5b4 \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 "
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0 \u0567\u0580 caf\u00e9 stra\u00dfe "
    "na\u00efve \u00bd \u2167 \u0663\u0664\u0665 \U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f "
    "I'm you're he'll they'd we've it's can't 3.14 1,000 0x1F a_b x->y {}; // /* */ <tag/> <|im_start|> <|im_end|> <|im"
).split(" ")
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028"]


def bible(size):
    if not shutil.which("bible"):
        print("bible-kjv is not installed: its part is skipped")
        return ""
    out = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], capture_output=True, text=True, check=False).stdout
    return out[:size]


def code(size):
    files = sorted((ROOT / "src").rglob("*.cc")) + sorted((ROOT / "tools").rglob("*.py"))
    return "".join(f.read_text() for f in files)[:size]


def mixed(rng, size):
    parts, length = [], 0
    while length < size:
        part = rng.choice(WORDS) + rng.choice(SPACES)
        if rng.random() < 0.1:
            part += str(rng.randrange(10 ** rng.randrange(1, 12)))
        if rng.random() < 0.05:
            part += chr(rng.randrange(0x20)) + chr(rng.randrange(0x7F, 0xA0))
        if rng.random() < 0.02:
            part += rng.choice(" \n\ta=-") * rng.randrange(100)
        parts.append(part)
        length += len(part.encode())
    return "".join(parts)


def every_code_point(rng):
    """Every assigned code point once, shuffled, with spaces, letters and digits between; then random ones."""
    points = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]
    rng.shuffle(points)
    text = "".join(chr(c) + rng.choice(["", "", " ", "a", "1", "'s", "\n"]) for c in points)
    return text + "".join(chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])) for _ in range(20000))


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--model", default=str(ROOT / "models/smollm2.gguf"))
    args.add_argument("--command", help="default: build/sparse-engine tokenize -m MODEL --json")
    args = args.parse_args()
    command = args.command or f"{ROOT}/build/sparse-engine tokenize -m {shlex.quote(args.model)} --json"
    rng = random.Random(2026)
    sections = {
        "bible": bible(700_000),
        "code": code(200_000),
        "mixed": mixed(rng, 400_000),
        "code points": every_code_point(rng),
    }
    text = "\n".join(sections.values())
    size = len(text.encode())
    print(", ".join(f"{k} {len(v.encode()):,}" for k, v in sections.items()) + f": {size:,} bytes")
    if size < 1_000_000:
        sys.exit("the text is smaller than 1 MB")
    tokenizer = vocabularies.byte_level(vocabularies.read_gguf(args.model))
    reference = tokenizer.encode(text, add_special_tokens=False)
    started = time.time()
    run = subprocess.run(shlex.split(command), input=text.encode(), capture_output=True, check=False)
    seconds = time.time() - started
    if run.returncode != 0:
        sys.exit(f"{command}: exit code {run.returncode}: {run.stderr.decode().strip()}")
    ids = json.loads(run.stdout)["ids"]
    for at, (ours, theirs) in enumerate(zip(ids, reference.ids)):
        if ours != theirs:
            begin, end = reference.offsets[at]
            context = text[max(0, begin - 20) : end + 20]
            sys.exit(f"token {at}: {ours}, reference {theirs}, near {context!r}")
    if len(ids) != len(reference.ids):
        sys.exit(f"{len(ids)} tokens, reference {len(reference.ids)}")
    print(f"{len(ids):,} ids equal; {seconds:.2f} s with start-up")


if __name__ == "__main__":
    main()
