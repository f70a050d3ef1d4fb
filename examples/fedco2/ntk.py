"""What the neural tangent kernels of Fed-CO2 say, and what training says: section 4 of the paper, in numbers.

    python examples/fedco2/ntk.py                      # tables, and fedco2_ntk.png
    python examples/fedco2/ntk.py --alpha 3 --draws 2  # --help lists the options

Cai et al., NeurIPS 2023, section 4 and appendix C, after Li et al. (FedBN), ICLR 2021. The nets have one
hidden layer of ReLUs, with weights normalised by the client's covariance S_i, norm(v, S) = sqrt(v^T S v):

    F_on(x) = m^(-1/2) sum_k c_k relu(gamma_ki v_k^T x / norm(v_k, S_i))   for x of client i   (eq. 13)

Online, the directions v are common, and the magnitudes gamma belong to the clients (they are BatchNorm's);
offline, both belong to the clients. Both start from v ~ N(0, alpha^2 I), c = +-1 (not trained) and
gamma = |v| / alpha. The prediction of Fed-CO2 is F = (F_on + F_off) / 2.

Gradient descent moves the residual by the kernel Lambda = V / alpha^2 + G, where V comes from the directions
and G from the magnitudes. Its smallest eigenvalue is the rate of the theorem's bound
|F(t) - y|^2 <= (1 - eta lambda_min / 2)^t |F(0) - y|^2. The kernels of the offline net are the blocks of the
single clients. So two statements hold always, for V and for Lambda:

(a) lambda_min(V_off) >= lambda_min(V_on): blocks are principal submatrices;
(b) lambda_min((V_on + V_off) / 2) >= lambda_min(V_on): Weyl's inequality with (a).

But the loss is that of the *averaged* prediction, so a branch gets the factor 1/2 twice, once in F and once
in its gradient: the kernel of F is (Lambda_on + Lambda_off) / 4, not half of the sum as in eq. 19. At the
same step size F is then mostly slower than F_on alone, and theorem 4.3 holds at twice the step size (or for a
sum scaled by 1/sqrt(2), or if each branch is trained on a residual of its own).
"""

import math
import sys
from dataclasses import dataclass
from operator import gt, lt
from pathlib import Path
from typing import Literal

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor

from rayfl import UserError
from rayfl.commands.command_line import parser_of_function
from rayfl.randomness import generator
from rayfl.report.look import save
from rayfl.system.terminal import Terminal
from rayfl.system.text import complain

Projection = Literal["s", "plain"]
Covariance = Literal["true", "sample"]
LEVELS = (1e-2, 1e-6)
"""Parts of the first loss at which steps are counted; late, the smallest eigenvalue rules."""
MIXES = ("on", "off", "half", "quarter")
TITLES = {"on": "online", "off": "offline", "half": "(on + off) / 2", "quarter": "(on + off) / 4"}
RUNS = {"on": "F_on, step η", "quarter": "F, step η", "half": "F, step 2η"}
"""The trainings by the kernel, per step η, that governs them."""
COLOURS = {"on": "#0072B2", "off": "#009E73", "half": "#E69F00", "quarter": "#D55E00"}
MARKERS = {"on": "o", "off": "s", "half": "D", "quarter": "^"}


@dataclass(frozen=True)
class Samples:
    """The data of all clients.

    Attributes:
        x: float64 [P, d].
        y: targets, float64 [P].
        client: whose each sample is, int64 [P].
        covariance: S_i, float64 [N, d, d].
    """

    x: Tensor
    y: Tensor
    client: Tensor
    covariance: Tensor


@dataclass(frozen=True)
class Branch:
    """Weights of one branch.

    Attributes:
        v: directions, float64 [m, d], or [N, m, d] where every client has its own.
        gamma: magnitudes, float64 [N, m].
        c: signs of the second layer, float64 [m].
    """

    v: Tensor
    gamma: Tensor
    c: Tensor


