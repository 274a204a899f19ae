"""The notebook's figures: the network, the time of each stage, voices compared with their clones, and likenesses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from transformers.audio_utils import hertz_to_mel

from notebooks.gpt_sovits.pipeline import Timings
from utils.charts import COLOURS, INK, LINE, PICTURE, SOUND, TEXT, VOICE, arrows, box, chinese
from utils.speech.speaker_encoder import SAMPLE_RATE, resampled
from utils.speech.spectra import FLOOR, HOP, MELS, log_mel

STAGES = {  # of `Timings.busy`, in their order
    "recording": "reading the recording",
    "frontend": "text to phonemes",
    "hubert": "HuBERT and tokens",
    "style": "style encoder",
    "bert": "BERT",
    "tokens": "token decoder",
    "synthesizer": "synthesizer",
}
KHZ = (0.25, 0.5, 1, 2, 4)  # of the ticks of spectrograms
KNOWN, NEW = COLOURS[0], COLOURS[1]  # of voices


def network_picture() -> Figure:
    """From a recording, its words and a text to sound: tokens carry words and prosody, the style carries the timbre."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots()
    recording = box(axes, 0, 3, "recording", SOUND)
    words, text = box(axes, 0, 1.5, "its words", TEXT), box(axes, 0, 0.3, "new text", TEXT)
    hubert = box(axes, 2, 3, "HuBERT\n50 vectors/s")
    codebook = box(axes, 4, 3, "codebook\n25 tokens/s")
    prompt = box(axes, 6, 3, "tokens of the\nrecording", PICTURE)
    arrows(axes, [recording, hubert, codebook, prompt])
    front = box(axes, 2, 0.9, "front end\nand BERT")
    both = box(axes, 4, 0.9, "phonemes of\nboth texts", PICTURE)
    arrows(axes, [words, front, both])
    arrows(axes, [text, front])
    decoder = box(axes, 6, 1.5, "token decoder\nKV cache inside")
    arrows(axes, [both, decoder])
    arrows(axes, [prompt, decoder])
    look = {"connectionstyle": "arc3,rad=-0.9", "arrowstyle": "-|>", "mutation_scale": 10, "color": LINE}
    axes.add_patch(FancyArrowPatch((6.4, 1.18), (5.6, 1.18), **look))
    axes.text(6, 0.55, "token by token", ha="center", va="center", fontsize=9, color=INK)
    tokens = box(axes, 8, 1.5, "tokens of the\nnew text", PICTURE)
    synthesizer = box(axes, 9.9, 1.5, "synthesizer")
    arrows(axes, [decoder, tokens, synthesizer, box(axes, 11.5, 1.5, "cloned\nspeech", SOUND)])
    style = box(axes, 2, 4.1, "style encoder")
    arrows(axes, [recording, style, box(axes, 8, 4.1, "style vector:\nthe timbre", VOICE), synthesizer])
    spelled = box(axes, 6, -0.4, "phonemes of\nthe new text", PICTURE)
    arrows(axes, [both, spelled, synthesizer])
    axes.set(xlim=(-0.7, 12.1), ylim=(-0.8, 4.5))
    axes.axis("off")
    return figure


def stage_bars(timings: Timings) -> Figure:
    """The milliseconds of each stage of a call; the title says how much faster than real time it was."""
    figure = Figure(figsize=(8, 2.8), dpi=110, layout="constrained")
    axes = figure.subplots()
    done = [stage for stage in STAGES if stage in timings.busy]
    times_ms = [1e3 * timings.busy[stage] for stage in done]
    bars = axes.barh([STAGES[stage] for stage in done], times_ms, color=COLOURS[0])
    axes.bar_label(bars, [f"{x:.0f} ms" for x in times_ms], padding=3, fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(times_ms))
    axes.set_xlabel("time, ms", fontsize=9, color=INK)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    if timings.sound_s:
        speed = f"{timings.sound_s / timings.seconds:.1f} times as fast as real time"
        axes.set_title(f"{timings.sound_s:.1f} s of speech in {timings.seconds:.2f} s, {speed}", fontsize=10, color=INK)
    return figure


def compared_spectrograms(sounds: Mapping[str, Mapping[str, np.ndarray]], rate: int) -> Figure:
    """Mel spectrograms, a row for each sentence, a column for each of its sounds; all have the same scales.

    sounds: samples [S] float32 in -1..1 by sentence and name. rate: of all, in Hz.
    """
    pictures = {text: {name: log_mel(resampled(x, rate)) for name, x in row.items()} for text, row in sounds.items()}
    mels = [mel for row in pictures.values() for mel in row.values()]
    figure = Figure(figsize=(10, 0.5 + 2.3 * len(pictures)), dpi=110, layout="constrained")
    columns = max(len(row) for row in pictures.values())
    panels = figure.subplots(len(pictures), columns, sharey=True, squeeze=False)
    look = {"vmin": 20 * np.log10(FLOOR), "vmax": max(mel.max() for mel in mels), "cmap": "magma"}
    longest_s = max(mel.shape[1] for mel in mels) * HOP / SAMPLE_RATE
    for axes_row, (text, row) in zip(panels, pictures.items(), strict=True):
        for axes, (name, mel) in zip(axes_row, row.items(), strict=False):
            extent = (0, mel.shape[1] * HOP / SAMPLE_RATE, 0, MELS)
            axes.imshow(mel, origin="lower", aspect="auto", extent=extent, **look)
            axes.set_title(f"{name}\n{text}", fontsize=9, color=INK, fontfamily=chinese())
            axes.set_xlim(0, longest_s)
            axes.set_facecolor("black")
            axes.set_yticks([_mel_channel(1e3 * x) for x in KHZ], [f"{x:g}" for x in KHZ])
            axes.tick_params(labelsize=9)
        axes_row[0].set_ylabel("frequency, kHz", fontsize=9, color=INK)
    for axes in panels[-1]:
        axes.set_xlabel("time, s", fontsize=9, color=INK)
    return figure


def likeness_bars(cosines: Mapping[str, Mapping[str, float]], new: Mapping[str, bool]) -> Figure:
    """The likeness of every clone to its recording, and to the most similar recording of another voice.

    The clone is recognised where its bar is above the mark. cosines: by the name of the cloned voice, its clone's
    cosine with the voice of every recording. new: by that name, whether the voice is in no training. The title counts
    the recognised ones.
    """
    figure = Figure(figsize=(10, 3.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    rivals = {name: max(x for other, x in own.items() if other != name) for name, own in cosines.items()}
    counts = []
    for group, colour in (("known", KNOWN), ("new", NEW)):
        names = [name for name in cosines if new[name] == (group == "new")]
        values = [cosines[name][name] for name in names]
        axes.bar(names, values, color=colour, label=f"its own recording, {group} voices")
        right = sum(value > rivals[name] for name, value in zip(names, values, strict=True))
        counts.append(f"{right} of {len(names)} {group} voices")
    look = {"marker": "D", "color": INK, "edgecolors": "white", "s": 42, "zorder": 3}
    axes.scatter(list(rivals), list(rivals.values()), label="the most similar other recording", **look)
    axes.set_ylabel("cosine with the clone", fontsize=9, color=INK)
    axes.tick_params(labelsize=9)
    axes.tick_params(axis="x", labelrotation=20)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"Recognised: {' and '.join(counts)}", fontsize=10, color=INK)
    axes.legend(fontsize=9, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    return figure


def _mel_channel(hz: float) -> float:
    """Where a frequency is on the axis of the 80 channels."""
    return MELS * hertz_to_mel(hz, "slaney") / hertz_to_mel(SAMPLE_RATE / 2, "slaney")
