"""JSON from strangers."""

import pytest

from rayfl.system.files import parse_json


def test_json_is_strict_utf_8_of_a_bounded_depth() -> None:
    assert parse_json(b'["\\ud83d\\ude00", -1.5]') == ["\U0001f600", -1.5]
    for content in (b"NaN", b"[-Infinity]", b"[" * 100_000, b'"\\ud800"', b'"\\uD800"', b"\xff", b""):
        with pytest.raises(ValueError, match=r"."):
            parse_json(content)
