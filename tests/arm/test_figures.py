"""The figures show the layers of runs, and a point for each converted model."""

from notebooks.arm import figures
from notebooks.arm.pipeline import Layer, Run

LAYERS = (
    ("ShapeOf", "ref", "f32", "a"),
    ("Eltwise", "jit", "i32", "b"),
    ("Reorder", "jit_uni", "f32", "x_f32_u8_y"),
    ("Reorder", "jit_uni", "f32", "x_abcd_acdb_y"),
    ("Gather", "unknown", "f32", "c"),
)
RUNS = {
    "x86": Run("a", "f32", "", "", [], [], [Layer("Convolution", "brgconv_avx512", "f32", "a")]),
    "ARM": Run("b", "f32", "", "", [], [], [Layer(*layer) for layer in LAYERS]),
}


SHOWN = ["Reorder: from f32 to u8", "Reorder: another order of the axes", "Gather f32"]


def test_each_layer_is_a_box_with_its_kernel():
    figure = figures.graphs(RUNS)
    texts = [[text.get_text() for text in axes.texts if text.get_text()] for axes in figure.axes]
    assert texts == [["Convolution: brgconv_avx512 f32"], SHOWN]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == ["oneDNN, blocked products", "code generated at compilation"]


def test_models_beyond_a_limit_have_their_names():
    def row(f32: float, f16: float) -> dict:
        limits = {"f32": (f32, 0.001), "f16": (f16, 0.1)}
        return {
            name: {"result": "agrees" if value <= limit else "differs", "difference": value}
            for name, (value, limit) in limits.items()
        }

    untried = dict.fromkeys(("f32", "f16"), {"result": "untried", "error": "no sizes"})
    models = {
        "good/a": row(0.0, 0.01),
        "bad/b": row(0.5, 0.6),
        "bad/e": row(0.6, 0.6),
        "smallest/c": row(1, 1),
        "other/d": untried,
    }
    axes = figures.collection({"models": models, "limits": {"f32": 0.001, "f16": 0.1}}).axes[0]
    assert [text.get_text() for text in axes.texts] == ["bad"]
    assert len(axes.collections) == 3
