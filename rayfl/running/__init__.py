"""A run, from its settings to its records: checks, rounds, and the way back to a checkpoint."""
