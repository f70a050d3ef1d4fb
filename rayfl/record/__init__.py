"""What is kept of a run: its folder, its history, its checkpoints.

Import from the modules: client actors need the checkpoints, and must not wait for the others to load.
"""
