import dataclasses

import numpy as np
import pytest

from keras_vit.architectures.rotary import RotaryConfig, as_rotary_config

CHOICES = RotaryConfig.choices()


def test_defaults_are_those_of_dinov3():
    assert RotaryConfig() == RotaryConfig("axial", 100.0, "half", "normalized", None, 0.0, "yx")


def test_integers_of_numpy_become_plain_ones():
    config = RotaryConfig(coordinates="grid", reference_grid=[np.int64(4), 7])
    assert config.reference_grid == (4, 7)
    assert type(config.reference_grid[0]) is int
    assert len({config, RotaryConfig(coordinates="grid", reference_grid=(4, 7))}) == 1


@pytest.mark.parametrize("field", CHOICES)
def test_choices(field):
    for choice in CHOICES[field]:
        assert getattr(RotaryConfig(**{field: choice}), field) == choice
    accepted = ", ".join(map(repr, CHOICES[field]))
    with pytest.raises(ValueError, match=f"^{field} must be one of {accepted}. Received: 'nowhere'$"):
        RotaryConfig(**{field: "nowhere"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            ({"base": base}, r"base must be a number from 0.001 to 1e\+12. Received: ")
            for base in (0.0, 1e300, "100", float("nan"))
        ),
        *(
            ({"coordinates": "grid", "offset": offset}, "offset must be a number from -65535 to 65535. Received: ")
            for offset in ("1", 1e30)
        ),
        ({"offset": 1.0}, "need coordinates='grid'. Received: coordinates='normalized', .*None, offset=1.0"),
        ({"reference_grid": (16, 16)}, r"need coordinates='grid'. Received: .*reference_grid=\(16, 16\), offset=0.0"),
    ],
)
def test_impossible_values(fields, message):
    with pytest.raises(ValueError, match=message):
        RotaryConfig(**fields)


def test_dictionaries_of_layer_configs():
    config = RotaryConfig("mixed", 10.0, "interleaved", "grid", (4, 7), 0.5, "xy")
    assert as_rotary_config(dataclasses.asdict(config)) == as_rotary_config(config) == config
    with pytest.raises(ValueError, match=r"rotary must be a keras_vit\.RotaryConfig\. Received: 100\.0"):
        as_rotary_config(100.0)
