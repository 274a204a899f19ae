"""SAMBERT, the acoustic model of KAN-TTS, in PyTorch, with the key names of the released checkpoints.

Text to mel spectrogram. A self-attention encoder reads phones with their tones; predictors of pitch and energy add
theirs to every phone, an LSTM says how long each lasts; the phones are stretched to frames, of which three make a
group; a decoder makes them group by group, and a postnet refines them. Predictors and postnet are FSMNs, feedforward
sequential memory networks (Zhang et al., "Deep-FSMN for Large Vocabulary Continuous Speech Recognition", ICASSP 2018).

A voice is built from the `config.yaml` beside its checkpoint: plain, NSF (two channels more, pitch and voicing, for a
vocoder with a sine source) or SE (a speaker's embedding in place of a name). B: batch, T: phones, F: frames, N: groups
of r frames, M: mel channels, D: width of the decoder, L: its blocks. The sizes in comments are the released ones.
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

TABLES = {  # what config.yaml calls a table of symbols: the embedding that has a row for each
    "sy": "text_encoder.sy_emb.weight",
    "tone": "text_encoder.tone_emb.weight",
    "syllable_flag": "text_encoder.syllable_flag_emb.weight",
    "word_segment": "text_encoder.ws_emb.weight",
    "emotion": "emo_tokenizer.weight",
    "speaker": "spk_tokenizer.weight",
}
POSITIONS = "text_encoder.ling_enc.position_enc.position_enc"
FORMULAS = (POSITIONS, "variance_adaptor.dur_position_encoder.inv_timescales")  # known without a checkpoint
UNVOICED, LOWEST_F0 = 0.6, 30.0  # below this the voicing is none; Hz


class TextEncoder(nn.Module):
    """Phones, tones, syllable and word boundaries to what is said at every phone."""

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
        x = sum(table(ling[..., i]) for i, table in enumerate(tables))
        x = self.ling_enc["position_enc"](x * self.scale)
        for block in self.ling_enc["fft"]:
            x = block["pos_ffn"](block["slf_attn"](x, mask), mask)
        return self.ling_proj(self.ling_enc["ln"](x))


class VariancePredictor(nn.Module):
    """One number for every phone: its pitch, or its energy."""

    def __init__(self, inputs: int, params: dict) -> None:
        super().__init__()
        width, units = params["predictor_num_memory_units"], params["predictor_lstm_units"]
        sizes = params["predictor_fsmn_num_layers"], params["predictor_filter_size"], params["predictor_shift"]
        self.fsmn = FSMN(inputs, params["predictor_ffn_inner_dim"], width, *sizes, params["predictor_dropout"])
        self.blstm = nn.LSTM(width, units, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * units, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, T] for x [B, T, C]."""
        x = self.fsmn(x, mask)
        if mask is None:
            return self.fc(self.blstm(x)[0])[..., 0]
        packed = pack_padded_sequence(x, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.blstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.fc(x)[..., 0] * mask


class DurationPredictor(nn.Module):
    """How long every phone lasts, told what the one before it lasts."""

    def __init__(self, inputs: int, params: dict) -> None:
        super().__init__()
        units, prenet = params["dur_pred_lstm_units"], params["dur_pred_prenet_units"]
        self.prenet = Prenet(1, prenet)
        self.lstm = nn.LSTM(prenet[-1] + inputs, units, num_layers=2, batch_first=True)
        self.fc = nn.Linear(units, 1)

    def forward(self, previous: Tensor, condition: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-durations [B, T] and the next h and c, for T phones: one, or in training all of them.

        previous: [B, T], log-durations of the phones before, 0 before the first. condition: [B, T, C], the phones' rows
        of `VarianceAdaptor`'s. h, c: [2, B, 128], the LSTM's state, zeros before the first phone.
        """
        x = torch.cat([self.prenet(previous[..., None]), condition], -1)
        x, (h, c) = self.lstm(x, (h, c))
        return F.relu(self.fc(x)[..., 0]), h, c

    def start(self, batch: int) -> tuple[Tensor, Tensor]:
        """h and c before the first phone."""
        zeros = self.fc.weight.new_zeros(2, batch, self.lstm.hidden_size)
        return zeros, zeros

    def infer(self, condition: Tensor) -> Tensor:
        """Log-durations [B, T], phone after phone."""
        batch, length = condition.shape[:2]
        state, made = self.start(batch), [condition.new_zeros(batch, 1)]
        for i in range(length):
            last, *state = self(made[-1], condition[:, i : i + 1], *state)
            made.append(last)
        return torch.cat(made[1:], 1)

    def teach(self, condition: Tensor, log_durations: Tensor) -> Tensor:
        """Log-durations [B, T], told the true ones [B, T] of the phones before."""
        return self(F.pad(log_durations[:, :-1], (1, 0)), condition, *self.start(len(condition)))[0]


class VarianceAdaptor(nn.Module):
    """Gives every phone a pitch and an energy; holds the predictor of durations too."""

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
        """Text with pitch and energy [B, T, 32], the durations' condition [B, T, C], pitch [B, T] and energy [B, T].

        text, speaker, emotion: of `KanTtsSAMBERT.encode`. targets: in training the true pitch and energy, [B, T] each
        and 0 on padding, that are added in place of the predicted ones.
        """
        x = torch.cat([text, speaker, emotion], -1)
        predicted = self.pitch_predictor(x, mask), self.energy_predictor(x, mask)
        pitch, energy = predicted if targets is None else targets
        text = text + (self.pitch_emb(pitch[:, None]) + self.energy_emb(energy[:, None])).transpose(1, 2)
        return text, torch.cat([text, speaker, emotion], -1), *predicted


class PostNet(nn.Module):
    """What is to be added to the decoder's frames."""

    def __init__(self, params: dict) -> None:
        super().__init__()
        mels, width, units = params["num_mels"], params["postnet_num_memory_units"], params["postnet_lstm_units"]
        sizes = params["postnet_fsmn_num_layers"], params["postnet_filter_size"], params["postnet_shift"]
        self.fsmn = FSMN(mels, params["postnet_ffn_inner_dim"], width, *sizes, params["postnet_dropout"])
        self.lstm = nn.LSTM(width, units, batch_first=True)
        self.fc = nn.Linear(units, mels)

    def forward(self, mel: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, F, M] for mel [B, F, M]; mask [B, F]: True where there is a frame, None for everywhere."""
        return self.fc(self.lstm(self.fsmn(mel, mask))[0])


class Spoken(NamedTuple):
    """What `KanTtsSAMBERT` makes of a sentence of T phones and F frames."""

    mel: Tensor  # [1, F, M]
    decoded: Tensor  # [1, F, M], before the postnet
    log_durations: Tensor  # [1, T], log(frames + 1)
    pitch: Tensor  # [1, T]
    energy: Tensor  # [1, T]
    frames: Tensor  # [1, T] int64
    band: int  # groups that the decoder looks back, and ahead


class KanTtsSAMBERT(nn.Module):
    """The acoustic model that a voice's config.yaml describes. Weights are random until loaded.

    config: its content; Model / KanTtsSAMBERT / params also gives the sizes of TABLES (`load_acoustic` takes those from
    the checkpoint). Raises ValueError when a setting is missing.

    The sub-models, each a module or a method (`layers.Part`) that can be traced, for any batch and length:
    `encode`, `variance_adaptor`, `variance_adaptor.duration_predictor` (a step), `remember`, `decoder` (a step),
    `finish`. Between them: `frames_of` and `band_of` the durations, and `stretch`. `forward` puts them together.
    In training, masks (bool [B, T], True where there is a phone) tell phones from padding.
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
        self.f0 = (lowest, highest - lowest)  # NSF: pitch in Hz is the first plus the second times the channel's value

    @property
    def decoder(self) -> MelDecoder:
        return self.mel_decoder["mel_dec"]

    def encode(
        self, ling: Tensor, emotion: Tensor, speaker: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings of text [B, T, 32], speaker [B, T, 32] and emotion [B, T, 32].

        ling: [B, T, 4] int64, see `TextEncoder`; emotion, speaker: [B, T] int64, rows of their tables. With SE, speaker
        is an embedding [B, T, 192] for each phone and comes back as it is.
        """
        if hasattr(self, "spk_tokenizer"):
            speaker = self.spk_tokenizer(speaker)
        return self.text_encoder(ling, mask), speaker, self.emo_tokenizer(emotion)

    def remember(
        self, text: Tensor, speaker: Tensor, emotion: Tensor, token: Tensor, place: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The decoder's memory [B, N, C], and its `keys_and_values` [L, B, N, 2D].

        text: of `variance_adaptor`; speaker, emotion: of `encode`. token, place: [B, N * r] int64, see `stretch`.
        """
        text = rows(text, token) * (place > 0)[..., None] + self.variance_adaptor.dur_position_encoder(place)
        first = token[:, :: self.r]  # groups begin with a frame, unless they are padding altogether
        memory = torch.cat([text.unflatten(1, (-1, self.r)).flatten(2), rows(speaker, first), rows(emotion, first)], -1)
        return memory, self.decoder.keys_and_values(memory)

    def finish(self, mel: Tensor) -> Tensor:
        """What the vocoder takes, [B, M, F], of the decoder's frames [B, F, M]; F: without padding."""
        mel = mel + self.mel_postnet(mel)
        return (self.in_hertz(mel) if self.nsf else mel).transpose(1, 2)

    def in_hertz(self, mel: Tensor) -> Tensor:
        """NSF's frames [B, F, M] with the pitch (last channel but one) in Hz and the voicing (the last) 0 or 1."""
        mel, pitch, voicing = mel.split([mel.shape[-1] - 2, 1, 1], -1)
        base, span = self.f0
        return torch.cat([mel, (pitch * span + base).clamp_min(LOWEST_F0), (voicing >= UNVOICED).to(mel)], -1)

    def forward(self, ling: Tensor, emotion: Tensor, speaker: Tensor) -> Spoken:
        """One sentence, its phones as in `encode` with B = 1."""
        self.text_encoder.ling_enc["position_enc"].grow(ling.shape[1])
        text, speaker, emotion = self.encode(ling, emotion, speaker)
        text, condition, pitch, energy = self.variance_adaptor(text, speaker, emotion)
        log_durations = self.variance_adaptor.duration_predictor.infer(condition)
        frames, band = frames_of(log_durations), band_of(log_durations, self.r)
        memory, _ = self.remember(text, speaker, emotion, *stretch(frames, self.r))
        decoded = self.decoder.infer(memory, band)[:, : int(frames.sum())]
        return Spoken(decoded + self.mel_postnet(decoded), decoded, log_durations, pitch, energy, frames, band)


def frames_of(log_durations: Tensor) -> Tensor:
    """Durations rounded to frames, int64."""
    return (log_durations.exp() - 1 + 0.5).long()


def band_of(log_durations: Tensor, r: int) -> int:
    """How many groups of r frames the decoder looks back and ahead: those of the longest phone."""
    return int((log_durations.exp() - 1).max() / r + 0.5)


def stretch(frames: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """For every frame its phone and its place in it, from 1; both [B, F] int64, and 0 for padding.

    frames: [B, T] int64, how many every phone has. F is the longest sum, rounded up to a multiple of r.
    """
    ends = frames.cumsum(1)
    index = torch.arange(-(-int(ends[:, -1].max()) // r) * r).to(frames).expand(len(frames), -1).contiguous()
    token = torch.searchsorted(ends, index, right=True)
    there = token < frames.shape[1]
    token = token * there
    return token, (index - (ends - frames).gather(1, token) + 1) * there


def load_acoustic(folder: str | Path) -> KanTtsSAMBERT:
    """The acoustic model of a voice's `am` folder, ready for inference.

    folder: config.yaml, ckpt/checkpoint_N.pth (the largest N) or model.safetensors, and for NSF with nsf_norm_type
    mean_std the pitch's mean and standard deviation in mvn.npy. The sizes of the tables are those of the checkpoint's
    embeddings. Raises ValueError when a file is missing or damaged, or holds other tensors than the network has: names
    that are missing or too many, and shapes that differ, are listed.
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

    What NSF scales its pitch by is stored as nsf_norm_type global, which needs no file of its own. Raises ValueError,
    and changes nothing, when a weight is not finite in FP16.
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
