"""How the tiny synthesizer is trained: to say tokens of what HuBERT hears, in the voice of another recording.

Tokens are k-means of HuBERT's states and stay so (as in GSLM, Lakhotia et al., TACL 2021), in the directions that tell
phones apart (Fisher, 1936): a codebook that learns with the synthesizer comes to tell voice and pitch, and the decoder
cannot guess such tokens from phones.
VITS (Kim et al., ICML 2021) learns from a posterior of true sound, to which the prior of tokens, phones and style is
drawn. In an hour that ends with latents that are almost all noise. Tokens tell here what is said in every frame, so the
synthesizer is run as it will be used: first prior and flow learn latents that the true spectrum can be read from, then
the generator learns to make them sound, by spectra. Critics have added nothing.
B: batch, T: frames of 640 samples, N: tokens of two frames, P: phones, C: channels, F: bins of a spectrogram.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sklearn.cluster import KMeans
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from notebooks.gpt_sovits.network.layers import Attention, masked
from notebooks.gpt_sovits.network.sovits import NOISE, SynthesizerTrn
from notebooks.gpt_sovits.training.bert import IGNORED
from notebooks.gpt_sovits.training.guided_attention import Gaze
from utils.speech.spectra import mel_filters
from utils.training.loop import half, matrices, optimise
from utils.training.vocoder import spectral_error

STEPS = {"sovits": 2000, "sound": 1500}
RATE = 3e-3
SEEDS = {"sovits": 2, "sound": 6}
BATCH, SLICE = 12, 20  # sentences of a step; frames of each that are made sound, 0.4 s
MISTOLD = 0.1  # of the tokens that latents are made of are others, for those that will be drawn are not all right
REFERENCE = 150  # frames of a reference at most, 3 s
SPREAD = 40  # frames by which sentences of a batch may differ more or less
MELS = 128
WEIGHTS = {"latents": 15.0, "gaze": 1.0, "noise": 1.0, "mel": 15.0, "spectra": 10.0}
GUIDED = 2  # heads that are taught which phone is said
DEVIATION = -1.5  # logarithm of the latents': from spectra alone they would learn to have no noise
MEAN = -4.5  # of logarithms of amplitudes in mel channels, at first
DIRECTIONS = 60  # of pairs of states that tokens are told by, at most


class Sentence(NamedTuple):
    """What there is to learn in a recording of P phones, N tokens and T = 2 N frames."""

    voice: str
    phones: Tensor  # [P] int64
    tokens: Tensor  # [N] int64
    places: Tensor  # [T] int64, which of the phones is said
    sound: Tensor  # [T * 640] float32 in -1..1


class Batch(NamedTuple):
    """Padded sentences; masks are 1 where there is something."""

    phones: Tensor  # [B, P] int64
    text_mask: Tensor  # [B, 1, P]
    tokens: Tensor  # [B, N] int64
    places: Tensor  # [B, T] int64, IGNORED at padding
    sound: Tensor  # [B, T * 640]
    mask: Tensor  # [B, 1, T]
    reference: Tensor  # [B, R * 640], of the same voices
    reference_mask: Tensor  # [B, 1, R]
    starts: Tensor  # [B] int64, the first frame of each slice


class Sentences:
    """Batches of sentences of about the same length; every draw is a function of the generator that is passed in."""

    def __init__(self, sentences: Sequence[Sentence], hop: int) -> None:
        """hop: samples of a frame. Sentences shorter than a slice are left out."""
        self.sentences, self.hop = [x for x in sentences if len(x.places) >= SLICE], hop
        self.lengths = np.array([len(x.places) for x in self.sentences])
        self.voices: dict[str, list[int]] = {}
        for i, sentence in enumerate(self.sentences):
            self.voices.setdefault(sentence.voice, []).append(i)

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        order = np.argsort(self.lengths + rng.uniform(0, SPREAD, len(self.lengths)))
        begin = rng.integers(max(1, len(order) - count + 1))
        picked = order[begin : begin + count]
        return self.batch(picked, [self.other(i, rng) for i in picked], rng)

    def other(self, i: int, rng: np.random.Generator) -> int:
        """A sentence of the same voice, another one where it has more than one."""
        others = [j for j in self.voices[self.sentences[i].voice] if j != i]
        return int(rng.choice(others)) if others else int(i)

    def batch(self, picked: Sequence[int], references: Sequence[int], rng: np.random.Generator) -> Batch:
        chosen, cuts = [self.sentences[i] for i in picked], []
        for i in references:
            length = self.lengths[i]
            start = int(rng.integers(max(1, length - REFERENCE + 1)))
            cuts.append(self.sentences[i].sound[start * self.hop : min(length, start + REFERENCE) * self.hop])
        lengths = torch.tensor([len(x.places) for x in chosen])
        return Batch(
            pad_sequence([x.phones for x in chosen], batch_first=True),
            _mask(torch.tensor([len(x.phones) for x in chosen])),
            pad_sequence([x.tokens for x in chosen], batch_first=True),
            pad_sequence([x.places for x in chosen], batch_first=True, padding_value=IGNORED),
            pad_sequence([x.sound for x in chosen], batch_first=True),
            _mask(lengths),
            pad_sequence(cuts, batch_first=True),
            _mask(torch.tensor([len(x) // self.hop for x in cuts])),
            torch.from_numpy(rng.integers(lengths.numpy() - SLICE + 1)),
        )


def _mask(lengths: Tensor) -> Tensor:
    """[B, 1, longest] float32."""
    return (torch.arange(int(lengths.max())) < lengths[:, None])[:, None].float()


def slices(x: Tensor, starts: Tensor, hop: int = 1) -> Tensor:
    """[..., SLICE * hop] of x [B, ..., T * hop], from the frames `starts` [B] on."""
    return torch.stack([row[..., start * hop : (start + SLICE) * hop] for row, start in zip(x, starts, strict=True)])


def mel(network: SynthesizerTrn, sound: Tensor) -> Tensor:
    """Logarithms of amplitudes in mel channels, [B, MELS, T] for sound [B, T * 640]."""
    data = network.config["data"]
    filters = torch.from_numpy(mel_filters(data["filter_length"], MELS, data["sampling_rate"])).float()
    return (network.spectrogram(sound).transpose(1, 2) @ filters).clamp_min(1e-3).log().transpose(1, 2)


# --- tokens -------------------------------------------------------------------------------------------------------


def learn_tokens(work: Path, network: SynthesizerTrn, heard: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Put the codebook where k-means of pairs of HuBERT's states ends; a token is the nearest to two frames.

    heard: states [T, C] and the phone [T] int64 that is said at each. What does not tell phones apart is left out of
    what k-means sees, and what varies within a phone is 1 in every direction.
    """
    proj, embed, width = network.ssl_proj, network.codebook.embed, network.ssl_proj.in_channels
    if not (kept := work / "codebook.safetensors").exists():
        even = [(x[: len(x) // 2 * 2], phones[: len(x) // 2 * 2 : 2]) for x, phones in heard]
        pairs = torch.cat([x.reshape(-1, 2 * width) for x, _ in even]).double().numpy()
        phones = torch.cat([phones for _, phones in even]).numpy()
        lines = LinearDiscriminantAnalysis().fit(pairs, phones).scalings_[:, : min(DIRECTIONS, width)]
        seen, directions = pairs @ lines, lines.shape[1]
        clusters = KMeans(len(embed), n_init=1, random_state=SEEDS["sovits"]).fit(seen)
        found = {"proj": torch.zeros_like(proj.weight), "embed": torch.zeros_like(embed)}
        found["proj"][:directions] = torch.from_numpy(lines.T.reshape(-1, 2, width)).mT
        found["embed"][:, :directions] = torch.from_numpy(clusters.cluster_centers_)
        save_file(found, kept.with_suffix(".partial"))
        os.replace(kept.with_suffix(".partial"), kept)
    found = load_file(kept)
    with torch.no_grad():
        proj.weight.copy_(found["proj"])
        proj.bias.zero_()
    embed.copy_(found["embed"])


# --- latents ------------------------------------------------------------------------------------------------------


def latents(
    network: SynthesizerTrn, tokens: Tensor, given: Batch, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Latents [B, C, T] of a batch as the synthesizer makes them in use, of tokens [B, N], logarithms of their
    deviations, and the style [B, G, 1] of the references."""
    mask, frames = given.mask, given.mask.shape[2]
    draw = torch.Generator().manual_seed(int(rng.integers(2**31)))
    noise = NOISE * torch.randn(len(mask), network.dec.conv_pre.in_channels, frames, generator=draw)
    ge = network.style(network.spectrogram(given.reference), mask=given.reference_mask)
    _, mean, logs = network.prior(tokens, given.phones, ge, frames, mask, given.text_mask)
    return network.flow(masked(mean + noise * logs.exp(), mask), ge, mask, reverse=True), logs, ge


def mistold(tokens: Tensor, mask: Tensor, rng: np.random.Generator) -> Tensor:
    """Tokens [B, N] of which a share MISTOLD are exchanged for others of the batch.

    mask: [B, 1, T], 1 where there is a frame.
    """
    there = mask[:, 0, ::2] > 0
    wrong, others = there & torch.from_numpy(rng.random(there.shape) < MISTOLD), tokens[there]
    chosen = others[torch.from_numpy(rng.integers(len(others), size=int(wrong.sum())))]
    return tokens.index_put((wrong,), chosen)


def imagine(both: nn.ModuleDict, given: Batch, rng: np.random.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """How wrong latents of a batch are, those of WEIGHTS, and the share of frames that look at their phone.

    both: the synthesizer under "network", and under "mel" what reads mel channels from latents: slices of sound are
    short, but all latents can be told what they are to be.
    """
    network, mask = both["network"], given.mask
    tokens = mistold(given.tokens, mask, rng) if both.training else given.tokens
    with half(), Gaze([network.enc_p.mrte.cross_attention], looks) as gaze:
        z, logs, _ = latents(network, tokens, given, rng)
        told = both["mel"](z)
    elsewhere, right = gaze.wrong(given.places)
    wrong = masked(told.float() - mel(network, given.sound), mask).abs().sum() / (mask.sum() * MELS)
    off = masked(logs.float() - DEVIATION, mask).square().sum() / (mask.sum() * logs.shape[1])
    return {"latents": wrong, "gaze": elsewhere, "noise": off}, right


def reader(network: SynthesizerTrn) -> nn.Conv1d:
    """The line that reads mel channels from latents, untrained."""
    line = nn.Conv1d(network.dec.conv_pre.in_channels, MELS, 1)
    line.bias.data.fill_(MEAN)
    return line


def looks(attention: Attention, frames: Tensor, text: Tensor, mask: Tensor | None) -> Tensor:
    """Logits [B, GUIDED, T, P] of where the first heads look; frames: [B, C, T], text: [B, C, P], mask: [B, 1, P]."""
    maps = attention.conv_q(frames), attention.conv_k(text)
    query, keys = (x.unflatten(1, (attention.heads, -1))[:, :GUIDED] for x in maps)
    scores = query.mT @ keys / attention.temperature
    return scores if mask is None else scores.masked_fill(mask[:, None] == 0, -torch.inf)


def learn_to_imagine(work: Path, network: SynthesizerTrn, sentences: Sentences) -> None:
    """Teach the synthesizer latents that tell the spectrum."""
    network.enc_p.proj.bias.data.chunk(2)[1].fill_(DEVIATION)
    both = nn.ModuleDict({"network": network, "mel": reader(network)})

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        errors, right = imagine(both, sentences.draw(BATCH, rng), rng)
        return _weighed(errors) | {"gaze right": right}

    hidden = matrices(network.enc_p, network.flow, network.ref_enc)
    optimise(work / "sovits.pt", both, loss, **_settings("sovits"), muon=hidden)


# --- sound --------------------------------------------------------------------------------------------------------


def aloud(network: SynthesizerTrn, given: Batch, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Slices of a batch as the generator makes them of latents, which stay as they are, and true ones, both
    [B, 1, SLICE * 640]."""
    with torch.no_grad(), half():
        z, _, ge = latents(network, given.tokens, given, rng)
    with half():
        made = network.dec(slices(z, given.starts), ge)
    return made.float(), slices(given.sound[:, None], given.starts, network.dec.hop)


def apart(network: SynthesizerTrn, made: Tensor, true: Tensor) -> dict[str, Tensor]:
    """How far spectra of slices [B, 1, S] are apart."""
    far = (mel(network, made[:, 0]) - mel(network, true[:, 0])).abs().mean()
    return {"mel": far, "spectra": spectral_error(made, true)}


def learn_to_speak(work: Path, network: SynthesizerTrn, sentences: Sentences) -> None:
    """Teach the generator sound by spectra."""

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        made, true = aloud(network, sentences.draw(BATCH, rng), rng)
        return _weighed(apart(network, made, true))

    optimise(work / "sound.pt", network.dec, loss, **_settings("sound"), muon=matrices(network.dec))


def _weighed(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"loss": sum(WEIGHTS[key] * x for key, x in parts.items())} | parts


def _settings(stage: str) -> dict[str, float]:
    return {"steps": STEPS[stage], "rate": RATE, "seed": SEEDS[stage]}
