"""Sweeps: federations with many settings, on Ray Tune; ``python -m rayfl.tune SPACE`` runs one."""
