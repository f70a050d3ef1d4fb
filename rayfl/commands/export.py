"""Command line: ``rayfl export RUN --client 3`` writes a client's trained model for other programs."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import rayfl
from rayfl.commands.command_line import Parser, parser_of_function
from rayfl.errors import Conflict
from rayfl.running.result import Result
from rayfl.settings.imports import local_imports
from rayfl.system.error_report import exit_code
from rayfl.system.files import write_file
from rayfl.system.text import print_note, warn

if TYPE_CHECKING:  # the help does not need torch, which imports slowly
    import torch
    from torch import nn

    from rayfl.running.saved_models import Models

Format = Literal["safetensors", "torch"]
MODEL_ENDINGS = {"safetensors": ".safetensors", "torch": ".pt2"}


def export(
    folder: str | Path,
    client: int,
    output: str | Path,
    view: str | None = None,
    format: Format = "safetensors",
    round: int | Literal["best"] | None = None,
    merged: bool = False,
) -> Path:
    """Write a model of a run, and a JSON file beside it that describes its inputs and classes.

    Args:
        folder: the run folder; the data set is not needed.
        client: the client's number.
        output: the file to write, or a folder, in which the file gets a default name.
        view: the model; by default that of the run's headline.
        format: ``safetensors`` writes the weights of a view that is one net, by their names; ``torch``
            a program of ``torch.export`` with its weights, of any view.
        round: completed rounds of the checkpoint, or ``best``, by validation; by default the newest one.
        merged: whether linear layers take up their adapters, so that names are those of the base.

    Returns:
        The file with the model.
    """
    from rayfl.running.saved_models import load_models

    models, result = load_models(folder, round, data=False), Result.load(folder)
    view = view or _headline_view(result, models)
    return _write_model(models, result, client, Path(output), view, format, merged)


def _write_model(
    models: Models, result: Result, client: int, output: Path, view: str, format: Format, merged: bool
) -> Path:
    import torch
    from safetensors.torch import save

    from rayfl.nets.adapters import merge_adapters

    path, formats = output, {ending: name for name, ending in MODEL_ENDINGS.items()}
    if (other := formats.get(output.suffix, format)) != format:
        raise Conflict("--output", f"{output} is of the format {other}", f"give --format {other}")
    if output.suffix not in formats:
        path = output / f"client-{client}-{view}{MODEL_ENDINGS[format]}"
    if format == "safetensors":
        plain = models.plain(client, view)
        if plain is None:
            problem = f"{view} is made of several nets, and has no weights of one net"
            raise Conflict("view", problem, "give --format torch")
        plain = merge_adapters(plain) if merged else plain
        content = save(
            {n: t.clone(memory_format=torch.contiguous_format) for n, t in plain.state_dict().items()}
        )
    else:
        module = models[client].module(view)
        module = merge_adapters(module) if merged else module
        torch.export.save(_exported_program(module, models), file := io.BytesIO())
        content = file.getvalue()
    write_file(path, content, "choose another --output")
    about = _model_facts(models, result, client, view, format, path)
    beside = path.with_name(f"{path.name}.json")
    write_file(beside, json.dumps(about, indent=2) + "\n", "choose another --output")
    return path


def _headline_view(result: Result, models: Models) -> str:
    """Return the view that a run reports, which must be one whose models are saved."""
    headline = result.summary["headline"] or {"view": "personal", "point": "after_aggregation"}
    if headline["view"] not in models.views:
        problem = f"is not given, and the run reports {headline['view']}, whose models are not saved"
        raise Conflict("view", problem, f"choose one of {', '.join(models.views)}")
    if (point := headline["point"]) != "after_aggregation":
        warn(f"the run reports scores at {point}, and these models are those after aggregation")
    return str(headline["view"])


def _exported_program(module: nn.Module, models: Models) -> torch.export.ExportedProgram:
    """Return a program that takes batches of any size."""
    import torch

    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(module, (models.example_inputs(),), dynamic_shapes=({0: batch},))


def _model_facts(
    models: Models, result: Result, client: int, view: str, format: Format, path: Path
) -> dict[str, Any]:
    dataset = models.data.dataset
    nets = result.config["net"] if isinstance(result.config["net"], list) else [result.config["net"]]
    scaling = {"divide_by": 255, "mean": list(dataset.mean), "std": list(dataset.std)}
    return {
        "format": format,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "run": str(result.folder),
        "method": result.config["method"],
        "net": nets[client % len(nets)],
        "client": client,
        "view": view,
        "round": models.round,
        "trained": models[client].trained,
        "classes": list(dataset.class_names),
        "input": {"dtype": str(dataset.inputs.dtype), "shape": list(dataset.shape)},
        "preprocessing": scaling if str(dataset.inputs.dtype) == "uint8" else None,
        **({"columns": encoding.record()} if (encoding := models.data.encoding) else {}),
        "takes": str(models.example_inputs().dtype).removeprefix("torch."),
        "rayfl": rayfl.__version__,
    }


def parser() -> Parser:
    """Return the parser of the command line."""
    return parser_of_function(
        export_models,
        {"run": "RUN", "client": "N", "output": "PATH", "matrix": "FILE"},
        prog="rayfl export",
        usage="rayfl export RUN --client N [OPTIONS]",
    )


def export_models(
    run: str,
    *,
    client: Sequence[int | Literal["all"]],
    view: str | None = None,
    format: Format = "safetensors",
    output: str | None = None,
    round: int | Literal["best"] | None = None,
    matrix: str | None = None,
    merged: bool = False,
) -> None:
    """Write a client's trained model for other programs, with a JSON file beside it: classes, inputs and how
    they are normalised. The data set is not needed.

    Args:
        run: the run folder.
        client: its number, from 0; several; or all.
        view: the model; default: the headline's.
        format: safetensors: the weights of one net; torch: a program of torch.export, of any view.
        output: file or folder; default: the folder models in the run folder.
        round: after so many rounds, or best: after the evaluation that is best on validation data, of a run
            with checkpoint_keep=best; default: the newest checkpoint.
        matrix: write instead the figure of every one of these models on the test data of every one of these
            clients, as CSV: a row for each model. This needs the data set.
        merged: let linear layers take up their adapters, so that names are those of the base.
    """
    # rayfl writes no code into run folders: code there may be a stranger's.
    foreign = any(file.name.endswith((*all_suffixes(),)) for file in Path(run).rglob("*"))
    with nullcontext() if foreign else local_imports():
        from rayfl.report.formats import csv_text
        from rayfl.running.saved_models import load_models

        result = Result.load(run)
        models = load_models(run, round, data=matrix is not None)
        view = view or _headline_view(result, models)
        clients = list(range(len(models)) if "all" in client else dict.fromkeys(map(int, client)))
        if matrix is not None:
            found = models.figures(clients, view).tolist()
            heads = [f"data of client {i}" for i in clients]
            rows = [{"model of client": i} | dict(zip(heads, own)) for i, own in zip(clients, found)]
            write_file(Path(matrix).expanduser(), csv_text(rows), "choose another --matrix")
            return print_note(matrix)
        place = Path(output or Path(run, "models")).expanduser()
        if len(clients) > 1 and place.suffix in MODEL_ENDINGS.values():
            raise Conflict("--output", f"{place} is one file, for {len(clients)} clients: give a folder")
        for number in clients:
            print_note(_write_model(models, result, number, place, view, format, merged))
            if not models[number].trained:
                warn(f"client {number} has never trained: its model is the initial one, or the server's")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 after an error of the user's."""
    return exit_code(lambda: export_models(**vars(parser().read(arguments))))
