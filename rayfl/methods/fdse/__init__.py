"""FDSE: its rounds, the consensus of the server, and the regulariser of the clients."""

from rayfl.methods.fdse.method import FDSE

__all__ = ["FDSE"]
