#!/usr/bin/env python3
"""Opens the page of `inspect kv` in a headless browser and holds what it shows against the data in it.

    check_page.py ENGINE MODEL [--picture FILE.png]

Needs chromium (Debian's package of that name)."""
import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PLAN = "snapkv(budget=96,sink=4,recent=32)+quest(budget=64)"


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("engine")
    args.add_argument("model")
    args.add_argument("--picture")
    a = args.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        sys.exit("check_page: no chromium; install Debian's package chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "kv.html"
        subprocess.run([a.engine, "inspect", "kv", "-m", a.model, "-p", "the quick brown fox <b>jumps</b> " * 30, "-n", "6",
                        "--ignore-eos", "--plan", PLAN, "-o", str(page)], check=True, stdout=subprocess.DEVNULL)
        options = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000",
                   "--window-size=1200,1400", f"--user-data-dir={folder}/profile"]
        dom = subprocess.run([*options, "--dump-dom", page.as_uri()], check=True, capture_output=True, text=True).stdout
        if a.picture:
            subprocess.run([*options, f"--screenshot={a.picture}", page.as_uri()], check=True, capture_output=True)
        data = json.loads(re.search(r'id="data">(.*?)</script>', dom, re.S).group(1))
    spans = re.findall(r'<span title="token (\d+)[^"]*" class="([^"]*)"[^>]*>(.*?)</span>', dom, re.S)
    spans += [(i, c, t) for c, i, t in re.findall(r'<span class="([^"]*)" title="token (\d+)[^"]*"[^>]*>(.*?)</span>', dom, re.S)]
    shown = {int(i): (c.split(), html.unescape(t)) for i, c, t in spans}
    assert len(shown) == len(data["tokens"]), (len(shown), len(data["tokens"]))
    kept, read = set(data["kept"][0]["positions"]), set(data["steps"][0]["layers"][0]["positions"])
    for i, text in enumerate(data["tokens"]):
        classes, inside = shown[i]
        assert inside == text, (i, inside, text)
        assert ("kept" in classes) == (i in kept and i < data["prompt_tokens"]), (i, classes)
        assert ("read" in classes) == (i in read), (i, classes)
    says = re.search(r'id="says"[^>]*>(.*?)</div>', dom, re.S).group(1)
    assert f"keeps {len(kept)} of {data['prompt_tokens']}" in says and f"reads {len(read)} tokens" in says, says
    print(f"page: {len(shown)} tokens, {len(kept)} kept, {len(read)} read, as in its data")


main()
