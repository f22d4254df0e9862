#!/usr/bin/env python3
"""Compares every #include "module/..." with tools/layers.txt; prints the edge and the two files."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
STAGE_AXES = ("sparse/prefill", "sparse/keep", "sparse/store", "sparse/read", "sparse/place")


def load_rules():
    rules = {}
    for line in (ROOT / "tools/layers.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            module, allowed = line.split(":")
            rules[module.strip()] = set(allowed.split())
    return rules


def module_of(path, rules):
    parts = path.split("/")
    for n in range(len(parts), 0, -1):
        if "/".join(parts[:n]) in rules:
            return "/".join(parts[:n])
    return None


def main():
    rules, bad, seen = load_rules(), [], 0
    files = [f for top in ("src", "include", "tests") for f in (ROOT / top).rglob("*") if f.suffix in
             (".h", ".cc", ".cu", ".cuh", ".inl")]
    for file in sorted(files):
        top = file.relative_to(ROOT).as_posix()
        name = top.split("/", 1)[1] if top.startswith(("src/", "include/")) else top
        own = module_of(name, rules)
        if own is None:
            bad.append(f"{top}: no module in tools/layers.txt")
            continue
        for target in INCLUDE.findall(file.read_text(errors="replace")):
            seen += 1
            if "/" not in target:
                if not (file.parent / target).exists():
                    bad.append(f"{top}: includes \"{target}\", which is not beside it")
                continue
            other = module_of(target, rules)
            if other is None:
                bad.append(f'{top}: includes "{target}" of no known module')
            elif other.endswith("testing") and file.stem.endswith("_test"):
                continue
            elif other != own and other not in rules[own]:
                bad.append(f"{own} -> {other}: {top} includes {target}")
            elif own in STAGE_AXES and other == own:
                stage = "/".join(name.split("/")[:3])
                if not target.startswith(stage + "/"):
                    bad.append(f"stage -> stage: {top} includes {target}")
    for line in bad:
        print(line)
    print(f"{len(files)} files, {seen} includes, {len(bad)} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
