"""The largest differences between rayfl and public code: python -m benchmarks.public --source DIR."""

import argparse
from importlib import import_module
from pathlib import Path

ADAPTERS = (
    "pfllib", "fedco2", "fdse", "fedgh", "fedios", "domains", "niid_bench", "fl_bench", "fedbabu", "fedfomo",
    "fedpac",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.public", description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="folder with the repositories as folders")
    parser.add_argument("--method", nargs="*", default=[], help="methods, such as FedPer; all if not given")
    wanted = parser.parse_args()
    print("| repository | method | server | clients | scores |\n|---|---|---|---|---|", flush=True)
    for name in ADAPTERS:
        for method, pair in import_module(f"benchmarks.public.{name}").PAIRS.items():
            if wanted.method and method.split(",")[0] not in wanted.method:
                continue
            repository = pair.folder.split("/")[0]
            if not (wanted.source / pair.folder).is_dir():
                print(f"| {repository} | {method} | no folder {pair.folder} | | |", flush=True)
                continue
            found = pair.differences(wanted.source)
            scores = [value for view, value in found.items() if view not in ("server", "clients")]
            each = [found.get("server"), found.get("clients"), max(scores, default=None)]
            shown = " | ".join("" if value is None else f"{value:.0e}" for value in each)
            print(f"| {repository} | {method} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
