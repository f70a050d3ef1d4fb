"""Partitions: how the samples of a data set are divided among clients."""
