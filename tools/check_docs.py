#!/usr/bin/env python3
"""Holds the documents to the code.

Every name in backticks in docs/one-token.md, docs/architecture.md and docs/glossary.md must exist: a path in the tree
(also below src/ and include/), a qualified name (`Driver::begin`: a file that declares Driver and says begin), a
command `./dev X`, an option `--x` of the command line, or words of the source. Every relative link of every .md file
must lead to a file, and to a heading of it where it names one. README.md must show `./dev demo` and `./dev test`.
Prints what is missing, a line each; exit status 1 if anything is. Standard library only."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMED = ["docs/one-token.md", "docs/architecture.md", "docs/glossary.md"]
SOURCES = {".h", ".cc", ".inl", ".in", ".cu", ".cuh"}
FENCE = re.compile(r"^```.*?^```[^\n]*$", re.M | re.S)
SPAN = re.compile(r"`([^`\n]+)`")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Code:
    def __init__(self):
        files = [f for top in ("src", "include") for f in (ROOT / top).rglob("*") if f.suffix in SOURCES]
        self.texts = [f.read_text(encoding="utf-8") for f in files]
        self.words = [set(WORD.findall(t)) for t in self.texts]
        self.all_words = set().union(*self.words)
        self.cli = "".join(t for f, t in zip(files, self.texts) if "cli" in f.parts)
        cmake = [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake")]
        self.all_words |= set(WORD.findall("".join(f.read_text(encoding="utf-8") for f in cmake)))
        self.dev = (ROOT / "dev").read_text(encoding="utf-8")

    def has_path(self, path):
        path = path.rstrip("/")
        for top in ("", "src", "include"):
            if (ROOT / top / path).exists() or ("*" in path and any((ROOT / top).glob(path))):
                return True
        return False

    def has_member(self, owner, member):
        """A file that declares `owner` (or defines owner::member) names `member`."""
        declares = re.compile(rf"\b(?:class|struct|enum(?: class)?|namespace)\s+(?:\w+::)*{owner}\b")
        literal = re.compile(rf"\b{owner}::{member}\b")
        for text, words in zip(self.texts, self.words):
            if owner in words and member in words and (declares.search(text) or literal.search(text)):
                return True
        return False

    def has(self, span):
        name = span.strip()
        if name.startswith("./dev"):
            command = name.split()[1:2]
            return not command or re.search(rf"^\s+({command[0]}|[\w |-]*\| *{command[0]})\b.*\)", self.dev, re.M)
        if name.startswith("sparse-engine"):  # its command and options; values are anybody's
            command, options = name.split()[1:2], re.findall(r"(?<!\S)--?[a-z][a-z-]*", name)
            return all(f'"{c}"' in self.cli for c in command) and all(re.search(rf'[",]{o}[",]', self.cli) for o in options)
        bare = re.sub(r"\(.*\)$", "", name)
        if "/" in bare and re.fullmatch(r"[\w.*/-]+", bare):
            return self.has_path(bare)
        if re.fullmatch(r"\w+(::~?\w+)+", bare):
            parts = [p.lstrip("~") for p in bare.removeprefix("se::").split("::")]
            pairs = list(zip(parts, parts[1:]))
            return all(self.has_member(a, b) for a, b in pairs) if pairs else parts[0] in self.all_words
        if re.fullmatch(r"[\w.-]+\.(h|cc|inl|py|txt|cmake|md)", bare):
            return any(any((ROOT / top).rglob(bare)) for top in ("src", "include", "tools", "docs", "cmake", "tests"))
        return all(w in self.all_words for w in WORD.findall(name))


def heading_anchors(text):
    """Anchors as the common hosts make them of headings."""
    for line in FENCE.sub("", text).splitlines():
        if line.startswith("#"):
            title = re.sub(r"[`*]", "", line.lstrip("#").strip()).lower()
            yield re.sub(r"[^\w\- ]", "", title).replace(" ", "-")


def markdown_files():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT,
                            capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    skip = {"build", "models", ".venv"}  # a tree without git
    return [f for f in ROOT.rglob("*.md") if not skip & set(f.relative_to(ROOT).parts)]


def missing_names(code):
    for name in NAMED:
        path = ROOT / name
        if not path.is_file():
            yield f"{name}: the file is missing"
            continue
        # Fences are blanked line by line, so that line numbers stay.
        text = FENCE.sub(lambda m: "\n" * m.group().count("\n"), path.read_text(encoding="utf-8"))
        for number, line in enumerate(text.splitlines(), 1):
            for span in SPAN.findall(line):
                if not code.has(span):
                    yield f"{name}:{number}: `{span}` is not in the source"


def broken_links():
    for path in markdown_files():
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        for target in LINK.findall(text):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            file, _, anchor = target.partition("#")
            to = (path.parent / file).resolve() if file else path
            where = f"{path.relative_to(ROOT)}: link to {target}"
            if not to.exists():
                yield f"{where}: there is no such file"
            elif anchor and to.suffix == ".md" and anchor not in heading_anchors(to.read_text(encoding="utf-8")):
                yield f"{where}: there is no such heading"


def main():
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    problems = [f"README.md: does not show {c}" for c in ("./dev demo", "./dev test") if c not in text]
    problems += missing_names(Code())
    problems += broken_links()
    for p in problems:
        print(p, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
