"""How a server combines vectors of clients: steps that oppose no client, and mixtures by similarity."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rayfl.training import Params

CHUNK = 2**18
"""Numbers of all clients that are worked on at once, in float64: as many as a processor keeps close by."""
LEAST_NORM = 1e-12
"""A smaller update has no direction."""
TOLERANCE = 1e-6
"""By how much a solution may oppose a client, relative to its unit vector."""


class MinimumNormStep(NamedTuple):
    """What clients agree on.

    Attributes:
        tensors: name -> the stepped value, of the shape and dtype of the old one.
        norms: float64 [clients], the norms of their updates.
        shares: float64 [clients], their weights u in the combination, which sum to 1; zeros if none moved.
    """

    tensors: dict[str, Tensor]
    norms: Tensor
    shares: Tensor


def minimum_norm_step(old: Params, new: Sequence[Params], names: Sequence[str]) -> MinimumNormStep:
    """Step in the direction of least norm that no client opposes, by the mean length of the updates.

    With updates D_k = new_k - old over all ``names`` as one vector, d_k = D_k / ||D_k|| and u as in
    ``least_norm``, the step is mean_k ||D_k|| * sum_k u_k d_k (FDSE, eq. 8). Updates of norm 0 have no
    direction: they take no part in u, and count in the mean.

    Args:
        old: the weights from which all clients have started.
        new: each client's weights.
        names: the entries of the unit.
    """
    n = len(new)
    gram = torch.zeros(n, n, dtype=torch.float64)
    for _, _, updates in _update_chunks(old, new, names):
        gram += updates @ updates.T
    norms = gram.diagonal().sqrt()
    moved = norms >= LEAST_NORM
    lengths = torch.where(moved, norms, torch.ones_like(norms))
    shares = least_norm(gram / lengths[:, None] / lengths[None, :], moved)
    factors = norms.mean() * shares / lengths
    tensors = {name: torch.empty_like(old[name], memory_format=torch.contiguous_format) for name in names}
    for name, part, updates in _update_chunks(old, new, names):
        tensors[name].view(-1)[part] = (old[name].reshape(-1)[part].double() + factors @ updates).to(
            old[name].dtype
        )
    return MinimumNormStep(tensors, norms, shares)


def _update_chunks(
    old: Params, new: Sequence[Params], names: Sequence[str]
) -> Iterator[tuple[str, slice, Tensor]]:
    """Yield (name, part of the flat tensor, updates float64 [clients, numbers]) piece by piece.

    The memory of the updates is used again for the next piece.
    """
    length = max(1, CHUNK // len(new))
    room = torch.empty(len(new), length, dtype=torch.float64)
    for name in names:
        base, rows = old[name].reshape(-1), [w[name].reshape(-1) for w in new]
        for start in range(0, base.numel(), length):
            part = slice(start, start + length)
            updates = room[:, : len(base[part])]
            for update, row in zip(updates, rows):
                update.copy_(row[part])
            updates -= base[part]
            yield name, part, updates


def counted_mean(tensors: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """Return the mean of tensors weighted by counts, summed in float64."""
    total = sum(count * t.double() for count, t in zip(counts, tensors))
    return (torch.as_tensor(total) / sum(counts)).to(tensors[0].dtype)


def mix_by_similarity(rows: Sequence[Params], tau: float) -> tuple[list[Params], Tensor]:
    """Mix each client's entries with those of the clients whose entries point the same way (FDSE, eq. 9).

    With q_k the entries of client k as one vector, divided by its norm, they become
    sum_j softmax_j(<q_k, q_j> / tau) times those of client j. A vector of zeros is equally similar to all.

    Args:
        rows: the same entries of every client.
        tau: temperature, above 0: 0 in the limit keeps one's own, infinity takes the mean of all.

    Returns:
        The mixtures, and the weights, float64 [clients, clients].
    """
    vectors = torch.stack([torch.cat([t.reshape(-1) for t in row.values()]) for row in rows]).double()
    q = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=LEAST_NORM)
    attention = (q @ q.T / tau).softmax(1)
    sizes = [t.numel() for t in rows[0].values()]
    mixed = []
    for row, vector in zip(rows, attention @ vectors):
        parts = zip(row.items(), vector.split(sizes))
        mixed.append(Params({n: p.view(t.shape).to(t.dtype) for (n, t), p in parts}, row.train_names))
    return mixed, attention


def least_norm(cosines: Tensor, moved: Tensor) -> Tensor:
    """Return u >= 0 with sum 1 that minimises ||sum_k u_k d_k||^2, float64 [clients].

    At the minimum v = sum_k u_k d_k no client is opposed: <v, d_k> >= ||v||^2 for all k.

    Args:
        cosines: float64 [clients, clients], the inner products of the unit vectors d_k.
        moved: bool [clients]; the others get 0.

    Raises:
        RuntimeError: no solver has found a combination that opposes no client.
    """
    if int(moved.sum()) < 2:
        return moved.double()
    cvxpy = _import_cvxpy()
    problem, root, most, u = _quadratic_programme(len(cosines))
    used = torch.where(moved[:, None] & moved[None, :], cosines, torch.zeros_like(cosines))
    values, vectors = torch.linalg.eigh((used + used.T) / 2)
    root.value = ((vectors * values.clamp(min=0).sqrt()) @ vectors.T).numpy()
    most.value = moved.double().numpy()
    tried = []
    for solver, options in _SOLVERS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of inaccurate solutions: whether it is good is seen below
                problem.solve(solver=solver, warm_start=False, **options)  # whatever was solved before
        except cvxpy.SolverError as error:
            tried.append(f"{solver}: {error}")
            continue
        if u.value is not None:
            shares = torch.from_numpy(u.value).clamp(min=0) * moved
            shares = shares / shares.sum()
            along = used @ shares
            opposed = float((along - shares @ along)[moved].min())
            if opposed >= -TOLERANCE:
                return shares
            tried.append(f"{solver}: {problem.status}, opposes a client by {-opposed:.1e}")
        else:
            tried.append(f"{solver}: {problem.status}")
    raise RuntimeError(f"no combination of the clients' updates was found ({'; '.join(tried)})")


_SOLVERS: dict[str, dict[str, Any]] = {
    "CLARABEL": {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13},
    "OSQP": {"eps_abs": 1e-10, "eps_rel": 1e-10, "max_iter": 100_000},
}
"""Solvers in the order in which they are tried; both are deterministic."""


@lru_cache(maxsize=8)
def _quadratic_programme(clients: int) -> tuple[Any, Any, Any, Any]:
    """Return the quadratic programme for so many clients, its parameters and its variable.

    It is made once and solved for every unit and round: only the values of the parameters change, a square
    root of the matrix of inner products and the upper bounds of u.
    """
    cvxpy = _import_cvxpy()
    u = cvxpy.Variable(clients)
    root = cvxpy.Parameter((clients, clients))
    most = cvxpy.Parameter(clients, nonneg=True)
    objective = cvxpy.Minimize(cvxpy.sum_squares(root @ u))
    return cvxpy.Problem(objective, [u >= 0, u <= most, cvxpy.sum(u) == 1]), root, most, u


def _import_cvxpy() -> Any:
    """Import cvxpy where it is needed, on the server alone: it takes a second.

    Where it finds solvers for GPUs, importing it draws from NumPy's global generator,
    on which nothing may depend.
    """
    state = np.random.get_state()  # noqa: NPY002
    try:
        import cvxpy

        return cvxpy
    finally:
        np.random.set_state(state)  # noqa: NPY002
