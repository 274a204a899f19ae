"""SAMBERT, the acoustic model of KAN-TTS, in PyTorch, with the key names of the released checkpoints.

A self-attention encoder embeds phonemes with their tones. A variance adaptor predicts pitch and energy of every phoneme
and adds their embeddings; an LSTM predicts the durations. The phonemes are repeated for their frames, and groups of
three frames form the memory of an autoregressive decoder, which generates a group at a time. A postnet refines the mel
spectrogram. Predictors and postnet are FSMNs, feedforward sequential memory networks (Zhang et al.,
"Deep-FSMN for Large Vocabulary Continuous Speech Recognition", ICASSP 2018).

`config.yaml` in the folder of a checkpoint gives the kind of the voice: plain, NSF (with two more channels, pitch and
voicing, for a vocoder with a source of sines) or SE (with a speaker embedding in place of a table of speakers).

B: batch, T: phonemes, F: frames, N: groups of r frames, M: mel channels (with NSF, pitch and voicing included), C:
channels of the concatenated embeddings, D: width of the decoder, L: blocks of the decoder. Sizes in comments are those
of the released checkpoints.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from notebooks.sambert_hifigan.network.checkpoint import check, parameters, read_config, read_tensors, save
from notebooks.sambert_hifigan.network.decoder import MelDecoder
from notebooks.sambert_hifigan.network.layers import (
    EPS,
    FSMN,
    DurationPositions,
    FeedForward,
    PositionEncoder,
    Prenet,
    SelfAttention,
    rows,
)

TABLES = {  # table of symbols in config.yaml: the embedding with a row for each symbol
    "sy": "text_encoder.sy_emb.weight",
    "tone": "text_encoder.tone_emb.weight",
    "syllable_flag": "text_encoder.syllable_flag_emb.weight",
    "word_segment": "text_encoder.ws_emb.weight",
    "emotion": "emo_tokenizer.weight",
    "speaker": "spk_tokenizer.weight",
}
POSITIONS = "text_encoder.ling_enc.position_enc.position_enc"
FORMULAS = (POSITIONS, "variance_adaptor.dur_position_encoder.inv_timescales")  # computed, not learned
MIN_VOICING = 0.6  # a frame with less voicing is unvoiced
MIN_F0_HZ = 30.0


class TextEncoder(nn.Module):
    """Encodes phonemes with their tones and their places in syllable and word."""

    def __init__(self, params: dict) -> None:
        super().__init__()
        inputs, width = params["embedding_dim"], params["encoder_num_units"]
        heads, dropout = params["encoder_num_heads"], params["encoder_dropout"]
        self.scale = math.sqrt(width)
        self.sy_emb, self.tone_emb, self.syllable_flag_emb, self.ws_emb = (
            nn.Embedding(params[table], inputs) for table in ("sy", "tone", "syllable_flag", "word_segment")
        )
        blocks = []
        for layer in range(params["encoder_num_layers"]):
            attention = SelfAttention(width if layer else inputs, width, heads, dropout)
            feed_forward = FeedForward(width, params["encoder_ffn_inner_dim"], 3, dropout)
            blocks.append(nn.ModuleDict({"slf_attn": attention, "pos_ffn": feed_forward}))
        self.ling_enc = nn.ModuleDict(
            {
                "position_enc": PositionEncoder(params["max_len"], inputs),
                "fft": nn.ModuleList(blocks),
                "ln": nn.LayerNorm(width, eps=EPS),
            }
        )
        self.ling_proj = nn.Linear(width, params["encoder_projection_units"], bias=False)

    def forward(self, ling: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, T, 32] for ling [B, T, 4] int64: rows of the tables sy, tone, syllable_flag and word_segment."""
        tables = self.sy_emb, self.tone_emb, self.syllable_flag_emb, self.ws_emb
        x = sum(table(ling[..., i]) for i, table in enumerate(tables))  # [B, T, 512]
        x = self.ling_enc["position_enc"](x * self.scale)  # [B, T, 512]
        for block in self.ling_enc["fft"]:
            x = block["slf_attn"](x, mask)  # [B, T, 128]
            x = block["pos_ffn"](x, mask)  # [B, T, 128]
        return self.ling_proj(self.ling_enc["ln"](x))  # [B, T, 32]


