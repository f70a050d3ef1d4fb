"""What is kept of a run: records, tables, figures derived from them, and what people are shown."""

from rayfl.record.folder import RunFolder, check_unused
from rayfl.record.history import Population
from rayfl.record.metrics import RoundFigures, round_figures
from rayfl.record.progress import Progress, final_table, print_start
from rayfl.record.protocol import PROTOCOLS, Protocol, protocol
from rayfl.record.result import Result

__all__ = [
    "PROTOCOLS",
    "Population",
    "Progress",
    "Protocol",
    "Result",
    "RoundFigures",
    "RunFolder",
    "check_unused",
    "final_table",
    "print_start",
    "protocol",
    "round_figures",
]
