"""The pictures show what is measured, in letters that every font has."""

import warnings
from io import BytesIO

import numpy as np
import pytest

from notebooks.gpt_sovits import figures as drawing
from notebooks.gpt_sovits.pipeline import Timings


def drawn(figure) -> bytes:
    """The picture; a character that the font does not have is an error."""
    written = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(written, dpi=40)
    return written.getvalue()


def test_the_network_is_drawn():
    figure = drawing.network_picture()
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert {"HuBERT\n50 vectors/s", "style encoder", "synthesizer", "cloned\nspeech"} <= texts and len(
        drawn(figure)
    ) > 1000


def test_every_stage_has_its_bar():
    figures = Timings(sound_s=4.0, busy={"tokens": 0.5, "recording": 0.25, "synthesizer": 1.25})
    figure = drawing.stage_bars(figures)
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [250, 500, 1250]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        "reading the recording",
        "token decoder",
        "synthesizer",
    ]
    assert axes.get_title() == "4.0 s of speech in 2.00 s, 2.0 times as fast as real time" and len(drawn(figure)) > 1000
    assert drawing.stage_bars(Timings(busy={"hubert": 1.0})).axes[0].get_title() == ""


def test_spectrograms_share_their_scales():
    """A tone of 1 kHz is at its place on the axis in both, and a longer sound makes both axes longer."""
    times = {name: np.arange(seconds * 32_000) / 32_000 for name, seconds in (("owner", 1), ("clone", 2))}
    tones = {name: np.float32(0.5 * np.sin(2 * np.pi * 1000 * x)) for name, x in times.items()}
    figure = drawing.compared_spectrograms({"我们明天再见。": tones}, 32_000)
    pictures = [axes.images[0] for axes in figure.axes]
    assert [axes.get_title() for axes in figure.axes] == ["owner\n我们明天再见。", "clone\n我们明天再见。"]
    assert pictures[0].get_clim() == pictures[1].get_clim()
    assert [picture.get_extent()[1] for picture in pictures] == pytest.approx([1, 2], abs=0.1)
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    loudest = [picture.get_array().mean(1).argmax() for picture in pictures]
    one_khz = figure.axes[0].get_yticks()[drawing.KHZ.index(1)]
    assert [abs(channel + 0.5 - one_khz) < 1.5 for channel in loudest] == [True, True]
    assert len(drawn(figure)) > 1000


def test_own_recordings_are_bars_and_the_nearest_other_is_a_mark():
    cosines = {
        "Anna": {"Anna": 0.9, "Bao": 0.6, "Chen": 0.7},
        "Bao": {"Anna": 0.5, "Bao": 0.8, "Chen": 0.1},
        "Chen": {"Anna": 0.5, "Bao": 0.4, "Chen": 0.3},
    }
    figure = drawing.likeness_bars(cosines, {"Anna": False, "Bao": True, "Chen": True})
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [0.9, 0.8, 0.3]
    assert axes.collections[0].get_offsets()[:, 1].tolist() == [0.7, 0.5, 0.5]
    assert axes.get_title() == "Recognised: 1 of 1 known voices and 1 of 2 new voices"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["Anna", "Bao", "Chen"] and len(drawn(figure)) > 1000
