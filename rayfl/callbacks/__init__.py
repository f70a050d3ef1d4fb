"""Callbacks: what looks at a run after every round."""
