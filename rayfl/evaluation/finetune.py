"""Fine-tuning before an evaluation: what a model is worth after a few steps on a client's own data."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Annotated, Literal

from torch import Tensor
from torch.utils import _pytree as pytree

from rayfl.errors import Conflict
from rayfl.evaluation.score import Predict, answer_at_once
from rayfl.methods import Method
from rayfl.settings import above, at_least
from rayfl.settings.base import Value
from rayfl.training.client import Client, inside_loss
from rayfl.training.loop import fit_loop
from rayfl.training.net import Batch, only_net
from rayfl.training.params import Params
from rayfl.training.state import State

FINETUNED = "finetuned"
"""The view that fine-tuning adds to those of a method."""


class Finetune(Value, place="finetune"):
    """Training of the clients that an evaluation scores, on their own data; it is thrown away afterwards.

    Examples:
        >>> from rayfl import Federation, Finetune, Inline
        >>> from rayfl.data import Synthetic
        >>> few = Synthetic(train=100, test=50)
        >>> tuned = Finetune(epochs=1, part="head")
        >>> federation = Federation(data=few, rounds=1, finetune=tuned, engine=Inline(), quiet=True)
        >>> sorted(federation.run().clients["view"].unique())
        ['finetuned', 'personal']
    """

    _fixed = True

    epochs: Annotated[int, at_least(0), "0: none"] = 0
    """Passes over a client's training data before it is scored, by the plain cross-entropy; each evaluation
    pays for them, see ``eval_every``. It adds the view ``finetuned``.
    """
    lr: Annotated[float, above(0)] | None = None
    """Learning rate in all rounds; that of the round if not given."""
    part: Literal["all", "head", "body"] = "all"
    """What is trained: ``all``; the last linear layer (``head``), above features and running statistics that
    stay; or the layers below it (``body``).
    """
    of: Literal["global", "personal"] | None = None
    """What it starts from: the ``global`` model or the client's ``personal`` one; if not given, the global
    one where the method has one.
    """

    def __post_init__(self) -> None:
        if not self.epochs and (self.lr, self.part, self.of) != (None, "all", None):
            raise Conflict("finetune.epochs", "is 0, and the other options of finetune do nothing without it")

    def view(self, method: Method) -> str:
        """Return the view of a method from which it starts."""
        return self.of or ("global" if "global" in method.views else "personal")

    def check(self, method: Method, scores: Mapping[str, Tensor]) -> None:
        """Refuse a method that does not have the model from which it is to start.

        Args:
            method: set up.
            scores: what it gives a new client, by view; nothing if that could not be tried.
        """
        name, view = type(method).__name__, self.view(method)
        if FINETUNED in method.views:
            raise Conflict("finetune.epochs", f"must be 0: {name} has a view {FINETUNED!r} of its own")
        alike = "global" in scores and scores["global"] is scores.get("personal")
        if view not in method.views or (view == "personal" and alike):
            raise Conflict("finetune.of", f"is {view}, and {name} has no {view} model: choose the other one")

    def trains(self, w: Params, head: frozenset[str]) -> Params:
        """Return weights of which only what is to be trained is trainable.

        Args:
            w: the weights.
            head: names of the head's entries.
        """
        names = {"all": w.train_names, "head": w.train_names & head, "body": w.train_names - head}
        return Params(w.tensors, names[self.part])


NO_FINETUNING = Finetune()


async def finetune_model(
    settings: Finetune, method: Method, client: Client, state: State, down: State, view: str
) -> Predict:
    """Fine-tune one of a client's models; return what gives its scores, [B, classes], for inputs [B, ...].

    A view that is one net is trained as this net. Of any other, such as a sum of two nets, all weights are
    trained that it depends on, through ``Method.scores``. Where a view's scores are no logits, it is the net
    below them that is trained and scored.

    Args:
        settings: of the run.
        method: set up.
        client: from whose stream it draws.
        state: its personal state.
        down: what the server sends.
        view: the model.
    """
    x, _ = client._examples.batch(client._indices[:2])
    nets = {net.eval: net for net in (client.net, *client.nets.values())}

    def scores() -> Tensor | None:
        found = answer_at_once(method.scores(client, state, down, x))[view]
        return None if view in method.facts.without_loss else found

    if (found := only_net(nets, scores, x)) is None:
        return _through_scores(settings, method, client, state, down, view)
    twin, w = found
    net = twin if settings.part == "head" else nets[twin]
    start = settings.trains(w, net.names("last_layer", "head"))

    def loss(w: Params, batch: Batch, extra: None) -> Tensor:
        return client.loss_of(net(w, batch.x), batch)

    fitted = await client.fit(start, loss, epochs=settings.epochs, lr=settings.lr)

    async def predict(x: Tensor) -> dict[str, Tensor]:
        return {FINETUNED: twin(fitted.weights, x)}

    return predict


def _through_scores(
    settings: Finetune, method: Method, client: Client, state: State, down: State, view: str
) -> Predict:
    """Fine-tune whatever weights a view depends on; in a loop, because it reads the client's own facts."""
    leaves, spec = pytree.tree_flatten((state, down), is_leaf=lambda leaf: isinstance(leaf, Params))
    head = client.net.names("last_layer", "head")
    start = {str(k): settings.trains(w, head) for k, w in enumerate(leaves) if isinstance(w, Params)}
    seen, twins = copy(client), {net: copy(net) for net in (client.net, *client.nets.values())}
    for net, twin in twins.items():  # in train mode where methods ask for evaluation
        twin.eval = net.eval if settings.part == "head" else net
    seen.net, seen.nets = twins[client.net], {name: twins[net] for name, net in client.nets.items()}

    def scores(client: Client, w: Mapping[str, Params], x: Tensor) -> Tensor:
        state, down = pytree.tree_unflatten([w.get(str(k), leaf) for k, leaf in enumerate(leaves)], spec)
        return answer_at_once(method.scores(client, state, down, x))[view]

    def loss(w: Mapping[str, Params], batch: Batch, extra: None) -> Tensor:
        with inside_loss(batch.key, alone=True):
            return client.loss_of(scores(seen, w, batch.x), batch)

    pending = client.fit(start, loss, epochs=settings.epochs, lr=settings.lr)
    tuned = fit_loop(pending).weights  # type: ignore[arg-type]

    async def predict(x: Tensor) -> dict[str, Tensor]:
        return {FINETUNED: scores(client, tuned, x)}

    return predict
