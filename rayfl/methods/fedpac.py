"""FedPAC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfl.methods.base import Cohort, Facts
from rayfl.methods.partly_personal import PartlyPersonal
from rayfl.methods.prototypes import bytes_of_owned
from rayfl.settings import above, at_least, below
from rayfl.training import Batch, Client, Context, Gather, Mean, Params, Reduction, State, Sum
from rayfl.training.net import Net


class FedPAC(PartlyPersonal):
    """Feature alignment and classifier collaboration (Xu, Tong and Huang, ICLR 2023).

    Clients share an extractor and keep their classifiers (heads). A client trains its head on the received
    extractor, and then the extractor below the new head. Features are drawn to the global centroid of their
    class. The server mixes the heads for each client, with the weights that solve a quadratic programme of
    the clients' feature statistics.

    Deviations from the paper: the formulas are those of the authors' public code, as of the paper only the
    beginning was at hand; so others may be unknown. Small weights of the mixture stay (``least_weight``). A
    class that nobody in a cohort has keeps its global centroid.
    """

    facts = Facts(tasks=("classes",))

    lam: Annotated[float, at_least(0)] = 1.0
    """Weight of the mean squared distance to the global centroids, lambda in the paper."""
    head_epochs: Annotated[int, at_least(1)] = 1
    """Epochs of the head in a round; the extractor has those of the run."""
    head_lr: Annotated[float, above(0)] | None = 0.1
    """Learning rate of the head, constant, whatever ``training.schedule`` is; if not given, the round's."""
    collaborate: bool = True
    """Whether the server mixes heads; if not, they stay with the clients."""
    least_weight: Annotated[float, at_least(0), below(1)] = 0.0
    """Smaller weights of a mixture become 0, but for the largest one; 0.001 in the public code."""

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Share the extractor, all but the last linear layer."""
        return name not in net.names("last_layer", "head")

    # ---- what is exchanged

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return the extractor, sums of features for the centroids, and what heads are mixed from and by."""
        each: dict[str, Reduction] = {"weights": Mean(), "class_sums": Sum(), "class_counts": Sum()}
        if self.collaborate:
            each |= dict.fromkeys(("head", "h", "v"), Gather(replaces=False))
        return each

    def init_server(self, context: Context) -> State:
        """Start without centroids and mixtures."""
        nothing = torch.zeros_like(context.initial["head.weight"])  # [classes, d], like the head's rows
        known = nothing.new_zeros(len(nothing), dtype=torch.bool)
        shared = context.shared_part(context.initial)
        return {"weights": shared, "centroids": nothing, "known": known, "changes": {}}

    def download(self, server: State) -> State:
        """Send the extractor and the centroids."""
        return {key: server[key] for key in ("weights", "centroids", "known")}

    def download_for(self, server: State, client: int) -> State:
        """Send how the mixture changes the client's own head, from its second participation on."""
        return {"change": server["changes"][client]} if client in server["changes"] else {}

    def trained(self, client: Client, down: State, up: Mapping[str, Any]) -> State:
        """Leave out the change, which was one of the head before training."""
        return {key: v for key, v in super().trained(client, down, up).items() if key != "change"}

    def communication_bytes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Count the rows of the classes that the client owns: it need not send the others."""
        received, sent = super().communication_bytes(client, down, up)
        sent |= {
            key: bytes_of_owned(client, up[key]) for key in ("class_sums", "class_counts", "h") if key in up
        }
        return {key: n for key, n in received.items() if key != "known"}, sent

    # ---- client

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Take the statistics of the received extractor; train the head, then the extractor."""
        net, received, known, dtype = client.net, down["weights"], down["known"], down["centroids"].dtype

        def of_head(head: Params, batch: Batch, base: Params) -> Tensor:
            z = net.eval.features(base, batch.x).detach()
            return client.loss_of(net.head(head, z), batch)

        def of_base(base: Params, batch: Batch, extra: dict[str, Any]) -> Tensor:
            """Return the loss + lambda * MSE(features, centroids of their classes)."""
            z = net.features(base, batch.x)
            off = (z - extra["centroids"][batch.y]).square().mean()
            return client.loss_of(net.eval.head(extra["head"], z), batch) + extra["pull"] * off

        sums, squares = await feature_sums(client, received, dtype)
        counts, n = client.class_counts.to(sums), client.samples
        h = sums / n  # h_k = p_k mu_k: the share of class k, and its mean feature
        v = (squares / n - h.square().sum()).clamp(min=0) / n
        settings: dict[str, Any] = {"epochs": self.head_epochs, "lr": self.head_lr}
        head = (await client.fit(self._head(state, down), of_head, received, **settings)).weights
        means = sums / counts.clamp(min=1)[:, None]
        centroids = torch.where(known[:, None], down["centroids"], means)
        # nothing is drawn before the first centroid is known
        extra = {"head": head, "centroids": centroids, "pull": self.lam * known.any().to(dtype)}
        base = (await client.fit(received, of_base, extra)).weights
        class_sums, _ = await feature_sums(client, base, dtype)
        up = {"weights": base, "class_sums": class_sums, "class_counts": counts}
        return up | ({"head": head, "h": h, "v": v} if self.collaborate else {}), {"own": head}

    def _head(self, state: State, down: State) -> Params:
        """Return the client's mixture of heads, or its own head where there is none yet."""
        own: Params = state["own"]
        return own + down["change"] if "change" in down else own

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the extractor below the client's mixture of heads."""
        z = await client.features(down["weights"], x)
        return {"personal": client.net.eval.head(self._head(state, down), z)}

    # ---- server

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Average the extractors, and the features of each class; mix the heads of the cohort."""
        counts, changes = up["class_counts"], server["changes"]
        owned = counts > 0
        means = up["class_sums"] / counts.clamp(min=1)[:, None]
        centroids = torch.where(owned[:, None], means, server["centroids"])
        if self.collaborate:
            changes = dict(sorted({**changes, **self._mix_heads(up)}.items()))
        known = server["known"] | owned
        return {"weights": up["weights"], "centroids": centroids, "known": known, "changes": changes}

    def _mix_heads(self, up: Mapping[str, Any]) -> dict[int, Params]:
        """Return each client's mixture of heads, sum_j alpha_ij phi_j, as the change of its own phi_i."""
        h, v = (torch.stack(list(up[key].values())).double() for key in ("h", "v"))
        alpha = mixing_weights(h, v)
        alpha = alpha * (alpha >= alpha.amax(1, keepdim=True).clamp(max=self.least_weight))
        alpha = alpha / alpha.sum(1, keepdim=True)
        phi = Params.stack(up["head"].values())
        change = phi.map(lambda t: (torch.tensordot(alpha, t.double(), 1) - t).to(t))
        ids, names = up["head"], phi.train_names
        return {i: Params({n: t[k].clone() for n, t in change.items()}, names) for k, i in enumerate(ids)}


