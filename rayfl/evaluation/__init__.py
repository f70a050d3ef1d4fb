"""Evaluation: how models are scored, and the figures that are made of the scores."""
