"""Tests of methods: checks that every method must pass, and a driver for numbers worked out by hand."""

from rayfl.testing.by_hand import Run, assert_same, federate, points, ragged, start
from rayfl.testing.checks import CHECKS, Intent, check_method, method_checks

__all__ = [
    "CHECKS",
    "Intent",
    "Run",
    "assert_same",
    "check_method",
    "federate",
    "method_checks",
    "points",
    "ragged",
    "start",
]
