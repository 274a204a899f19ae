"""A voice in PyTorch: the networks of a checkpoint, unquantised, behind the front end of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from notebooks.sambert_hifigan.data import Trial
from notebooks.sambert_hifigan.network.acoustic import load_acoustic
from notebooks.sambert_hifigan.network.vocoder import load_vocoder
from notebooks.sambert_hifigan.pipeline import SPEAKERS, Synthesizer, read_embedding, source_inputs
from utils.speech.speaker_encoder import resampled


class Reference:
    """The unquantised networks of a checkpoint in PyTorch: what all values are held against.

    voice: a folder with `am` and `voc`. synthesizer: of the same voice; it gives front end, settings and speakers.
    """

    def __init__(self, voice: Path, synthesizer: Synthesizer) -> None:
        self.acoustic, self.vocoder = load_acoustic(voice / "am"), load_vocoder(voice / "voc")
        self.frontend, self.config = synthesizer.frontend, synthesizer.config
        self._speakers = synthesizer.folder / SPEAKERS

    @torch.inference_mode()
    def mels(self, trial: Trial) -> Iterator[np.ndarray]:
        """What the vocoder is given, [M, F] for every sentence of a trial."""
        for sentence in self.frontend.sentences(trial.text):
            named = trial.speaker if not self.config["embedding"] else self.frontend.speakers[0]
            ids = self.frontend.ids(self.frontend.symbols(sentence, named))
            ling = torch.tensor([ids[stream] for stream in ("sy", "tone", "syllable_flag", "word_segment")]).T[None]
            speaker = torch.tensor([ids["speaker"]])
            if size := self.config["embedding"]:
                found = read_embedding(self._speakers / f"{trial.speaker}.npy", size)
                speaker = torch.from_numpy(found).expand(1, ling.shape[1], -1)
            decoded = self.acoustic(ling, torch.tensor([ids["emotion"]]), speaker).decoded
            yield self.acoustic.finish(decoded)[0].numpy()

    @torch.inference_mode()
    def vocode(self, mel: np.ndarray) -> np.ndarray:
        source = []
        if self.config["sines"]:
            source = source_inputs(self.config, mel.shape[1], np.random.default_rng(0)).values()
        sound = self.vocoder(torch.from_numpy(mel)[None], *map(torch.from_numpy, source))
        return resampled(sound[0, 0].numpy(), self.config["sample_rate"])
