#!/usr/bin/env python3
"""Every broken model file costs one line and nothing else: a status other than 0, no signal, little time and memory.

    malformed_test.py ENGINE TINY_MODEL [--keep FOLDER]

Makes the files from the one that TINY_MODEL writes, runs `ENGINE run` on each, and checks what comes out. Broken bits
at random places may leave a file that works; it must then work, or fail as the others do. Standard library only."""
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import folder_cases  # noqa: E402
import gguf_cases  # noqa: E402
from folder import files_of  # noqa: E402
from gguf_file import Gguf  # noqa: E402

SECONDS, MEMORY = 2.0, 256 << 20
SLOW = 15 if "asan" in sys.argv[1] else 1  # sanitizers; their shadow memory is not counted
PIPELINES = Path("tests/goldens/text/pipelines.json")
FLIPS = 60


def run(engine, path):
    """Status, standard error, seconds of CPU, most bytes resident."""
    args = [engine, "run", "-m", str(path), "-p", "x", "-n", "2", "-t", "1", "-c", "64", "--kv-size", "16m"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        deadline = time.monotonic() + 60
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                child.kill()
            time.sleep(0.002)
        child.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        return child.returncode, err.read().decode(errors="replace"), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def wrong_with(result, path, words, may_work=False):
    """What is wrong with how the engine took a file; empty if nothing."""
    status, error, seconds, memory = result
    faults = []
    if seconds > SECONDS * SLOW:
        faults.append(f"took {seconds:.1f} s")
    if SLOW == 1 and memory > MEMORY:
        faults.append(f"took {memory >> 20} MiB")
    if may_work and status == 0:
        return faults
    if status <= 0:
        faults.append(f"ended with status {status}")
    if not re.fullmatch(r"sparse-engine: [^\n]{1,900}\n", error):
        faults.append("standard error is not one line")
    if not may_work and path.name not in error:
        faults.append(f"the error does not name {path.name}")
    faults += [f"the error lacks {w!r}" for w in words if w not in error]
    return faults


def write_folder(path, files):
    path.mkdir()
    for name, data in files.items():
        if data is None:
            (path / name).mkdir()
        else:
            (path / name).write_bytes(data)


def flipped(raw, rng):
    out = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        out[rng.randrange(min(len(out), 12000))] ^= 1 << rng.randrange(8)
    return bytes(out)


def main():
    engine, tiny_model = sys.argv[1:3]
    keep = sys.argv[4] if sys.argv[3:4] == ["--keep"] else None
    bad, count = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(keep or temporary)
        base.mkdir(exist_ok=True)
        model = base / "good.gguf"
        subprocess.run([tiny_model, str(model)], check=True)
        raw = model.read_bytes()
        gguf = Gguf(raw)
        if gguf.bytes() != raw:
            bad.append("good.gguf: taken apart and put together it differs")
        files = files_of(gguf, json.loads(PIPELINES.read_text())["gpt-2"])
        write_folder(base / "good", files)
        for good in (model, base / "good"):
            status, error, *_ = run(engine, good)
            if (status, error) != (0, ""):
                bad.append(f"{good.name}: status {status}: {error}")

        def check(name, path, words, may_work=False):
            nonlocal count
            count += 1
            result = run(engine, path)
            bad.extend(f"{name}: {fault}: {result[1]!r}" for fault in wrong_with(result, path, words, may_work))

        for name, data, words in gguf_cases.cases(raw):
            path = base / f"{count}.gguf"
            path.write_bytes(data)
            # A template is part of a request, not of loading: its error names itself.
            check("gguf: " + name, path, words, may_work=False) if not name.startswith("template") else check(
                "gguf: " + name, path, words + ["template"], may_work=True)
        for name, broken, words in folder_cases.cases(files, gguf):
            path = base / f"{count}.folder"
            write_folder(path, broken)
            check("folder: " + name, path, words)
        rng = random.Random(1)
        for i in range(FLIPS):
            path = base / f"{count}.gguf"
            path.write_bytes(flipped(raw, rng))
            check(f"gguf: flips {i}", path, [], may_work=True)
            path = base / f"{count}.folder"
            write_folder(path, dict(files, **{"model.safetensors": flipped(files["model.safetensors"], rng)}))
            check(f"folder: flips {i}", path, [], may_work=True)
    print("\n".join(bad))
    print(f"{count - len(bad)} passed, {len(bad)} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
