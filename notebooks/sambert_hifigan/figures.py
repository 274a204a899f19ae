"""Figures: the network, and the mel spectrogram of a sentence with its syllables.

Syllables are written in pinyin, since no font of matplotlib has Chinese characters.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from pypinyin.contrib.tone_convert import to_tone

from notebooks.sambert_hifigan.pipeline import Spoken
from notebooks.sambert_hifigan.pipeline.frontend import Frontend
from utils.charts import FILL, INK, LINE, SOUND, TEXT, VOICE, arrows, box

BREAKS = {"#1": "", "#3": ",", "#4": "."}
STAGES = (
    ("text to\nsymbols", TEXT),
    ("encoder", FILL),
    ("pitch and\nenergy", FILL),
    ("stretch to\nframes", FILL),
    ("decoder", FILL),
    ("postnet", FILL),
    ("vocoder", FILL),
    ("sound", SOUND),
)


def network_figure() -> Figure:
    """The sub-models from text to sound, with the embeddings and the two autoregressive loops."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    axes = figure.subplots()
    chain = [box(axes, x, 1, *stage) for x, stage in enumerate(STAGES)]
    voice, durations = box(axes, 3, -0.2, "speaker, emotion", VOICE), box(axes, 2.5, 2.2, "durations")
    for path in (chain, [voice, chain[2]], [voice, chain[4]], [chain[2], durations, chain[3]]):
        arrows(axes, path)
    for x, y, label in (
        (2.5, 2.2, "each symbol depends on the one before"),
        (4, 1, "each group of frames depends on the last"),
    ):
        loop = {"arrowstyle": "-|>", "color": LINE, "linewidth": 0.9, "connectionstyle": "arc3,rad=1.6"}
        axes.annotate("", (x - 0.18, y + 0.25), (x + 0.18, y + 0.25), arrowprops=loop)
        axes.text(x, y + 0.8, label, ha="center", fontsize=9, color=INK)
    axes.set(xlim=(-0.5, 7.5), ylim=(-0.6, 3.3))
    axes.axis("off")
    return figure


def labels(spoken: Spoken, frontend: Frontend) -> list[tuple[str, int]]:
    """The syllables of a sentence in pinyin and its breaks as punctuation marks, with their numbers of frames."""
    feet = (foot for phrase, _ in frontend.read(spoken.text) for foot in phrase)
    syllables = (syllable for foot in feet for word in foot for syllable in word)
    texts = []
    for text, frames in spoken.durations:
        if text in BREAKS:
            texts.append((BREAKS[text], frames))
        else:
            syllable = next(syllables)
            coloured = "r" if syllable.pinyin.endswith("r") and syllable.pinyin != "er" else ""
            plain = syllable.pinyin.removesuffix(coloured)
            tone = "" if syllable.tone == 5 else str(syllable.tone)
            texts.append((to_tone(plain + tone) + coloured, frames))
    return texts


def mel_figure(spoken: Spoken, frontend: Frontend, source: bool) -> Figure:
    """The mel spectrogram of a sentence above its syllables, with the pitch if the vocoder has a source of sines.

    source: whether the last two channels are pitch (Hz) and voicing.
    """
    mel = spoken.mel[:-2] if source else spoken.mel
    frame = spoken.seconds / mel.shape[1]
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots()
    axes.imshow(mel, origin="lower", aspect="auto", extent=(0, spoken.seconds, 0, len(mel)), cmap="magma")
    axes.set_ylabel("mel channel", color=INK)
    if source:
        pitch = np.where(spoken.mel[-1] > 0, spoken.mel[-2], np.nan)
        times = (np.arange(mel.shape[1]) + 0.5) * frame
        pitch_axes = axes.twinx()
        pitch_axes.plot(times, pitch, color="#7fe0ff", linewidth=1.4)
        pitch_axes.set_ylabel("pitch (Hz)", color=INK)
        pitch_axes.set_ylim(0, 500)
    texts = labels(spoken, frontend)
    edges = np.concatenate([[0], np.cumsum([frames for _, frames in texts])]) * frame
    for edge in edges[1:-1]:
        axes.axvline(edge, color="white", linewidth=0.5, alpha=0.6)
    middles = [(begin + end) / 2 for begin, end in pairwise(edges)]
    shown = [(x, text) for x, (text, frames) in zip(middles, texts, strict=True) if frames and text]
    axes.set_xticks([x for x, _ in shown], [text for _, text in shown], fontsize=9, color=INK)
    axes.set_xlabel(f"{spoken.seconds:.2f} seconds", color=INK)
    return figure
