"""The splits of data: clients train on one, choose by another and are tested on the third."""

SPLITS = ("train", "val", "test")
"""Names of the splits, in records, too."""
