"""Refusing hyper-parameters that make no sense."""

from __future__ import annotations

from rayfl.errors import UserError


def check(option: str, value: object, fine: bool, allowed: str) -> None:
    """Refuse a value.

    Args:
        option: the constructor's argument.
        value: what it was given.
        fine: whether that is allowed.
        allowed: what is allowed, in words.

    Raises:
        UserError: it is not.
    """
    if not fine:
        raise UserError(f"method.{option} is {value!r}: it must be {allowed}")


def check_weight(option: str, value: float) -> None:
    """Refuse a weight in a loss that is negative or not finite."""
    check(option, value, 0 <= value < float("inf"), "a number of at least 0")


def check_choice(option: str, value: str, *choices: str) -> None:
    """Refuse what is none of the choices."""
    check(option, value, value in choices, f"{', '.join(choices[:-1])} or {choices[-1]}")
