"""Trains the acoustic model on sentences of the teacher, in the voices of speaker embeddings.

B: batch, T: symbols, F: frames, N: groups of r frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from notebooks.sambert_hifigan.network.acoustic import KanTtsSAMBERT, stretch
from notebooks.sambert_hifigan.training.alignment import BASE_F0_HZ, MELS, SPAN_F0_HZ, TABLES, AlignedSentence, join
from utils.training.loop import matrices, optimise

# fmt: off
PARAMETERS = {table: len(entries) for table, entries in TABLES.items()} | {
    "SE": True, "NSF": True, "num_mels": MELS + 2, "outputs_per_step": 3, "max_len": 400,
    "embedding_dim": 128, "encoder_num_layers": 3, "encoder_num_heads": 4, "encoder_num_units": 128,
    "encoder_ffn_inner_dim": 256, "encoder_dropout": 0.1, "encoder_projection_units": 64,
    "speaker_units": 256, "emotion_units": 4, "predictor_filter_size": 21, "predictor_fsmn_num_layers": 2,
    "predictor_num_memory_units": 64, "predictor_ffn_inner_dim": 128, "predictor_dropout": 0.1,
    "predictor_shift": 0, "predictor_lstm_units": 64, "dur_pred_prenet_units": [64, 64],
    "dur_pred_lstm_units": 96, "decoder_prenet_units": [128, 128], "decoder_num_layers": 4,
    "decoder_num_heads": 4, "decoder_num_units": 128, "decoder_ffn_inner_dim": 256, "decoder_dropout": 0.1,
    "postnet_filter_size": 21, "postnet_fsmn_num_layers": 2, "postnet_num_memory_units": 128,
    "postnet_ffn_inner_dim": 256, "postnet_dropout": 0.1, "postnet_shift": 7, "postnet_lstm_units": 96,
}
# fmt: on
STEPS, LEARNING_RATE = 3000, 3e-3
BATCH = 16  # sentences of a step
JOINED_SHARE = 0.15  # of the steps, with three sentences joined to one
FRAME_NOISE = 0.2  # on the frames before, since the decoder's own frames are not exact either
CHANNEL_WEIGHTS = torch.tensor([1.0] * MELS + [8.0, 4.0])  # in the loss of frames; the pitch carries the tones


class SentenceBatches:
    """Batches of sentences of similar length. A batch is a function of the random generator that is passed in."""

    def __init__(self, sentences: Sequence[AlignedSentence], prints: Tensor, means: dict[str, Tensor]) -> None:
        """prints: the speaker embedding of every sentence, [n, 256]. means: the mean embedding [256] of every voice."""
        self.sentences, self.prints, self.means = sentences, prints, means
        self.lengths = np.array([len(sentence.mel) for sentence in sentences])

    def draw(self, count: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """A `batch` of random sentences, each with its own embedding or with the mean embedding of its voice."""
        order = np.argsort(self.lengths + rng.uniform(0, 60, len(self.lengths)))
        start = rng.integers(max(1, len(order) - count + 1))
        numbers = order[start : start + count]
        voices = [self.prints[i] if rng.random() < 0.5 else self.means[self.sentences[i].voice] for i in numbers]
        return batch([self.sentences[i] for i in numbers], torch.stack(voices))


def join_threes(sentences: Sequence[AlignedSentence], prints: Tensor) -> tuple[list[AlignedSentence], Tensor]:
    """Three sentences of a voice at a time joined to one, and their mean embeddings [n, 256].

    They teach the positions of long sentences, up to the 200th.
    """
    joined, voices = [], []
    for voice in dict.fromkeys(sentence.voice for sentence in sentences):
        numbers = [i for i, sentence in enumerate(sentences) if sentence.voice == voice]
        for start in range(0, len(numbers) - 2, 3):
            three = numbers[start : start + 3]
            joined.append(join([sentences[i] for i in three]))
            voices.append(F.normalize(prints[three].mean(0), dim=0))
    return joined, torch.stack(voices)


def batch(sentences: Sequence[AlignedSentence], voices: Tensor) -> dict[str, Tensor]:
    """Padded tensors of B sentences by field, `speaker` [B, T, 256] for voices [B, 256], and `mask` [B, T].

    The mask is True where there is a symbol.
    """
    tensors = {
        field: pad_sequence([getattr(sentence, field) for sentence in sentences], batch_first=True)
        for field in ("ling", "emotion", "frames", "pitch", "energy", "mel")
    }
    counts = torch.tensor([len(sentence.emotion) for sentence in sentences])  # [B]
    length = tensors["emotion"].shape[1]
    tensors["mask"] = torch.arange(length) < counts[:, None]  # [B, T]
    tensors["speaker"] = voices[:, None].expand(-1, length, -1)  # [B, T, 256]
    return tensors


class TeacherForcedOutput(NamedTuple):
    """The output of the acoustic model under teacher forcing."""

    decoded: Tensor  # [B, N * r, 82], before the postnet
    mel: Tensor  # [B, N * r, 82]
    frame_mask: Tensor  # [B, N * r], True where there is a frame
    log_durations: Tensor  # [B, T]
    pitch: Tensor  # [B, T]
    energy: Tensor  # [B, T]


def teacher_forced(network: KanTtsSAMBERT, inputs: dict[str, Tensor], noise: float = 0.0) -> TeacherForcedOutput:
    """Run the acoustic model on a `batch` with true durations, pitch, energy and frames.

    noise: standard deviation of noise on the true frames.
    """
    mask, frames, adaptor = inputs["mask"], inputs["frames"], network.variance_adaptor

    # embeddings with pitch and energy
    text, speaker, emotion = network.encode(
        inputs["ling"], inputs["emotion"], inputs["speaker"], mask
    )  # [B, T, C] each
    targets = inputs["pitch"], inputs["energy"]  # [B, T] each
    adapted, condition, pitch, energy = adaptor(text, speaker, emotion, mask, targets)

    # durations
    log_durations = adaptor.duration_predictor.teacher_forced(condition, (frames + 1.0).log())  # [B, T]

    # memory
    token, place = stretch(frames, network.r)  # [B, N * r] each
    memory, _ = network.build_memory(adapted, speaker, emotion, token, place)  # [B, N, C]
    frame_mask = place > 0  # [B, N * r]

    # frames
    previous = F.pad(inputs["mel"], (0, 0, 0, place.shape[1] - inputs["mel"].shape[1]))  # [B, N * r, 82]
    previous = previous + noise * torch.randn_like(previous)
    band = int(frames[0].max() / network.r + 0.5)  # of one sentence, so that bands of all widths occur
    decoded = network.decoder.teacher_forced(memory, previous, band, frame_mask[:, :: network.r])  # [B, N * r, 82]
    decoded = decoded * frame_mask[..., None]
    mel = decoded + network.mel_postnet(decoded, frame_mask)  # [B, N * r, 82]
    return TeacherForcedOutput(decoded, mel, frame_mask, log_durations, pitch, energy)


def train_acoustic(work: Path, network: KanTtsSAMBERT, sentences: SentenceBatches, joined: SentenceBatches) -> None:
    """Train the acoustic model on sentences and on those of `join_threes`. work: folder of the training state."""

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        # dropout and noise are a function of the step, so that a resumed run draws the same
        torch.manual_seed(int(rng.integers(2**31)))

        # draw a batch
        inputs = joined.draw(BATCH // 3, rng) if rng.random() < JOINED_SHARE else sentences.draw(BATCH, rng)

        # forward pass
        output = teacher_forced(network, inputs, FRAME_NOISE)

        # losses
        mask, frame_mask = inputs["mask"], output.frame_mask  # [B, T], [B, N * r]
        target = F.pad(inputs["mel"], (0, 0, 0, frame_mask.shape[1] - inputs["mel"].shape[1]))  # [B, N * r, 82]
        losses = {
            "coarse": frame_loss(output.decoded, target, frame_mask),
            "mel": frame_loss(output.mel, target, frame_mask),
            "duration": F.mse_loss(output.log_durations[mask], (inputs["frames"] + 1.0).log()[mask]),
            "pitch": F.mse_loss(output.pitch[mask], inputs["pitch"][mask]),
            "energy": F.mse_loss(output.energy[mask], inputs["energy"][mask]),
        }
        return {"loss": sum(losses.values())} | losses

    optimise(work / "acoustic.pt", network, loss, steps=STEPS, rate=LEARNING_RATE, muon=hidden_matrices(network))


def hidden_matrices(network: KanTtsSAMBERT) -> list[nn.Parameter]:
    """The matrices for Muon. Those that read or write frames are left to AdamW, as is an LSTM over frames."""
    adaptor, postnet = network.variance_adaptor, network.mel_postnet
    predictors = adaptor.pitch_predictor, adaptor.energy_predictor, adaptor.duration_predictor
    return matrices(network.text_encoder.ling_enc, *predictors, network.decoder.pnca, postnet.fsmn)


def frame_loss(frames: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Mean absolute difference of frames [B, F, 82], with CHANNEL_WEIGHTS. mask: [B, F]."""
    return ((frames - target).abs()[mask] * CHANNEL_WEIGHTS).mean()


@torch.no_grad()
def predict_mels(
    network: KanTtsSAMBERT, sentences: Sequence[AlignedSentence], means: dict[str, Tensor]
) -> list[Tensor]:
    """Mel spectrograms [F, 80] of the sentences by the acoustic model under teacher forcing."""
    mels = []
    for sentence in tqdm(sentences, desc="predicted", mininterval=5):
        output = teacher_forced(network, batch([sentence], means[sentence.voice][None]))
        mels.append(output.mel[0, : len(sentence.mel), :MELS].clone())
    return mels


def new_acoustic() -> KanTtsSAMBERT:
    """The acoustic model with random weights."""
    network = KanTtsSAMBERT({"Model": {"KanTtsSAMBERT": {"params": PARAMETERS}}})
    network.f0 = BASE_F0_HZ, SPAN_F0_HZ
    return network
