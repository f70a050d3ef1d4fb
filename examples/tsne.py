"""Show the features of trained clients in two dimensions by t-SNE: what enters the last layer.

    rayfl run --method FedCO2 --rounds 20 --output runs/mine
    python examples/tsne.py runs/mine --save tsne.png      # colour: class, marker: domain
    python examples/tsne.py runs/a runs/b --panels client  # a row for each run, a panel for each client

Every client's test samples go through its own model as the run's last checkpoint has it. A row of panels
shares one embedding, so distances compare within a row only. The papers of DC-PFL (per client) and FDSE (per
method and data set) have such pictures.
"""

import sys
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.manifold import TSNE

from rayfl import Models, UserError, load_models
from rayfl.commands.command_line import parser_of_function
from rayfl.randomness import generator, seed_of
from rayfl.report.look import drawn, save
from rayfl.system.text import complain, print_note

MARKERS = "os^DvPX*<>"
FEW, MANY = colormaps["tab10"], colormaps["tab20"]
"""Colours of up to ten classes, and of more; with more than twenty they come again."""


def tsne(
    runs: list[str],
    save: str = "tsne.png",
    panels: Literal["together", "client", "domain"] = "together",
    view: str | None = None,
    samples: int = 100,
    clients: int = 10,
    perplexity: float = 30.0,
    seed: int = 0,
) -> None:
    """Draw the features of clients' test samples, a row of panels for every run.

    Args:
        runs: run folders with checkpoints.
        save: the picture to write.
        panels: all clients in one panel, or one for each ``client`` or each ``domain``.
        view: the model whose features are drawn; by default ``personal``, or the first that has any.
        samples: test samples of each client, drawn at random; at least 1.
        clients: the first so many are shown; at least 1.
        perplexity: of t-SNE, above 0 and below the number of samples.
        seed: of the samples and of t-SNE.

    Raises:
        UserError: a run has no checkpoint or no such view, or an option is out of range.
    """
    for name, value in {"samples": samples, "clients": clients}.items():
        if value < 1:
            raise UserError(f"--{name} is {value}: it must be at least 1")
    rows = []
    for run in runs:
        models = load_models(run)
        found = collect(models, view, samples, min(clients, len(models)), seed)
        if not 0 < perplexity < len(found["features"]):
            raise UserError(
                f"--perplexity is {perplexity:g}: it must be above 0 and below the number of samples, "
                f"which is {len(found['features'])} in {run}"
            )
        state = seed_of(seed, "t-SNE") % 2**32
        embedding = TSNE(perplexity=perplexity, random_state=state, init="pca")
        found["place"] = embedding.fit_transform(found["features"])
        rows.append((run, models, found))
    draw(rows, panels, Path(save))
    print_note(save)


def collect(
    models: Models, view: str | None, samples: int, clients: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return features [n, d], and labels, clients and domains [n] of some test samples of clients.

    Raises:
        UserError: the view has no features.
    """
    columns: dict[str, list[np.ndarray]] = {"features": [], "label": [], "client": [], "domain": []}
    for client in range(clients):
        x, y = models.batch(client)
        if not len(x):
            continue
        some = torch.randperm(len(x), generator=generator(seed, "samples", client))[:samples]
        x, y = x[some], y[some]
        with torch.no_grad():
            views = models.features(client, x)
        name = view or ("personal" if "personal" in views else next(iter(views), "personal"))
        if name not in views:
            raise UserError(f"the view {name} has no features; there are {', '.join(views) or 'none'}")
        columns["features"].append(views[name].flatten(1).numpy())
        columns["label"].append(y.numpy())
        columns["client"].append(np.full(len(y), client))
        where = models.data.clients[client].test[some.numpy()]
        columns["domain"].append(models.data.dataset.domains[where])
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def draw(rows: list[tuple[str, Models, dict[str, np.ndarray]]], panels: str, path: Path) -> None:
    """Draw the panels: colour is the class, the marker the domain (or the client where there is one domain).

    Raises:
        UserError: the file cannot be written.
    """
    split = [np.unique(f[panels]) if panels != "together" else np.zeros(1, int) for _, _, f in rows]
    columns = max(map(len, split))
    figure = Figure(figsize=(max(5, 3 * columns), 3.2 * len(rows) + 0.4), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for (run, models, found), parts, axes in zip(rows, split, grid):
        for ax in axes[len(parts) :]:
            ax.set_visible(False)
        names = models.data.dataset.domain_names
        for part, ax in zip(parts, axes):
            shown = found[panels] == part if panels != "together" else np.ones(len(found["label"]), bool)
            scatter(ax, found, shown, "domain" if len(np.unique(found["domain"])) > 1 else "client", models)
            domain = drawn(names[int(part)]) if panels == "domain" else ""
            title = {"together": "", "client": f"client {part}", "domain": domain}[panels]
            above = f"{drawn(Path(run).name)}\n" if ax is axes[0] else ""
            ax.set_title(above + title, fontsize=9, loc="left")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    save(figure, path)


def scatter(ax: Axes, found: dict[str, np.ndarray], shown: np.ndarray, marked: str, models: Models) -> None:
    """Draw the samples of a panel, and name classes and markers in its legend."""
    classes = models.data.dataset.class_names
    colours = FEW if len(classes) <= FEW.N else MANY
    low, high = found["place"].min(0), found["place"].max(0)
    for number in np.unique(found[marked]):
        mine = shown & (found[marked] == number)
        x, y = found["place"][mine].T
        marker = MARKERS[int(number) % len(MARKERS)]
        ax.scatter(x, y, c=colours(found["label"][mine] % colours.N), marker=marker, s=9)
        name = models.data.dataset.domain_names[int(number)] if marked == "domain" else f"client {number}"
        ax.plot([], [], "k", marker=marker, linestyle="", markersize=4, label=drawn(name))
    if len(classes) <= MANY.N:
        for number, name in enumerate(classes):
            ax.scatter([], [], color=colours(number), s=20, label=drawn(name))
    (left, lowest), (right, highest) = low - 0.03 * (high - low), high + 0.03 * (high - low)
    ax.set(xlim=(left, right), ylim=(lowest, highest), xticks=[], yticks=[])


def main() -> int:
    """Run from the command line; return the exit code."""
    try:
        tsne(**vars(parser_of_function(tsne).read()))
    except UserError as error:
        complain(f"error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
