"""Show what the generic and the individual extractor of FediOS look at: input gradients on the same images.

    pip install 'rayfl[saliency]'
    rayfl run --method FediOS --rounds 20 --output runs/fedios
    python examples/fedios/saliency.py runs/fedios --save fedios_fig1.png

Under every image stands, for each view, how much the score of the true class changes with a pixel: the
gradient's absolute value, averaged over noisy copies of the image (SmoothGrad, by Captum), the largest of the
channels, smoothed by three pixels. The colour bar says what colours mean. The paper (Gao et al., arXiv
2311.18559, figure 1) draws class activation maps, which need convolutional features; gradients serve every
net, and every method that has views: --views online,offline for Fed-CO2.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from rayfl import Models, UserError, load_models
from rayfl.commands.command_line import parser_of_function
from rayfl.randomness import seed_of
from rayfl.report.look import drawn, save
from rayfl.system.text import complain, print_note

try:
    from captum.attr import NoiseTunnel, Saliency
except ImportError:
    sys.exit("this script needs Captum: pip install 'rayfl[saliency]'")


def saliency(
    run: str,
    save: str = "saliency.png",
    views: str = "generic,individual",
    images: int = 2,
    clients: int = 5,
    noise: float = 0.1,
    copies: int = 16,
    seed: int = 0,
) -> None:
    """Draw test images of clients, and below each where the views' scores depend on it.

    Args:
        run: a run folder with a checkpoint.
        save: the picture to write.
        views: the models, as the run's records name them.
        images: of each client, of different classes; at least 1.
        clients: the first so many; at least 1.
        noise: standard deviation of the noise, in normalised pixels, at least 0.
        copies: noisy copies of each image over which the gradient is averaged, at least 1.
        seed: of the noise.

    Raises:
        UserError: the run has no checkpoint or no such view, or an option is out of range.
    """
    for name, value in {"images": images, "clients": clients, "copies": copies}.items():
        if value < 1:
            raise UserError(f"--{name} is {value}: it must be at least 1")
    if not 0 <= noise < float("inf"):
        raise UserError(f"--noise is {noise}: it must be at least 0")
    models = load_models(run)
    wanted = [view.strip() for view in views.split(",") if view.strip()]
    for view in wanted:
        if view not in models.views:
            raise UserError(f"{run} has no view {view}; its views are {', '.join(models.views)}")
    columns = []
    for client in range(min(clients, len(models))):
        x, y = first_of_classes(*models.batch(client), images)
        of_client = seed_of(seed, "saliency", client)
        maps = input_gradients(models, client, x, y, wanted, noise, copies, of_client)
        domain = models.data.clients[client].domain
        where = f"client {client}" if domain is None else models.data.dataset.domain_names[domain]
        for k in range(len(y)):
            name = models.data.dataset.class_names[int(y[k])]
            columns.append((f"{where}\n{name}", x[k], {view: maps[view][k] for view in wanted}))
    draw(columns, wanted, Path(save))
    print_note(save)


def first_of_classes(x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the first image of each of the first ``count`` classes that occur, with their labels."""
    first = [int(torch.nonzero(y == c)[0]) for c in y.unique()[:count]]
    return x[first], y[first]


def input_gradients(
    models: Models,
    client: int,
    x: Tensor,
    y: Tensor,
    views: list[str],
    noise: float,
    copies: int,
    seed: int,
) -> dict[str, Tensor]:
    """Return, by view, the size of the gradient of the true class's score by every pixel, [n, H, W]."""
    maps = {}
    for view in views:
        smooth = NoiseTunnel(Saliency(lambda images, view=view: models.scores(client, images)[view]))
        with torch.random.fork_rng(devices=[]):  # Captum draws from PyTorch's generator
            torch.manual_seed(seed % 2**63)  # the same noise for every view
            sizes = smooth.attribute(
                x.clone().requires_grad_(),
                nt_type="smoothgrad",
                nt_samples=copies,
                nt_samples_batch_size=1,
                stdevs=noise,
                target=y,
            )
        maps[view] = F.avg_pool2d(sizes.amax(1, keepdim=True), 3, 1, 1)[:, 0]
    return maps


def draw(columns: list[tuple[str, Tensor, dict[str, Tensor]]], views: list[str], path: Path) -> None:
    """Draw a column per image: itself, and its map for every view; each map is scaled by its own maximum.

    Raises:
        UserError: the file cannot be written.
    """
    rows = 1 + len(views)
    figure = Figure(figsize=(1.1 * len(columns) + 1.6, 1.15 * rows + 0.4), layout="constrained")
    grid = figure.subplots(rows, len(columns), squeeze=False)
    for (title, image, maps), axes in zip(columns, grid.T):
        axes[0].imshow(shown(image))
        axes[0].set_title(drawn(title), fontsize=7)
        for view, ax in zip(views, axes[1:]):
            scaled = maps[view] / maps[view].max().clamp_min(1e-30)
            drawn_map = ax.imshow(scaled.numpy(), cmap="inferno", vmin=0, vmax=1)
    for name, ax in zip(["image", *views], grid[:, 0]):
        ax.set_ylabel(drawn(name), fontsize=8)
    for ax in grid.ravel():
        ax.set(xticks=[], yticks=[])
    label = "change of the score,\nshare of the map's largest"
    figure.colorbar(drawn_map, ax=grid[1:].ravel().tolist(), label=label, pad=0.02)
    save(figure, path, dpi=200)


def shown(image: Tensor) -> np.ndarray:
    """Return a normalised image [C, H, W] as [H, W, 3] between 0 and 1."""
    image = (image - image.min()) / (image.max() - image.min()).clamp_min(1e-12)
    colours = image if len(image) == 3 else image[:1].expand(3, -1, -1)
    return colours.permute(1, 2, 0).numpy()


def main() -> int:
    """Run from the command line; return the exit code."""
    try:
        saliency(**vars(parser_of_function(saliency).read()))
    except UserError as error:
        complain(f"error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
