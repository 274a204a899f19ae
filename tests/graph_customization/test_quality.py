"""The negative controls of perplexity are broken as they say."""

import numpy as np

from notebooks.graph_customization.measuring import quality
from notebooks.graph_customization.pipeline import Int4Weight


def weight(scale: float) -> Int4Weight:
    values, groups = np.full((2, 4), 3, np.uint8), (2, 1)
    return Int4Weight(values, np.full(groups, scale, np.float32), np.full(groups, 8, np.uint8))


def test_scales_go_to_the_next_layer_of_the_same_kind():
    names = ["layers.0.up_proj", "layers.0.down_proj", "layers.1.up_proj", "layers.2.up_proj"]
    weights = {name: weight(float(i)) for i, name in enumerate(names)}
    exchanged = quality.exchange_scales(weights)
    assert {name: float(w.scales[0, 0]) for name, w in exchanged.items()} == {
        "layers.0.up_proj": 2.0,
        "layers.1.up_proj": 3.0,
        "layers.2.up_proj": 0.0,
        "layers.0.down_proj": 1.0,
    }
    assert all(np.array_equal(w.values, weights[name].values) for name, w in exchanged.items())
