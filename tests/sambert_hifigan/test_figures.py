"""The pictures say what was said, in pinyin and in characters."""

import warnings
from io import BytesIO

import numpy as np
import pytest

from notebooks.sambert_hifigan import figures
from tests.sambert_hifigan.small import NAMES
from utils import charts, compare


def drawn(figure) -> bytes:
    """The picture; a character that the font does not have is an error."""
    written = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(written, dpi=40)
    return written.getvalue()


@pytest.mark.parametrize("kind", ["plain", "nsf"])
def test_syllables_stand_under_their_sound(kind, synthesizers):
    synthesizer = synthesizers[kind]
    (spoken,) = synthesizer.stream("花儿很绿，吗W", NAMES[0])
    told = figures.labels(spoken, synthesizer.frontend)
    assert [text for text, _ in told][:5] == ["huār", "hěn", "lǜ", ",", "ma"] and told[-1][0] == "."
    assert [frames for _, frames in told] == [frames for _, frames in spoken.durations]
    figure = figures.mel_figure(spoken, synthesizer.frontend, kind == "nsf")
    axes = figure.axes[0]
    shown = [tick.get_text() for tick in axes.get_xticklabels()]
    assert shown[:3] == ["huār\n花儿", "hěn\n很", "lǜ\n绿" if charts.has_glyphs("绿") else "lǜ"]
    frame = spoken.seconds / spoken.mel.shape[1]
    assert axes.get_xticks()[0] == pytest.approx(told[0][1] * frame / 2)
    assert axes.images[0].get_array().shape == (10, spoken.mel.shape[1]) and len(figure.axes) == 1 + (kind == "nsf")
    if kind == "nsf":
        (line,) = figure.axes[1].lines
        voiced = ~np.isnan(line.get_ydata())
        assert (voiced == (spoken.mel[-1] > 0)).all()
    assert len(drawn(figure)) > 1000


def test_bars_have_thresholds_and_controls():
    rows = [compare.quality("rate", name, x, 0.1, 0.13, "lower") for name, x in (("FP32", 0.1), ("INT8", 0.12))]
    rows += [compare.control("rate", "in another order", 0.8, 0.13, "lower")]
    rows += [compare.quality("other", "FP32", 3.0, 3.0, None, "higher")]
    figure = charts.quality_bars(rows)
    first, second = (axes for axes in figure.axes if axes.get_title())
    assert [bar.get_height() for bar in first.patches] == [0.1, 0.12, 0.8] and len(second.patches) == 1
    assert [bool(bar.get_hatch()) for bar in first.patches] == [False, False, True]
    assert [line.get_ydata()[0] for line in first.lines] == [0.13]
    assert first.get_title() == "rate\n0.1 to 0.12, control 0.8 (lower is better)"
    assert second.get_title() == "other\n3 (higher is better)"
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["FP32", "INT8", "control"]
    assert len(drawn(figure)) > 1000


def test_the_network_is_drawn():
    figure = figures.network_figure()
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"source,\nvocoder", "postnet", "sound"} <= set(texts) and len(drawn(figure)) > 1000


def test_a_character_without_a_glyph_is_left_out(synthesizers):
    synthesizer = synthesizers["plain"]
    assert not charts.has_glyphs("鳄")
    (spoken,) = synthesizer.stream("鳄鱼", NAMES[0])
    figure = figures.mel_figure(spoken, synthesizer.frontend, False, "鱼 in the voice Anna")
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()][:2] == ["è", "yú\n鱼"]
    assert figure.axes[0].get_title(loc="left") == "鱼 in the voice Anna" and len(drawn(figure)) > 1000
