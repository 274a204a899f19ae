"""The notebook's figures: the network, the time of each stage, recording and clone side by side, and similarities."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from notebooks.gpt_sovits.pipeline import Timings
from utils.charts import COLOURS, INK, LINE, PICTURE, SOUND, TEXT, VOICE, arrows, box
from utils.speech.speaker_encoder import SAMPLE_RATE, resampled
from utils.speech.spectra import FLOOR, HOP, log_mel

STAGES = {  # of `Timings.busy`, in their order
    "recording": "reading the recording",
    "frontend": "text to phones",
    "hubert": "HuBERT and tokens",
    "style": "style",
    "bert": "BERT",
    "tokens": "decoder of tokens",
    "synthesizer": "synthesizer",
}


def network_picture() -> Figure:
    """From a recording, its words and a text to sound: tokens carry words and prosody, the style carries the timbre."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    voice, words, text = (
        box(axes, 0, y, label, fill)
        for y, label, fill in ((2.4, "recording", SOUND), (1.2, "its words", TEXT), (0, "text", TEXT))
    )
    tokens = box(axes, 4.2, 2.4, "semantic\ntokens", PICTURE)
    arrows(axes, [voice, box(axes, 1.5, 2.4, "HuBERT"), box(axes, 2.8, 2.4, "codebook"), tokens])
    phones = box(axes, 2.8, 0.6, "phonemes and\nBERT features", PICTURE)
    spelled = box(axes, 7.5, 0.3, "phonemes of\nthe text", PICTURE)
    front = box(axes, 1.5, 0.6, "front end")
    arrows(axes, [words, front, phones])
    arrows(axes, [text, front])
    decoder = box(axes, 5.8, 1.5, "decoder of tokens,\nKV cache inside")
    arrows(axes, [tokens, decoder])
    arrows(axes, [phones, decoder])
    new = box(axes, 7.5, 1.5, "tokens of\nthe text", PICTURE)
    synthesizer = box(axes, 9.1, 1.5, "synthesizer")
    arrows(axes, [decoder, new, synthesizer, box(axes, 10.5, 1.5, "cloned\nspeech", SOUND)])
    arrows(axes, [voice, box(axes, 5.8, 3.2, "encoder of style", VOICE), synthesizer])
    arrows(axes, [phones, spelled, synthesizer])
    axes.set(xlim=(-0.6, 11.1), ylim=(-0.4, 3.5))
    axes.axis("off")
    return figure


def stage_bars(timings: Timings) -> Figure:
    """The seconds of each stage of a call, with the real-time factor in the title."""
    figure = Figure(figsize=(7, 2.6), layout="constrained")
    axes = figure.subplots()
    done = [stage for stage in STAGES if stage in timings.busy]
    seconds = [timings.busy[stage] for stage in done]
    bars = axes.barh([STAGES[stage] for stage in done], seconds, color=COLOURS[0])
    axes.bar_label(bars, [f"{x:.2f} s" for x in seconds], padding=3, fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(seconds))
    axes.set_xlabel("seconds", color=INK)
    if timings.real_time_factor:
        axes.set_title(f"a second of sound took {timings.real_time_factor:.2f} s", fontsize=9, color=INK)
    return figure


def spectrograms(sounds: Mapping[str, tuple[np.ndarray, int]]) -> Figure:
    """Mel spectrograms side by side, on the same scales. sounds: [S] float32 in -1..1 and their rate in Hz, by name."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    pictures = {name: log_mel(resampled(*sound)) for name, sound in sounds.items()}
    lasting = [mel.shape[1] for mel in pictures.values()]
    panels = figure.subplots(1, len(sounds), sharey=True, squeeze=False, width_ratios=lasting)[0]
    look = {"vmin": 20 * np.log10(FLOOR), "vmax": max(mel.max() for mel in pictures.values()), "cmap": "magma"}
    for axes, (name, mel) in zip(panels, pictures.items(), strict=True):
        extent = (0, mel.shape[1] * HOP / SAMPLE_RATE, 0, len(mel))
        axes.imshow(mel, origin="lower", aspect="auto", extent=extent, **look)
        axes.set_title(name, fontsize=9, color=INK)
        axes.set_xlabel("seconds", color=INK)
    panels[0].set_ylabel("mel channel", color=INK)
    return figure


def likeness_bars(cosines: Mapping[str, Mapping[str, float]]) -> Figure:
    """The similarity of every clone to all recordings; the voice is recognised where the bar is above all marks.

    cosines: by the name of the cloned voice, its clone's cosine with the voice of every recording. A bar is the cosine
    with the own recording, a mark that with another.
    """
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots()
    names = list(cosines)
    axes.bar(names, [cosines[name][name] for name in names], color=COLOURS[0], label="its own recording")
    others = [(name, x) for name in names for other, x in cosines[name].items() if other != name]
    look = {"marker": "o", "color": COLOURS[1], "edgecolors": "white", "s": 30, "zorder": 3}
    axes.scatter(*zip(*others, strict=True), label="recordings of others", **look)
    axes.axhline(0, color=LINE, linewidth=0.8)
    axes.set_ylabel("cosine with the clone", color=INK)
    axes.tick_params(axis="x", labelsize=9, labelrotation=20)
    axes.legend(fontsize=9, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 1.16), frameon=False)
    return figure