def draw_samples(
    clients: int, samples: int, dimension: int, covariance: Covariance = "true", seed: int = 0, draw: int = 0
) -> Samples:
    """Draw clients with Gaussian data of different covariances, and random labels of -1 and 1.

    The eigenvalues of a client's covariance lie between 1/4 and 4, and its axes are random.

    Args:
        clients: N.
        samples: of each client.
        dimension: d.
        covariance: whether S_i is the ``true`` one or estimated from the client's ``sample``.
        seed: of the draws.
        draw: which one.
    """
    rng = generator(seed, "ntk samples", draw)
    basis, _ = torch.linalg.qr(torch.randn(clients, dimension, dimension, dtype=torch.float64, generator=rng))
    spectrum = 4 ** (2 * torch.rand(clients, 1, dimension, dtype=torch.float64, generator=rng) - 1)
    root = (basis * spectrum.sqrt()) @ basis.mT
    x = torch.randn(clients, samples, dimension, dtype=torch.float64, generator=rng) @ root
    y = torch.randint(2, (clients * samples,), generator=rng).double() * 2 - 1
    true = root @ root
    return Samples(
        x.reshape(-1, dimension),
        y,
        torch.arange(clients).repeat_interleave(samples),
        true if covariance == "true" else x.mT @ x / samples,
    )


def initial(clients: int, dimension: int, width: int, alpha: float, seed: int = 0, draw: int = 0) -> Branch:
    """Draw the initial weights, which all clients and both branches have in common (eq. 11)."""
    rng = generator(seed, "ntk weights", draw)
    v = alpha * torch.randn(width, dimension, dtype=torch.float64, generator=rng)
    c = torch.randint(2, (width,), generator=rng).double() * 2 - 1
    return Branch(v, (v.norm(dim=1) / alpha).expand(clients, -1).clone(), c)


def predict(net: Branch, data: Samples) -> Tensor:
    """Return the outputs of a branch, float64 [P] (eq. 13)."""
    v = net.v if net.v.dim() == 3 else net.v.expand(len(net.gamma), -1, -1)
    norms = torch.einsum("nkd,nde,nke->nk", v, data.covariance, v).sqrt()
    hidden = torch.einsum("pkd,pd->pk", v[data.client], data.x)
    hidden = (net.gamma / norms)[data.client] * hidden
    return torch.relu(hidden) @ net.c / len(net.c) ** 0.5


