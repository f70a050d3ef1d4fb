"""Methods around other methods."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from inspect import isfunction, signature
from typing import Any

from rayfl.errors import Conflict
from rayfl.methods.base import Method
from rayfl.training import Client, Context, Params, Reduction, State


class Wrapper(Method):
    """A method around another one, which does what that one does: override what is to be different.

    ``TopK(of=FedProx(mu=0.1), share=0.1)`` is FedProx with compressed uploads. A wrapper that changes what
    clients send is one function::

        class Rounded(Wrapper):
            async def local_update(self, client, state, down):
                up, state = await super().local_update(client, state, down)
                changes = self.change_of(client, down, up)
                halved = {key: change.to(torch.bfloat16) for key, change in changes.items()}
                return self.with_change(client, down, up, halved), state

    ``super()`` is the wrapped method. What a wrapper keeps with a client, it puts into the state under
    ``self.own``; the wrapped method does not see it. A wrapper knows a method by the hooks of ``Method``
    alone, so that it serves every method, and wrappers stand around wrappers, the outer one last.
    """

    of: Method
    """The method around which this one stands; its options follow, such as ``--method.of.mu 0.1``."""

    def __post_init__(self) -> None:
        inside: Method = self.of
        while isinstance(inside, Wrapper):
            if type(inside) is type(self):
                name = type(self).__name__
                raise Conflict("method.of", f"has a {name} in it, and a {name} around it: one is enough")
            inside = inside.of

    # ---- for wrappers

    @property
    def own(self) -> str:
        """The key of a client's state under which this wrapper keeps what it needs."""
        return f"of {type(self).__name__}"

    def change_of(self, client: Client, down: State, up: Mapping[str, Any]) -> dict[str, Params]:
        """Return what an upload changes of the weights received, by upload key, as ``uploads`` say."""
        found = self.reductions_of_changes(client, down, up)
        if up and not found:
            raise self._uploads_no_weights()
        return {key: up[key] if how.adds_to else up[key] - down[how.base(key)] for key, how in found.items()}

    def reductions_of_changes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> dict[str, Reduction]:
        """Return which uploads are changed weights, as ``change_of`` has them: upload key -> what it is."""
        return {
            key: how
            for key, how in self.uploads(client.context).items()
            if how.base(key) in down and isinstance(up.get(key), Params)
        }

    def with_change(
        self, client: Client, down: State, up: Mapping[str, Any], changes: Mapping[str, Params]
    ) -> dict[str, Any]:
        """Return the upload with these changes of the weights in place of its own."""
        uploads, new = self.uploads(client.context), dict(up)
        for key, change in changes.items():
            how = uploads[key]
            new[key] = change if how.adds_to else down[how.base(key)] + change
        return new

    def need_changes(self, context: Context) -> None:
        """Refuse a method that uploads no weights; for ``prepare`` of wrappers that work on these.

        Raises:
            UserError: it does not.
        """
        if not any(how.base(key) for key, how in self.uploads(context).items()):
            raise self._uploads_no_weights()

    def _uploads_no_weights(self) -> Conflict:
        return Conflict(
            "method.of",
            f"is {type(self.of).__name__}, which uploads no weights, and {type(self).__name__} works on "
            "those that clients upload: choose another method",
        )

    def _state_of_wrapped(self, state: State) -> State:
        """Return what the wrapped method sees of a client's state."""
        return {key: state[key] for key in state if key != self.own} if self.own in state else state

    # ---- what is more than to ask the wrapped method; everything else follows below the class

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train as the wrapped method does."""
        return await self.of.local_update(client, self._state_of_wrapped(state), down)

    def overrides(self, hook: str) -> bool:
        """Return whether this method's class or the wrapped method has a member of its own."""
        return getattr(type(self), hook) is not getattr(Wrapper, hook) or self.of.overrides(hook)


def _forwarded_member(name: str) -> Any:
    """Return a member of ``Wrapper`` that asks the wrapped method: a function or a property."""
    member = vars(Method)[name]
    if not isfunction(member):  # a property, or what the class declares
        return property(lambda self: getattr(self.of, name), doc=member.__doc__)
    takes_state = [parameter == "state" for parameter in signature(member).parameters][1:]

    @wraps(member)
    def ask_wrapped(self: Wrapper, *given: Any, **named: Any) -> Any:
        pairs = zip(given, takes_state)
        seen = [self._state_of_wrapped(value) if hides else value for value, hides in pairs]
        return getattr(self.of, name)(*seen, **named)

    return ask_wrapped


for _name in vars(Method):
    if not _name.startswith("_") and _name not in vars(Wrapper):
        setattr(Wrapper, _name, _forwarded_member(_name))
