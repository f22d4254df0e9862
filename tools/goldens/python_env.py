"""Runs the calling script again in .venv where this Python lacks what it needs."""

import importlib.util
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def missing(*modules: str) -> list[str]:
    return [m for m in modules if importlib.util.find_spec(m) is None]


def prefer(*modules: str) -> None:
    """Does not return if `modules` are not all here and there is a .venv that requirements.txt was installed in."""
    python = ROOT / ".venv" / "bin" / "python"
    if missing(*modules) and python.exists() and pathlib.Path(sys.prefix) != python.parents[1]:
        os.execv(python, [str(python), *sys.argv])