def direction_kernel(net: Branch, data: Samples, alpha: float, projection: Projection = "s") -> Tensor:
    """Return V of the online branch, float64 [P, P] (definition 4.2; eq. 16 with ReLU indicators and norms).

    Args:
        net: weights with common directions.
        data: the samples.
        alpha: of the initialisation.
        projection: how a sample is made orthogonal to a direction: by the client's covariance (``s``,
            appendix; the exact gradient), or ``plain``, as in the main text.
    """
    products = data.x @ net.v.T  # [P, m]
    along = torch.einsum("nde,ke->nkd", data.covariance, net.v)  # S_i v_k
    squares = torch.einsum("nkd,kd->nk", along, net.v)[data.client]  # norm(v_k, S_p)^2, [P, m]
    kernel = data.x.new_zeros(len(data.x), len(data.x))
    chunk = max(1, 2_000_000 // data.x.numel())
    for k in torch.arange(len(net.c)).split(chunk):
        if projection == "s":
            away = along[:, k][data.client] * (products[:, k] / squares[:, k])[..., None]
        else:
            away = net.v[k] * (products[:, k] / net.v[k].square().sum(1))[..., None]
        u = (data.x[:, None] - away) * (products[:, k] >= 0)[..., None]
        u = u * (net.c[k] * net.gamma[data.client][:, k] / squares[:, k].sqrt())[..., None]
        kernel += u.flatten(1) @ u.flatten(1).T
    return alpha**2 / len(net.c) * kernel


def magnitude_kernel(net: Branch, data: Samples) -> Tensor:
    """Return G, float64 [P, P], of magnitudes that all clients share; a client's own ones have its blocks."""
    norms = torch.einsum("kd,nde,ke->nk", net.v, data.covariance, net.v).sqrt()
    hidden = net.c * torch.relu(data.x @ net.v.T) / norms[data.client]
    return hidden @ hidden.T / len(net.c)


def own_blocks(kernel: Tensor, client: Tensor) -> Tensor:
    """Return the kernel without what lies between different clients."""
    return kernel * (client[:, None] == client)


def mixed(on: Tensor, client: Tensor) -> dict[str, Tensor]:
    """Return the kernels made of an online one: ``on``, ``off``, ``half`` and ``quarter`` of their sum."""
    off = own_blocks(on, client)
    return {"on": on, "off": off, "half": (on + off) / 2, "quarter": (on + off) / 4}


def kernels(net: Branch, data: Samples, alpha: float) -> dict[str, dict[str, Tensor]]:
    """Return V by both projections, G, and Lambda (of the exact V), each as ``mixed``."""
    exact = direction_kernel(net, data, alpha)
    own = own_blocks(magnitude_kernel(net, data), data.client)  # magnitudes are BatchNorm's, so personal
    found = {
        "V": exact,
        "V, plain projection": direction_kernel(net, data, alpha, "plain"),
        "G": own,
        "Λ": exact / alpha**2 + own,
    }
    return {name: mixed(kernel, data.client) for name, kernel in found.items()}


def smallest(kernel: Tensor) -> float:
    """Return the smallest eigenvalue of a symmetric matrix."""
    return float(torch.linalg.eigvalsh(kernel)[0])


def train(branches: list[Branch], data: Samples, lr: float, steps: int) -> Tensor:
    """Train the mean of branches by full-batch gradient descent; return |F(t) - y|^2, float64 [steps + 1].

    The loss is half of that (eq. 12); the second layer stays as it is.
    """
    weights = [w.clone().requires_grad_() for branch in branches for w in (branch.v, branch.gamma)]
    nets = [Branch(v, gamma, b.c) for v, gamma, b in zip(weights[::2], weights[1::2], branches)]
    losses = []
    for _ in range(steps + 1):
        output = torch.stack([predict(net, data) for net in nets]).mean(0)
        square = (output - data.y).square().sum()
        losses.append(square.detach())
        gradients = torch.autograd.grad(square / 2, weights)
        with torch.no_grad():
            for w, gradient in zip(weights, gradients):
                w -= lr * gradient
    return torch.stack(losses)


def linear(kernel: Tensor, residual: Tensor, lr: float, steps: int) -> Tensor:
    """Return |F(t) - y|^2 if the kernel stayed as it is: |(I - lr kernel)^t residual|^2, [steps + 1]."""
    values, vectors = torch.linalg.eigh(kernel)
    time = torch.arange(steps + 1, dtype=torch.float64)[:, None]
    return ((1 - lr * values) ** time * (vectors.T @ residual)).square().sum(1)


def bound(kernel: Tensor, residual: Tensor, lr: float, steps: int) -> Tensor:
    """Return (1 - lr lambda_min / 2)^t |residual|^2, the linear rate of the theorem, [steps + 1]."""
    time = torch.arange(steps + 1, dtype=torch.float64)
    return (1 - lr * smallest(kernel) / 2) ** time * residual.square().sum()


def steps_to(losses: Tensor, level: float) -> int | None:
    """Return the first step at which the loss is such a part of the first, None if it never is."""
    done = torch.nonzero(losses <= level * losses[0])
    return int(done[0]) if len(done) else None


@dataclass(frozen=True)
class Draw:
    """One draw of data and weights.

    Attributes:
        kernels: kernel -> mix -> matrix.
        lr: the step size η, 1 over the largest eigenvalue of the online kernel.
        residual: F(0) - y, float64 [P]; F_on and F start equal.
        losses: mix -> the losses of the training that it governs, see ``RUNS``.
    """

    kernels: dict[str, dict[str, Tensor]]
    lr: float
    residual: Tensor
    losses: dict[str, Tensor]

    def expected(self, mix: str) -> Tensor:
        """Return the losses if the kernel did not change."""
        return linear(self.kernels["Λ"][mix], self.residual, self.lr, len(self.losses[mix]) - 1)

    def bound(self, mix: str) -> Tensor:
        """Return the theorem's bound with this kernel."""
        return bound(self.kernels["Λ"][mix], self.residual, self.lr, len(self.losses[mix]) - 1)


def carry_out(data: Samples, net: Branch, alpha: float, steps: int) -> Draw:
    """Compute the kernels, and train F_on at step η and F at steps η and 2η."""
    found = kernels(net, data, alpha)
    lr = 1 / float(torch.linalg.eigvalsh(found["Λ"]["on"])[-1])
    own = Branch(net.v.expand(len(net.gamma), -1, -1), net.gamma, net.c)
    losses = {
        "on": train([net], data, lr, steps),
        "quarter": train([net, own], data, lr, steps),
        "half": train([net, own], data, 2 * lr, steps),
    }
    return Draw(found, lr, predict(net, data) - data.y, losses)


def eigenvalue_table(draws: list[Draw]) -> Table:
    """Return the smallest eigenvalues, and which inequalities hold."""
    table = Table(title="Smallest eigenvalues", title_justify="left", box=None, pad_edge=False)
    table.add_column("kernel")
    for heading in ("draw", *TITLES.values(), "(a)", "(b)", "quarter ≥ on"):
        table.add_column(heading, justify="right")
    for name in draws[0].kernels:
        for number, draw in enumerate(draws):
            low = {mix: smallest(draw.kernels[name][mix]) for mix in MIXES}
            table.add_row(
                name if number == 0 else "",
                str(number + 1),
                *(f"{low[mix]:.4f}" for mix in MIXES),
                *("yes" if at_least(low[mix], low["on"]) else "no" for mix in ("off", "half", "quarter")),
            )
    return table


def at_least(value: float, other: float) -> bool:
    """Say whether value >= other, to the rounding of eigenvalues."""
    return value >= other - 1e-10 * max(1.0, abs(other))


def training_table(draws: list[Draw]) -> Table:
    """Return the steps that every training took, what its kernel predicts, and whether its bound held."""
    levels = " and ".join(f"{level:g}" for level in LEVELS)
    title = f"Steps until the loss is {levels} of the first (as predicted by the first kernel)"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("draw")
    for run in RUNS.values():
        table.add_column(run, justify="right")
    table.add_column("if eq. 19 held, F, step η", justify="right")
    table.add_column("bounds held", justify="right")
    for number, draw in enumerate(draws):
        held = [bool((draw.losses[mix] <= draw.bound(mix) * (1 + 1e-9)).all()) for mix in RUNS]
        table.add_row(
            str(number + 1),
            *(f"{_counts(draw.losses[mix])} ({_counts(draw.expected(mix))})" for mix in RUNS),
            _counts(draw.expected("half")),
            f"{sum(held)} of {len(held)}",
        )
    return table


def _counts(losses: Tensor) -> str:
    counts = [steps_to(losses, level) for level in LEVELS]
    return ", ".join(f">{len(losses) - 1}" if steps is None else str(steps) for steps in counts)


def verdict(draws: list[Draw]) -> str:
    """Say in words what held in how many draws."""
    lows = [{mix: smallest(draw.kernels["Λ"][mix]) for mix in MIXES} for draw in draws]
    a = sum(at_least(low["off"], low["on"]) for low in lows)
    b = sum(at_least(low["half"], low["on"]) for low in lows)
    quarter = sum(at_least(low["quarter"], low["on"]) for low in lows)
    lines = [
        f"Of {len(draws)} draws, for Λ: (a) held in {a}, (b) in {b}. The kernel of F at the same step size, "
        "a quarter of the",
        f"sum, reached the smallest eigenvalue of F_on's in {quarter}. In training:",
    ]
    for level in LEVELS:
        on, same, twice = (
            [steps_to(draw.losses[mix], level) or math.inf for draw in draws]
            for mix in ("on", "quarter", "half")
        )
        slower, faster = sum(map(gt, same, on)), sum(map(lt, twice, on))
        lines.append(
            f"  to {level:g} of the loss, F was slower than F_on at the same step size in {slower}, and "
            f"faster at twice the step size in {faster}"
        )
    return "\n".join(lines)


def draw_figure(draws: list[Draw], path: Path) -> None:
    """Draw eigenvalues and loss curves with their bounds.

    Raises:
        UserError: the file cannot be written.
    """
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    spectrum, minima, losses = figure.subplots(1, 3)
    _draw_spectrum(spectrum, draws[0])
    _draw_minima(minima, draws)
    _draw_losses(losses, draws[0])
    for axes in (spectrum, minima, losses):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    save(figure, path)


def _draw_spectrum(axes: Axes, draw: Draw) -> None:
    for mix in MIXES:
        values = torch.linalg.eigvalsh(draw.kernels["Λ"][mix]).flip(0)
        look = {"marker": MARKERS[mix], "ms": 4, "color": COLOURS[mix]}
        axes.semilogy(range(1, len(values) + 1), values, label=TITLES[mix], **look)
    axes.set(title="eigenvalues of Λ, draw 1", xlabel="number", ylabel="eigenvalue")


def _draw_minima(axes: Axes, draws: list[Draw]) -> None:
    for mix in MIXES:
        low = [smallest(draw.kernels["V"][mix]) for draw in draws]
        axes.plot(range(1, len(low) + 1), low, MARKERS[mix], color=COLOURS[mix], label=TITLES[mix])
    axes.set(title="smallest eigenvalue of V", xlabel="draw", ylabel="λ_min", xticks=range(1, len(draws) + 1))
    axes.set_ylim(bottom=0)


def _draw_losses(axes: Axes, draw: Draw) -> None:
    for mix, name in RUNS.items():
        look = {"marker": MARKERS[mix], "ms": 4, "markevery": max(1, len(draw.losses[mix]) // 8)}
        axes.semilogy(draw.losses[mix], color=COLOURS[mix], label=name, **look)
        axes.semilogy(draw.expected(mix), color=COLOURS[mix], linestyle=":", linewidth=1)
        axes.semilogy(draw.bound(mix), color=COLOURS[mix], linestyle="--", linewidth=1)
    axes.plot([], [], "k:", linewidth=1, label="predicted by the first kernel")
    axes.plot([], [], "k--", linewidth=1, label="bound of the theorem")
    axes.set(title="loss, draw 1", xlabel="step", ylabel="|F − y|²")
    axes.set_ylim(bottom=float(min(loss.min() for loss in draw.losses.values())) / 2)


def analyse(
    save: str | None = "fedco2_ntk.png",
    clients: int = 3,
    samples: int = 4,
    dimension: int = 8,
    width: int = 4000,
    alpha: float = 1.0,
    covariance: Covariance = "true",
    draws: int = 6,
    steps: int = 150,
    seed: int = 0,
) -> list[Draw]:
    """Print and draw what holds of Fed-CO2's section 4.

    Args:
        save: the picture to write; null draws nothing.
        clients: N, at least 2.
        samples: of each client, at least 1.
        dimension: of a sample, at least 1.
        width: hidden units, at least 1; the kernels are near their limits from a few thousand on.
        alpha: of the initialisation, above 0; the smaller, the more V weighs in Lambda.
        covariance: whether S_i is the true one or estimated from the client's sample.
        draws: of data and weights, at least 1.
        steps: of gradient descent, at least 1.
        seed: of everything random.

    Raises:
        UserError: an option is out of range, or the picture cannot be written.
    """
    sizes = {"samples": samples, "dimension": dimension, "width": width, "draws": draws, "steps": steps}
    for name, value in sizes.items():
        if value < 1:
            raise UserError(f"--{name} is {value}: it must be at least 1")
    if clients < 2:
        raise UserError(f"--clients is {clients}: it must be at least 2, or online and offline are the same")
    if not 0 < alpha < float("inf"):
        raise UserError(f"--alpha is {alpha}: it must be a number above 0")
    done = []
    for number in range(draws):
        data = draw_samples(clients, samples, dimension, covariance, seed, number)
        net = initial(clients, dimension, width, alpha, seed, number)
        done.append(carry_out(data, net, alpha, steps))
    console = Terminal(width=None if sys.stdout.isatty() else 120)
    console.print(
        f"N = {clients} clients x {samples} samples, d = {dimension}, m = {width}, alpha = {alpha:g}, "
        f"{covariance} covariances\n"
    )
    console.print(eigenvalue_table(done))
    console.print()
    console.print(training_table(done))
    console.print()
    console.print(verdict(done))
    if save is not None:
        draw_figure(done, Path(save))
        console.print(save)
    return done


def main() -> int:
    """Run from the command line; return the exit code."""
    try:
        analyse(**vars(parser_of_function(analyse).read()))
    except UserError as error:
        complain(f"error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