class VariancePredictor(nn.Module):
    """Predicts one number for every phoneme: its pitch or its energy."""

    def __init__(self, inputs: int, params: dict) -> None:
        super().__init__()
        width, units = params["predictor_num_memory_units"], params["predictor_lstm_units"]
        sizes = params["predictor_fsmn_num_layers"], params["predictor_filter_size"], params["predictor_shift"]
        self.fsmn = FSMN(inputs, params["predictor_ffn_inner_dim"], width, *sizes, params["predictor_dropout"])
        self.blstm = nn.LSTM(width, units, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * units, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, T] for x [B, T, C]; mask [B, T]: True where there is a phoneme, None for everywhere."""
        x = self.fsmn(x, mask)  # [B, T, 128]
        if mask is None:
            x, _ = self.blstm(x)  # [B, T, 2 * 128]
            return self.fc(x)[..., 0]  # [B, T]
        packed = pack_padded_sequence(x, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        packed, _ = self.blstm(packed)
        x, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])  # [B, T, 2 * 128]
        return self.fc(x)[..., 0] * mask  # [B, T]


class DurationPredictor(nn.Module):
    """Predicts the duration of every phoneme from the duration of the one before: an autoregressive LSTM."""

    def __init__(self, inputs: int, params: dict) -> None:
        super().__init__()
        units, prenet = params["dur_pred_lstm_units"], params["dur_pred_prenet_units"]
        self.prenet = Prenet(1, prenet)
        self.lstm = nn.LSTM(prenet[-1] + inputs, units, num_layers=2, batch_first=True)
        self.fc = nn.Linear(units, 1)

    def forward(self, previous: Tensor, condition: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-durations [B, T] and the next h and c, for T phonemes: one in inference, all of them in training.

        previous: [B, T], log-durations of the phonemes before, 0 before the first. condition: [B, T, C], rows of the
        condition of `VarianceAdaptor`. h, c: [2, B, 128], the state of the LSTM, zeros before the first phoneme.
        """
        x = self.prenet(previous[..., None])  # [B, T, 128]
        x = torch.cat([x, condition], -1)  # [B, T, 128 + C]
        x, (h, c) = self.lstm(x, (h, c))  # [B, T, 128]
        return F.relu(self.fc(x)[..., 0]), h, c

    def start(self, batch: int) -> tuple[Tensor, Tensor]:
        """h and c before the first phoneme, [2, B, 128] each."""
        zeros = self.fc.weight.new_zeros(2, batch, self.lstm.hidden_size)
        return zeros, zeros

    def infer(self, condition: Tensor) -> Tensor:
        """Log-durations [B, T], predicted one phoneme at a time."""
        batch, length = condition.shape[:2]
        state = self.start(batch)
        steps = [condition.new_zeros(batch, 1)]
        for i in range(length):
            log_duration, *state = self(steps[-1], condition[:, i : i + 1], *state)  # [B, 1]
            steps.append(log_duration)
        return torch.cat(steps[1:], 1)  # [B, T]

    def teacher_forced(self, condition: Tensor, log_durations: Tensor) -> Tensor:
        """Log-durations [B, T], predicted from the true ones [B, T] of the phonemes before."""
        previous = F.pad(log_durations[:, :-1], (1, 0))  # [B, T]
        return self(previous, condition, *self.start(len(condition)))[0]


