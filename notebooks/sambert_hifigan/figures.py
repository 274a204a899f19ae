"""Figures: the network, and the mel spectrogram of a sentence with its characters and syllables."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from pypinyin.contrib.tone_convert import to_tone

from notebooks.sambert_hifigan.pipeline import Spoken
from notebooks.sambert_hifigan.pipeline.frontend import Frontend
from utils.charts import FILL, INK, LINE, SOUND, TEXT, VOICE, arrows, box, chinese, has_glyphs

BREAKS = {"#1": "", "#3": ",", "#4": "."}
PITCH = "#7fe0ff"
MAX_PITCH_HZ = 500  # of the axis
STAGES = (
    ("text to\nsymbols", TEXT),
    ("encoder", FILL),
    ("variance\nadaptor", FILL),
    ("symbols\nto frames", FILL),
    ("decoder", FILL),
    ("postnet", FILL),
    ("source,\nvocoder", FILL),
    ("sound", SOUND),
)
LENGTHS = (  # what the stages have in common: first and last stage, and what they count
    (0, 2, "symbols"),
    (3, 5, "frames of 12.5 ms"),
    (6, 7, "samples, 16,000 a second"),
)


def network_figure() -> Figure:
    """The sub-models from text to sound, with the embeddings and the two autoregressive loops."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    chain = [box(axes, x, 1, *stage) for x, stage in enumerate(STAGES)]
    voice, durations = box(axes, 3, -0.15, "speaker and emotion", VOICE), box(axes, 2.5, 2.2, "duration\npredictor")
    for path in (chain, [voice, chain[2]], [voice, chain[4]], [chain[2], durations, chain[3]]):
        arrows(axes, path)
    for x, y, label in (
        (2.5, 2.2, "one step for each symbol"),
        (4, 1, "one step for\nthree frames"),
    ):
        loop = {"arrowstyle": "-|>", "color": LINE, "linewidth": 0.9, "connectionstyle": "arc3,rad=1.6"}
        axes.annotate("", (x - 0.18, y + 0.28), (x + 0.18, y + 0.28), arrowprops=loop)
        axes.text(x, y + 0.82, label, ha="center", va="bottom", fontsize=9, color=INK)
    for first, last, label in LENGTHS:
        axes.plot([first - 0.4, last + 0.4], [-0.75, -0.75], color=LINE, linewidth=1.5)
        axes.text((first + last) / 2, -0.85, label, ha="center", va="top", fontsize=9, color=INK)
    axes.set(xlim=(-0.5, 7.5), ylim=(-1.3, 3.5))
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
            plain = re.sub("(?<=[jqxy])v", "u", syllable.pinyin.removesuffix(coloured))  # as pinyin is written
            tone = "" if syllable.tone == 5 else str(syllable.tone)
            texts.append((to_tone(plain + tone) + coloured, frames))
    return texts


def mel_figure(spoken: Spoken, frontend: Frontend, source: bool, title: str = "") -> Figure:
    """The mel spectrogram of a sentence above its characters, with the pitch if the vocoder has a source of sines.

    source: whether the last two channels are pitch (Hz) and voicing. A character that the font of the figures does not
    have is left out; its syllable in pinyin is always there.
    """
    mel = spoken.mel[:-2] if source else spoken.mel
    frame = spoken.seconds / mel.shape[1]
    figure = Figure(figsize=(9, 3.3), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.imshow(mel, origin="lower", aspect="auto", extent=(0, spoken.seconds, 0, len(mel)), cmap="magma")
    axes.set_ylabel("mel channel", color=INK)
    if title:
        axes.set_title(title, fontsize=10, color=INK, loc="left", fontfamily=chinese())
    if source:
        pitch = np.where(spoken.mel[-1] > 0, spoken.mel[-2], np.nan)
        times = (np.arange(mel.shape[1]) + 0.5) * frame
        pitch_axes = axes.twinx()
        pitch_axes.plot(times, pitch, color=PITCH, linewidth=1.6)
        pitch_axes.set_ylabel("pitch (Hz), the blue line", color=INK)
        pitch_axes.set_ylim(0, MAX_PITCH_HZ)
    texts = labels(spoken, frontend)
    edges = np.concatenate([[0], np.cumsum([frames for _, frames in texts])]) * frame
    for edge in edges[1:-1]:
        axes.axvline(edge, color="white", linewidth=0.5, alpha=0.6)
    characters = ["" if text in BREAKS or not has_glyphs(text) else text for text, _ in spoken.durations]
    ticks = []
    for (begin, end), (pinyin, frames), character in zip(pairwise(edges), texts, characters, strict=True):
        if frames and pinyin:
            ticks.append(((begin + end) / 2, f"{pinyin}\n{character}" if character else pinyin))
    axes.set_xticks([x for x, _ in ticks], [text for _, text in ticks], fontsize=10, color=INK, fontfamily=chinese())
    axes.set_xlabel(f"{spoken.seconds:.2f} seconds", color=INK)
    return figure
