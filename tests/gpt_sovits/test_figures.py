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
    assert {"HuBERT", "encoder of style", "synthesizer", "cloned\nspeech"} <= texts and len(drawn(figure)) > 1000


def test_every_stage_has_its_bar():
    figures = Timings(sound_s=4.0, busy={"tokens": 0.5, "recording": 0.25, "synthesizer": 1.25})
    figure = drawing.stage_bars(figures)
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [0.25, 0.5, 1.25]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        "reading the recording",
        "decoder of tokens",
        "synthesizer",
    ]
    assert axes.get_title() == "a second of sound took 0.50 s" and len(drawn(figure)) > 1000
    assert drawing.stage_bars(Timings(busy={"hubert": 1.0})).axes[0].get_title() == ""


def test_spectrograms_share_their_scales():
    """A tone is as high in both, whatever the rate of the sound."""
    times = {rate: np.arange(2 * rate) / rate for rate in (16_000, 32_000)}
    tones = {f"{rate} Hz": (np.float32(0.5 * np.sin(2 * np.pi * 1000 * x)), rate) for rate, x in times.items()}
    figure = drawing.spectrograms(tones)
    pictures = [axes.images[0] for axes in figure.axes]
    assert [axes.get_title() for axes in figure.axes] == list(tones)
    assert pictures[0].get_clim() == pictures[1].get_clim() and pictures[0].get_extent()[1] == pytest.approx(2, abs=0.1)
    loudest = [picture.get_array().mean(1).argmax() for picture in pictures]
    assert abs(loudest[0] - loudest[1]) <= 1 and 15 < loudest[0] < 35
    assert len(drawn(figure)) > 1000


def test_own_recordings_are_bars_and_others_marks():
    figure = drawing.likeness_bars({"Anna": {"Anna": 0.9, "Bao": 0.6}, "Bao": {"Anna": 0.5, "Bao": 0.8}})
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [0.9, 0.8]
    assert axes.collections[0].get_offsets()[:, 1].tolist() == [0.6, 0.5]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["Anna", "Bao"] and len(drawn(figure)) > 1000
