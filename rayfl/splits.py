"""How data are split: the parts on which clients train, choose and are tested."""

PARTS = ("train", "val", "test")
"""Names of the parts, in records, too."""
