"""Tests of methods and transforms: checks that each must pass, and a driver for numbers by hand."""

from rayfl.testing.by_hand import Run, assert_same, federate, points, ragged, start
from rayfl.testing.checks import CHECKS, Intent, check_method, check_transform, method_checks

__all__ = [
    "CHECKS",
    "Intent",
    "Run",
    "assert_same",
    "check_method",
    "check_transform",
    "federate",
    "method_checks",
    "points",
    "ragged",
    "start",
]
