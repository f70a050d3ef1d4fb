"""Tables of experiments: files that describe them, and processes that run their cells."""

from rayfl.experiments.table_file import Table, expand

__all__ = ["Table", "expand"]
