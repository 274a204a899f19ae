"""A voice in PyTorch: the networks of a checkpoint, unquantised, behind the front end of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from notebooks.sambert_hifigan.network.acoustic import load_acoustic
from notebooks.sambert_hifigan.network.vocoder import load_vocoder
from notebooks.sambert_hifigan.pipeline import Synthesizer, source_inputs
from utils.speech.speaker_encoder import resampled


class Reference:
    """The networks of a checkpoint in PyTorch, the baseline of all comparisons.

    voice: a folder with `am` and `voc`. synthesizer: of the same voice; it has the front end, settings and speakers.
    """

    def __init__(self, voice: Path, synthesizer: Synthesizer) -> None:
        self.acoustic, self.vocoder = load_acoustic(voice / "am"), load_vocoder(voice / "voc")
        self.frontend, self.config = synthesizer.frontend, synthesizer.config
        self.synthesizer = synthesizer

    @torch.inference_mode()
    def mels(self, text: str, speaker: str) -> Iterator[np.ndarray]:
        """The mel spectrogram [M, F] of every sentence of a text."""
        voice = self.synthesizer.resolve_speaker(speaker)
        for sentence in self.frontend.sentences(text):
            symbols = self.synthesizer.symbols(sentence, voice)
            inputs = self.synthesizer.encoder_inputs(symbols, voice)
            ling, emotion = torch.from_numpy(inputs["ling"]), torch.from_numpy(inputs["emotion"])  # [1, T, 4], [1, T]
            if isinstance(voice, str):
                speakers = torch.from_numpy(inputs["speaker"])  # [1, T]
            else:
                speakers = torch.from_numpy(voice).expand(1, len(symbols), -1)  # [1, T, E]
            decoded = self.acoustic(ling, emotion, speakers).decoded  # [1, F, M]
            yield self.acoustic.finish(decoded)[0].numpy()

    @torch.inference_mode()
    def vocode(self, mel: np.ndarray) -> np.ndarray:
        """Samples [S] float32 at 16 kHz of a mel spectrogram [M, F]."""
        source = []
        if self.config["sines"]:
            source = source_inputs(self.config, mel.shape[1], np.random.default_rng(0)).values()
        sound = self.vocoder(torch.from_numpy(mel)[None], *map(torch.from_numpy, source))  # [1, 1, S]
        return resampled(sound[0, 0].numpy(), self.config["sample_rate"])
