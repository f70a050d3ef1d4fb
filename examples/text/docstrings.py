"""A set of texts that every Python carries: which package of its standard library is a docstring from?

    python examples/text/docstrings.py docstrings.csv

Columns are ``text`` and ``package``. Other versions of Python make other texts, with another digest.
"""

import ast
import csv
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("asyncio", "ctypes", "email", "http", "importlib", "logging", "multiprocessing", "unittest")
LEAST, MOST = 30, 150
"""Characters of a text that is taken at least, and texts of a package at most."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(package: str) -> Iterator[str]:
    """Yield the different docstrings of a package in the order of its files, without its name in them."""
    seen = set[str]()
    for file in sorted(Path(sysconfig.get_path("stdlib"), package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            text = " ".join(((isinstance(node, _DOCUMENTED) and ast.get_docstring(node)) or "").split())
            text = text.replace(package, "it")
            if len(text) >= LEAST and text not in seen:
                seen.add(text)
                yield text


def main(output: str) -> None:
    """Write the table."""
    with open(output, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "package"])
        for package in PACKAGES:
            texts = [*docstrings(package)]
            step = max(1, len(texts) / MOST)
            rows.writerows([texts[int(k * step)], package] for k in range(min(MOST, len(texts))))


if __name__ == "__main__":
    main(sys.argv[1])
