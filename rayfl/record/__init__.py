"""What is kept of a run: records, checkpoints, figures derived from them, and what people are shown.

Import from the modules: client actors need the checkpoints, and must not wait for tables and plots to load.
"""
