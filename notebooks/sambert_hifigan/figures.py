"""Pictures of the lesson: the network, the mel spectrogram of a sentence with what is said when, and bars of quality.

No font that comes with matplotlib has Chinese characters: syllables are written in pinyin.
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


def network_picture() -> Figure:
    """From text to sound, with the embeddings of speaker and emotion, and the two parts that hear what they said."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots()
    chain = [box(axes, x, 1, *stage, size=7) for x, stage in enumerate(STAGES)]
    voice, durations = box(axes, 3, -0.2, "speaker, emotion", VOICE, 7), box(axes, 2.5, 2.2, "durations", size=7)
    for path in (chain, [voice, chain[2]], [voice, chain[4]], [chain[2], durations, chain[3]]):
        arrows(axes, path)
    for x, y, label in (
        (2.5, 2.2, "each symbol hears the one before"),
        (4, 1, "each group of frames hears the last one"),
    ):
        loop = {"arrowstyle": "-|>", "color": LINE, "linewidth": 0.9, "connectionstyle": "arc3,rad=1.6"}
        axes.annotate("", (x - 0.18, y + 0.25), (x + 0.18, y + 0.25), arrowprops=loop)
        axes.text(x, y + 0.8, label, ha="center", fontsize=7, color=INK)
    axes.set(xlim=(-0.5, 7.5), ylim=(-0.6, 3.3))
    axes.axis("off")
    return figure


def labels(spoken: Spoken, frontend: Frontend) -> list[tuple[str, int]]:
    """Every syllable of a sentence in pinyin, or its break as a mark, with its frames."""
    syllables = (x for feet, _ in frontend.read(spoken.text) for foot in feet for word in foot for x in word)
    found = []
    for text, frames in spoken.durations:
        if text in BREAKS:
            found.append((BREAKS[text], frames))
        else:
            syllable = next(syllables)
            coloured = "r" if syllable.pinyin.endswith("r") and syllable.pinyin != "er" else ""
            plain = syllable.pinyin.removesuffix(coloured)
            tone = "" if syllable.tone == 5 else str(syllable.tone)
            found.append((to_tone(plain + tone) + coloured, frames))
    return found


def mel_picture(spoken: Spoken, frontend: Frontend, source: bool) -> Figure:
    """The mel spectrogram of a sentence, with its pitch where the vocoder has a source of sines, and under it what is
    said when. source: whether the last two channels are pitch (Hz) and voicing."""
    mel = spoken.mel[:-2] if source else spoken.mel
    frame = spoken.seconds / mel.shape[1]
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots()
    axes.imshow(mel, origin="lower", aspect="auto", extent=(0, spoken.seconds, 0, len(mel)), cmap="magma")
    axes.set_ylabel("mel channel", color=INK)
    if source:
        pitch, times = np.where(spoken.mel[-1] > 0, spoken.mel[-2], np.nan), (np.arange(mel.shape[1]) + 0.5) * frame
        beside = axes.twinx()
        beside.plot(times, pitch, color="#7fe0ff", linewidth=1.4)
        beside.set_ylabel("pitch (Hz)", color=INK)
        beside.set_ylim(0, 500)
    told = labels(spoken, frontend)
    edges = np.concatenate([[0], np.cumsum([frames for _, frames in told])]) * frame
    for edge in edges[1:-1]:
        axes.axvline(edge, color="white", linewidth=0.5, alpha=0.6)
    middles = [(begin + end) / 2 for begin, end in pairwise(edges)]
    shown = [(x, text) for x, (text, frames) in zip(middles, told, strict=True) if frames * frame and text]
    axes.set_xticks([x for x, _ in shown], [text for _, text in shown], fontsize=8, color=INK)
    axes.set_xlabel(f"{spoken.seconds:.2f} seconds", color=INK)
    return figure
