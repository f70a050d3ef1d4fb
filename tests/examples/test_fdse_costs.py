import pytest

from tests.support.examples import example


@pytest.mark.slow
def test_costs_of_table_4_on_small_images(capsys):
    """Parameters and bytes are those of the full size; an AlexNet of 13 M has twice the work of FDSE's."""
    found = example("fdse/t4.py").main(["--images", "8", "--image_size", "64"])
    floats = {"FedBN": 12_974_154 + 6_400, "Ditto": 12_974_154 + 6_400, "FDSE": 6_508_010 + 9_600}
    for name, count in floats.items():
        assert found[name].model_mib == 4 * count / 2**20
        assert found[name].seconds > 0
    assert found["FedBN"].sent_mib == 4 * (12_974_154 - 6_400) / 2**20
    assert found["Ditto"].sent_mib == found["Ditto"].model_mib
    assert 1.8 < found["FedBN"].macs / found["FDSE"].macs < 2.2
    # of a first layer at 64 pixels with 15 x 15 outputs, by hand; the others are more
    assert found["FedBN"].macs > 50 * 15 * 15 * 64 * 3 * 11 * 11
    said = capsys.readouterr().out
    assert "12,974,154" in said
    assert "24.87" in said
