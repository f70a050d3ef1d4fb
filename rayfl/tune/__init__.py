"""Sweeps: federations with many settings, on Ray Tune; ``rayfl tune SPACE`` runs one."""