class VarianceAdaptor(nn.Module):
    """Predicts pitch and energy of every phoneme and adds their embeddings. Holds the predictor of durations, too."""

    def __init__(self, params: dict) -> None:
        super().__init__()
        width = params["encoder_projection_units"]
        inputs = width + params["speaker_units"] + params["emotion_units"]
        self.pitch_predictor = VariancePredictor(inputs, params)
        self.energy_predictor = VariancePredictor(inputs, params)
        self.duration_predictor = DurationPredictor(inputs, params)
        self.dur_position_encoder = DurationPositions(width)
        self.pitch_emb = nn.Conv1d(1, width, 9, padding=4)
        self.energy_emb = nn.Conv1d(1, width, 9, padding=4)

    def forward(
        self,
        text: Tensor,
        speaker: Tensor,
        emotion: Tensor,
        mask: Tensor | None = None,
        targets: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Text with pitch and energy [B, T, 32], the condition of the durations [B, T, C], pitch [B, T], energy [B, T].

        text, speaker, emotion: of `KanTtsSAMBERT.encode`. targets: in training the true pitch and energy, [B, T] each
        and 0 on padding; their embeddings are added in place of those of the predictions.
        """
        x = torch.cat([text, speaker, emotion], -1)  # [B, T, C]
        predictions = self.pitch_predictor(x, mask), self.energy_predictor(x, mask)  # [B, T] each
        pitch, energy = predictions if targets is None else targets
        embedding = self.pitch_emb(pitch[:, None]) + self.energy_emb(energy[:, None])  # [B, 32, T]
        text = text + embedding.transpose(1, 2)  # [B, T, 32]
        condition = torch.cat([text, speaker, emotion], -1)  # [B, T, C]
        return text, condition, *predictions


class PostNet(nn.Module):
    """Predicts a correction of the decoded frames."""

    def __init__(self, params: dict) -> None:
        super().__init__()
        mels, width, units = params["num_mels"], params["postnet_num_memory_units"], params["postnet_lstm_units"]
        sizes = params["postnet_fsmn_num_layers"], params["postnet_filter_size"], params["postnet_shift"]
        self.fsmn = FSMN(mels, params["postnet_ffn_inner_dim"], width, *sizes, params["postnet_dropout"])
        self.lstm = nn.LSTM(width, units, batch_first=True)
        self.fc = nn.Linear(units, mels)

    def forward(self, mel: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, F, M] for mel [B, F, M]; mask [B, F]: True where there is a frame, None for everywhere."""
        x = self.fsmn(mel, mask)  # [B, F, 256]
        x, _ = self.lstm(x)  # [B, F, 128]
        return self.fc(x)  # [B, F, M]


class AcousticOutput(NamedTuple):
    """The output of `KanTtsSAMBERT` for a sentence of T phonemes and F frames."""

    mel: Tensor  # [1, F, M]
    decoded: Tensor  # [1, F, M], before the postnet
    log_durations: Tensor  # [1, T], log(frames + 1)
    pitch: Tensor  # [1, T]
    energy: Tensor  # [1, T]
    frames: Tensor  # [1, T] int64
    band: int  # groups that the decoder attends to on either side


class KanTtsSAMBERT(nn.Module):
    """The acoustic model that a voice's config.yaml describes. Weights are random until loaded.

    config: its content; Model / KanTtsSAMBERT / params also has the sizes of TABLES (`load_acoustic` takes those from
    the checkpoint). Raises ValueError for a missing setting.

    The sub-models can be traced for any batch and length. Each is a module or a method (`layers.Part`): `encode`,
    `variance_adaptor`, `variance_adaptor.duration_predictor` (a step), `build_memory`, `decoder` (a step), `finish`.
    `frames_of`, `band_of` and `stretch` are computed between them, and `forward` runs them all. In training, masks
    (bool [B, T], True where there is a phoneme) separate phonemes from padding.
    """

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.config = config
        params = parameters(config, "KanTtsSAMBERT")
        try:
            self.r, self.nsf = params["outputs_per_step"], params.get("NSF", False)
            self.text_encoder = TextEncoder(params)
            if not params.get("SE", False):
                self.spk_tokenizer = nn.Embedding(params["speaker"], params["speaker_units"])
            self.emo_tokenizer = nn.Embedding(params["emotion"], params["emotion_units"])
            self.variance_adaptor = VarianceAdaptor(params)
            self.mel_decoder = nn.ModuleDict({"mel_dec": MelDecoder(params)})
            self.mel_postnet = PostNet(params)
        except KeyError as error:
            raise ValueError(f"The configuration of KanTtsSAMBERT has no {error.args[0]!r}.") from error
        lowest, highest = params.get("nsf_f0_global_minimum", 30.0), params.get("nsf_f0_global_maximum", 730.0)
        self.f0 = (lowest, highest - lowest)  # NSF: pitch in Hz = first + second * channel

    @property
    def decoder(self) -> MelDecoder:
        return self.mel_decoder["mel_dec"]

    def encode(
        self, ling: Tensor, emotion: Tensor, speaker: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings of text [B, T, 32], speaker [B, T, 32] and emotion [B, T, 32].

        ling: [B, T, 4] int64, see `TextEncoder`; emotion, speaker: [B, T] int64, rows of their tables. With SE, speaker
        is an embedding [B, T, 192] for each phoneme and is returned unchanged.
        """
        if hasattr(self, "spk_tokenizer"):
            speaker = self.spk_tokenizer(speaker)
        return self.text_encoder(ling, mask), speaker, self.emo_tokenizer(emotion)

    def build_memory(
        self, text: Tensor, speaker: Tensor, emotion: Tensor, token: Tensor, place: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The memory of the decoder [B, N, 3 * 32 + 32 + 32], and its `keys_and_values` [L, B, N, 2D].

        text: of `variance_adaptor`; speaker, emotion: of `encode`. token, place: [B, N * r] int64, see `stretch`.
        """
        text = torch.where((place > 0)[..., None], rows(text, token), 0.0)  # [B, N * r, 32], 0 for padding
        text = text + self.variance_adaptor.dur_position_encoder(place)  # [B, N * r, 32]
        text = text.unflatten(1, (-1, self.r)).flatten(2)  # [B, N, r * 32]
        first = token[:, :: self.r]  # [B, N], the phoneme of the first frame of every group
        memory = torch.cat([text, rows(speaker, first), rows(emotion, first)], -1)  # [B, N, r * 32 + 32 + 32]
        return memory, self.decoder.keys_and_values(memory)

    def finish(self, mel: Tensor) -> Tensor:
        """The mel spectrogram for the vocoder, [B, M, F], from decoded frames [B, F, M] without padding."""
        mel = mel + self.mel_postnet(mel)  # [B, F, M]
        if self.nsf:
            mel = self.in_hertz(mel)
        return mel.transpose(1, 2)  # [B, M, F]

    def in_hertz(self, mel: Tensor) -> Tensor:
        """NSF's frames [B, F, M] with the pitch (last channel but one) in Hz and the voicing (the last) 0 or 1."""
        mel, pitch, voicing = mel.split([mel.shape[-1] - 2, 1, 1], -1)  # [B, F, M - 2], [B, F, 1], [B, F, 1]
        base, span = self.f0
        return torch.cat([mel, (pitch * span + base).clamp_min(MIN_F0_HZ), (voicing >= MIN_VOICING).to(mel)], -1)

    def forward(self, ling: Tensor, emotion: Tensor, speaker: Tensor) -> AcousticOutput:
        """Inference for one sentence; the inputs are those of `encode` with B = 1."""
        self.text_encoder.ling_enc["position_enc"].grow(ling.shape[1])

        # embeddings with pitch and energy
        text, speaker, emotion = self.encode(ling, emotion, speaker)  # [1, T, 32] each; speaker 192 with SE
        text, condition, pitch, energy = self.variance_adaptor(text, speaker, emotion)

        # durations
        log_durations = self.variance_adaptor.duration_predictor.infer(condition)  # [1, T]
        frames, band = frames_of(log_durations), band_of(log_durations, self.r)

        # frames
        token, place = stretch(frames, self.r)  # [1, N * r] each
        memory, _ = self.build_memory(text, speaker, emotion, token, place)
        decoded = self.decoder.infer(memory, band)[:, : int(frames.sum())]  # [1, F, M]
        mel = decoded + self.mel_postnet(decoded)  # [1, F, M]
        return AcousticOutput(mel, decoded, log_durations, pitch, energy, frames, band)


def frames_of(log_durations: Tensor) -> Tensor:
    """Durations rounded to whole frames, int64."""
    return (log_durations.exp() - 1 + 0.5).long()


def band_of(log_durations: Tensor, r: int) -> int:
    """The number of groups of r frames that the decoder attends to on either side: that of the longest phoneme."""
    return int((log_durations.exp() - 1).max() / r + 0.5)


def stretch(frames: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """For every frame the number of its phoneme, and its place in that phoneme, counted from 1.

    frames: [B, T] int64, the number of frames of every phoneme. Returns two tensors [B, N * r] int64, where N * r is
    the longest sum of frames, rounded up to a multiple of r. Padding has 0 in both.
    """
    ends = frames.cumsum(1)  # [B, T]
    groups = math.ceil(int(ends[:, -1].max()) / r)
    index = torch.arange(groups * r).to(frames).expand(len(frames), -1).contiguous()  # [B, N * r]
    token = torch.searchsorted(ends, index, right=True)  # [B, N * r], T for padding
    valid = token < frames.shape[1]
    token = token * valid
    starts = (ends - frames).gather(1, token)  # [B, N * r], the first frame of each phoneme
    return token, (index - starts + 1) * valid


def load_acoustic(folder: str | Path) -> KanTtsSAMBERT:
    """The acoustic model of a voice's `am` folder, ready for inference.

    folder: config.yaml, ckpt/checkpoint_N.pth (the largest N) or model.safetensors, and for NSF with nsf_norm_type
    mean_std the pitch's mean and standard deviation in mvn.npy. The sizes of the tables are those of the checkpoint's
    embeddings. Raises ValueError when a file is missing or damaged, or does not hold
    the tensors of the network; the message lists missing and unknown names, and other shapes.
    """
    config = read_config(folder)
    params = parameters(config, "KanTtsSAMBERT")
    tensors, source = read_tensors(folder, "model")
    params |= {table: tensors[key].shape[0] for table, key in TABLES.items() if key in tensors}
    if POSITIONS in tensors:
        params["max_len"] = tensors[POSITIONS].shape[1]
    network = KanTtsSAMBERT(config | {"Model": {"KanTtsSAMBERT": {"params": params}}})
    check({key: x.shape for key, x in network.state_dict().items()}, tensors, source, FORMULAS)
    network.load_state_dict(tensors, strict=False)
    if network.nsf and params.get("nsf_norm_type", "mean_std") == "mean_std":
        network.f0 = _mean_and_deviation(Path(folder) / "mvn.npy")
    return network.eval()


def save_acoustic(folder: str | Path, network: KanTtsSAMBERT) -> Path:
    """Write the network as FP16 model.safetensors and config.yaml, as `load_acoustic` reads them; returns the folder.

    The scale of the pitch (NSF) is stored as nsf_norm_type global, which needs no file of its own. Raises ValueError,
    and changes nothing, for a weight that is not finite in FP16.
    """
    base, span = network.f0
    scaling = {"nsf_norm_type": "global", "nsf_f0_global_minimum": base, "nsf_f0_global_maximum": base + span}
    params = parameters(network.config, "KanTtsSAMBERT") | (scaling if network.nsf else {})
    tensors = {key: x for key, x in network.state_dict().items() if key not in FORMULAS}
    return save(folder, network.config | {"Model": {"KanTtsSAMBERT": {"params": params}}}, tensors)


def _mean_and_deviation(path: Path) -> tuple[float, float]:
    try:
        values = np.load(path, allow_pickle=False).astype(np.float64).ravel()
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}). It has the pitch's mean and standard deviation.") from error
    if values.shape != (2,) or not np.isfinite(values).all():
        raise ValueError(f"{path} must hold two finite numbers, the pitch's mean and standard deviation.")
    return float(values[0]), float(values[1])