async def feature_sums(client: Client, w: Params, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the sum of a client's features for each class, [classes, d], and of their squared norms, 0-d."""
    features = client.net.eval.features

    def sums(w: Params, batch: Batch, classes: int) -> tuple[Tensor, Tensor]:
        z = features(w, batch.x).to(dtype)
        return F.one_hot(batch.y, classes).to(z).T @ z, z.square().sum()

    return await client.total(sums, w, client.classes)


def mixing_weights(h: Tensor, v: Tensor) -> Tensor:
    """Return the weights alpha_ij with which clients i mix the heads of clients j, float64 [m, m].

    Those of client i minimise, under alpha_ij >= 0 and sum_j alpha_ij = 1, the variance and the bias

        sum_j alpha_ij^2 v_j + ||sum_j alpha_ij (h_i - h_j)||^2.

    Args:
        h: float64 [m, classes, d], the clients' mean features of the classes, times the classes' shares.
        v: float64 [m], the variances of their features by their numbers of samples.
    """
    from scipy.optimize import nnls  # on the server alone

    m = len(v)
    rows = torch.linalg.qr(h.flatten(1).T).R.T  # [m, m or less], with the distances of the h_j
    target, alpha = torch.zeros(rows.shape[1] + m + 1).double(), torch.empty(m, m).double()
    target[-1] = 1
    for i in range(m):
        root = torch.cat([(rows[i] - rows).T, v.sqrt().diag()])  # the objective is ||root alpha_i||^2
        root = root / root.norm(dim=0).max().clamp(min=1e-300)
        # of all a >= 0, a multiple of alpha_i has the least ||root a||^2 + (sum_j a_j - 1)^2
        equations = torch.cat([root, torch.ones_like(root[:1])]).numpy()
        found, _ = nnls(equations, target.numpy(), maxiter=100 * m)
        alpha[i] = torch.from_numpy(found / found.sum())
    return alpha
