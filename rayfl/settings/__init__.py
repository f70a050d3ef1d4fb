"""Settings are frozen values: a class declares its options once, and one reader makes objects of mappings.

``base`` has the classes, ``arguments`` says which values an option takes, ``reader`` makes a mapping an
object, and ``description`` an object a mapping.
"""

from rayfl.settings.base import Settings, Value, above, at_least, at_most, below

__all__ = ["Settings", "Value", "above", "at_least", "at_most", "below"]
