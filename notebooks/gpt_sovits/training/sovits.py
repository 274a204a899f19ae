"""Trains the tiny synthesizer: from tokens of HuBERT's states to sound, in the voice of another recording.

Tokens are k-means clusters of HuBERT's states and do not change after that (as in GSLM, Lakhotia et al., TACL 2021).
The clustering is in the directions that separate phonemes (Fisher, 1936): a codebook that learns with the synthesizer
comes to encode voice and pitch, and the decoder cannot predict such tokens from phonemes.

VITS (Kim et al., ICML 2021) learns from the posterior of recorded sound, to which the prior of tokens, phonemes and
style is drawn. Within an hour of training that ends with latents that are almost all noise. Here the synthesizer is
trained as it is used. First prior and flow learn latents from which a linear probe can read the true spectrum. Then the
generator learns to turn latents into sound, by spectral losses. Discriminators have added nothing.

B: batch, T: frames of 640 samples, N: tokens of two frames, P: phonemes, C: channels, G: channels of the style, F: bins
of a spectrogram.
"""

from __future__ import annotations

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
from notebooks.gpt_sovits.network.sovits import SynthesizerTrn
from notebooks.gpt_sovits.pipeline.constants import NOISE_SCALE
from notebooks.gpt_sovits.training.guided_attention import GuidedAttention
from notebooks.gpt_sovits.training.labels import IGNORED
from utils import files
from utils.speech.spectra import mel_filters
from utils.training.loop import autocast, matrices, optimise
from utils.training.vocoder import spectral_error

STEPS = {"sovits": 3600, "sound": 3200}
LEARNING_RATES = {"sovits": 1e-3, "sound": 3e-3}
SEEDS = {"sovits": 2, "sound": 6}
BATCH = 12  # sentences
SLICE_FRAMES = 20  # of each sentence that become sound, 0.4 s
GUESSED_SHARE = 0.5  # of the tokens are the decoder's guesses when latents are learned, as all are in inference
MAX_REFERENCE_FRAMES = 150  # 3 s
LENGTH_SPREAD = 40  # frames by which the sentences of a batch may differ more or less
MELS = 128
WEIGHTS = {"latents": 15.0, "attention": 1.0, "noise": 1.0, "mel": 15.0, "spectra": 10.0}  # of the losses
GUIDED_HEADS = 2  # with guided attention to the phonemes
LOG_DEVIATION = -1.5  # target of the latents': from spectra alone they would learn to have no noise
MEL_BIAS = -4.5  # of logarithms of amplitudes in mel channels, at first
MAX_DIRECTIONS = 60  # of pairs of states that tokens are clustered in


class Sentence(NamedTuple):
    """A recording of P phonemes, N tokens and T = 2 N frames."""

    voice: str
    phones: Tensor  # [P] int64
    tokens: Tensor  # [N] int64
    guesses: Tensor  # [N, any number] int64, tokens that the decoder may say in place of each
    alignment: Tensor  # [T] int64, the index of the phoneme at each frame
    sound: Tensor  # [T * 640] float32 in -1..1


class Batch(NamedTuple):
    """Padded sentences; masks are 1 where there is no padding."""

    phones: Tensor  # [B, P] int64
    text_mask: Tensor  # [B, 1, P]
    tokens: Tensor  # [B, N] int64
    guessed: Tensor  # [B, N] int64, the tokens, of which GUESSED_SHARE are replaced by guesses
    alignment: Tensor  # [B, T] int64, IGNORED at padding
    sound: Tensor  # [B, T * 640]
    mask: Tensor  # [B, 1, T]
    reference: Tensor  # [B, R * 640], other sound of the same voices
    reference_mask: Tensor  # [B, 1, R]
    starts: Tensor  # [B] int64, the first frame of each slice


class Sentences:
    """Batches of sentences of about the same length; every draw is a function of the generator that is passed in."""

    def __init__(self, sentences: Sequence[Sentence], hop: int) -> None:
        """hop: samples of a frame. Sentences shorter than a slice are left out."""
        self.sentences, self.hop = [x for x in sentences if len(x.alignment) >= SLICE_FRAMES], hop
        self.lengths = np.array([len(x.alignment) for x in self.sentences])  # frames
        self.voices: dict[str, list[int]] = {}  # indices of their sentences
        for i, sentence in enumerate(self.sentences):
            self.voices.setdefault(sentence.voice, []).append(i)

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        """`count` sentences of about the same length, each with a reference of its voice."""
        order = np.argsort(self.lengths + rng.uniform(0, LENGTH_SPREAD, len(self.lengths)))
        begin = rng.integers(max(1, len(order) - count + 1))
        picked = order[begin : begin + count]
        return self.batch(picked, [self.other(i, rng) for i in picked], rng)

    def other(self, i: int, rng: np.random.Generator) -> int:
        """A sentence of the same voice, another one where it has more than one."""
        others = [j for j in self.voices[self.sentences[i].voice] if j != i]
        return int(rng.choice(others)) if others else int(i)

    def batch(self, picked: Sequence[int], references: Sequence[int], rng: np.random.Generator) -> Batch:
        """The sentences `picked`, each with a random cut of another one as its reference."""
        chosen, cuts = [self.sentences[i] for i in picked], []
        for i in references:
            start = int(rng.integers(max(1, self.lengths[i] - MAX_REFERENCE_FRAMES + 1)))
            stop = min(self.lengths[i], start + MAX_REFERENCE_FRAMES)
            cuts.append(self.sentences[i].sound[start * self.hop : stop * self.hop])
        lengths = torch.tensor([len(x.alignment) for x in chosen])
        return Batch(
            pad_sequence([x.phones for x in chosen], batch_first=True),
            _mask(torch.tensor([len(x.phones) for x in chosen])),
            pad_sequence([x.tokens for x in chosen], batch_first=True),
            pad_sequence([guessed_tokens(x, rng) for x in chosen], batch_first=True),
            pad_sequence([x.alignment for x in chosen], batch_first=True, padding_value=IGNORED),
            pad_sequence([x.sound for x in chosen], batch_first=True),
            _mask(lengths),
            pad_sequence(cuts, batch_first=True),
            _mask(torch.tensor([len(x) // self.hop for x in cuts])),
            torch.from_numpy(rng.integers(lengths.numpy() - SLICE_FRAMES + 1)),
        )


def _mask(lengths: Tensor) -> Tensor:
    """[B, 1, longest] float32."""
    return (torch.arange(int(lengths.max())) < lengths[:, None])[:, None].float()


def guessed_tokens(sentence: Sentence, rng: np.random.Generator) -> Tensor:
    """The tokens [N] of a sentence, of which GUESSED_SHARE are replaced by one of their guesses."""
    count, choices = sentence.guesses.shape
    picked = sentence.guesses[torch.arange(count), torch.from_numpy(rng.integers(choices, size=count))]  # [N]
    return torch.where(torch.from_numpy(rng.random(count) < GUESSED_SHARE), picked, sentence.tokens)


def slices(x: Tensor, starts: Tensor, hop: int = 1) -> Tensor:
    """[..., SLICE_FRAMES * hop] of x [B, ..., T * hop], from the frames `starts` [B] on."""
    return torch.stack(
        [row[..., start * hop : (start + SLICE_FRAMES) * hop] for row, start in zip(x, starts, strict=True)]
    )


def mel(network: SynthesizerTrn, sound: Tensor) -> Tensor:
    """Logarithms of amplitudes in mel channels, [B, MELS, T] for sound [B, T * 640]."""
    data = network.config["data"]
    filters = torch.from_numpy(mel_filters(data["filter_length"], MELS, data["sampling_rate"])).float()  # [F, MELS]
    amplitudes = network.spectrogram(sound).transpose(1, 2) @ filters  # [B, T, MELS]
    return amplitudes.clamp_min(1e-3).log().transpose(1, 2)


# --- tokens -------------------------------------------------------------------------------------------------------


def learn_codebook(work: Path, network: SynthesizerTrn, labelled: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Set the codebook to the k-means centres of pairs of HuBERT's states; a token is the nearest to two frames.

    labelled: states [T, C] and the phoneme [T] int64 at each. The states are projected to the directions that separate
    phonemes, in which the variance within a phoneme is 1.
    """
    proj, embed, width = network.ssl_proj, network.codebook.embed, network.ssl_proj.in_channels
    if not (file := work / "codebook.safetensors").exists():
        even = [(x[: len(x) // 2 * 2], phones[: len(x) // 2 * 2 : 2]) for x, phones in labelled]
        pairs = torch.cat([x.reshape(-1, 2 * width) for x, _ in even]).double().numpy()  # [pairs, 2 C]
        phones = torch.cat([phones for _, phones in even]).numpy()  # [pairs]
        lines = LinearDiscriminantAnalysis().fit(pairs, phones).scalings_[:, : min(MAX_DIRECTIONS, width)]
        projected, directions = pairs @ lines, lines.shape[1]  # [pairs, directions]
        clusters = KMeans(len(embed), n_init=1, random_state=SEEDS["sovits"]).fit(projected)
        codebook = {"proj": torch.zeros_like(proj.weight), "embed": torch.zeros_like(embed)}
        codebook["proj"][:directions] = torch.from_numpy(lines.T.reshape(-1, 2, width)).mT
        codebook["embed"][:, :directions] = torch.from_numpy(clusters.cluster_centers_)
        with files.replaced(file) as written:
            save_file(codebook, written)
    codebook = load_file(file)
    with torch.no_grad():
        proj.weight.copy_(codebook["proj"])
        proj.bias.zero_()
    embed.copy_(codebook["embed"])


# --- latents ------------------------------------------------------------------------------------------------------


def latents(
    network: SynthesizerTrn, tokens: Tensor, batch: Batch, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Latents [B, C, T] of tokens [B, N] as in inference, the logarithms of their deviations [B, C, T], and the style
    embedding [B, G, 1] of the references."""
    mask, frames = batch.mask, batch.mask.shape[2]
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    noise = NOISE_SCALE * torch.randn(len(mask), network.dec.conv_pre.in_channels, frames, generator=generator)
    ge = network.style(network.spectrogram(batch.reference), mask=batch.reference_mask)  # [B, G, 1]
    _, mean, logs = network.prior(tokens, batch.phones, ge, frames, mask, batch.text_mask)  # [B, C, T] each
    return network.flow(masked(mean + noise * logs.exp(), mask), ge, mask, reverse=True), logs, ge


def prior_losses(both: nn.ModuleDict, batch: Batch, rng: np.random.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """The losses of a batch's latents, named as in WEIGHTS, and the accuracy of the guided attention.

    both: the synthesizer as "network", and as "mel" the probe of `mel_probe`. Unlike sound, of which only short slices
    can be synthesized, all latents can be compared with the spectrum.
    """
    network, mask = both["network"], batch.mask
    tokens = batch.guessed if both.training else batch.tokens
    with autocast(), GuidedAttention([network.enc_p.mrte.cross_attention], attention_logits) as attention:
        z, logs, _ = latents(network, tokens, batch, rng)  # [B, C, T] each
        predicted = both["mel"](z)  # [B, MELS, T]
    attention_loss, attention_accuracy = attention.loss_and_accuracy(batch.alignment)
    frames = mask.sum()
    difference = masked(predicted.float() - mel(network, batch.sound), mask).abs().sum() / (frames * MELS)
    deviation = masked(logs.float() - LOG_DEVIATION, mask).square().sum() / (frames * logs.shape[1])
    return {"latents": difference, "attention": attention_loss, "noise": deviation}, attention_accuracy


def mel_probe(network: SynthesizerTrn) -> nn.Conv1d:
    """A linear probe, untrained, that reads mel channels [B, MELS, T] from latents [B, C, T]."""
    probe = nn.Conv1d(network.dec.conv_pre.in_channels, MELS, 1)
    probe.bias.data.fill_(MEL_BIAS)
    return probe


def attention_logits(attention: Attention, frames: Tensor, text: Tensor, mask: Tensor | None) -> Tensor:
    """Attention logits [B, GUIDED_HEADS, T, P]; frames: [B, C, T], text: [B, C, P], mask: [B, 1, P]."""
    query, keys = (
        x.unflatten(1, (attention.heads, -1))[:, :GUIDED_HEADS]
        for x in (attention.conv_q(frames), attention.conv_k(text))
    )  # [B, GUIDED_HEADS, C / H, T], [B, GUIDED_HEADS, C / H, P]
    scores = query.mT @ keys / attention.temperature  # [B, GUIDED_HEADS, T, P]
    return scores if mask is None else scores.masked_fill(mask[:, None] == 0, -torch.inf)


def train_latents(work: Path, network: SynthesizerTrn, sentences: Sentences) -> None:
    """Train prior, flow and style encoder to latents from which the spectrum can be read."""
    network.enc_p.proj.bias.data.chunk(2)[1].fill_(LOG_DEVIATION)
    both = nn.ModuleDict({"network": network, "mel": mel_probe(network)})

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        losses, attention_accuracy = prior_losses(both, sentences.draw(BATCH, rng), rng)
        return _with_total(losses) | {"attention accuracy": attention_accuracy}

    hidden = matrices(network.enc_p, network.flow, network.ref_enc)
    optimise(work / "sovits.pt", both, loss, **_schedule("sovits"), muon=hidden)


# --- sound --------------------------------------------------------------------------------------------------------


def generate_slices(network: SynthesizerTrn, batch: Batch, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Generated and target slices of sound, both [B, 1, SLICE_FRAMES * 640]; the latents are detached."""
    with torch.no_grad(), autocast():
        z, _, ge = latents(network, batch.tokens, batch, rng)  # [B, C, T], _, [B, G, 1]
    with autocast():
        generated = network.dec(slices(z, batch.starts), ge)
    return generated.float(), slices(batch.sound[:, None], batch.starts, network.dec.hop)


def spectral_losses(network: SynthesizerTrn, generated: Tensor, target: Tensor) -> dict[str, Tensor]:
    """The differences of spectra of slices [B, 1, S], named as in WEIGHTS."""
    difference = (mel(network, generated[:, 0]) - mel(network, target[:, 0])).abs().mean()
    return {"mel": difference, "spectra": spectral_error(generated, target)}


def train_generator(work: Path, network: SynthesizerTrn, sentences: Sentences) -> None:
    """Train the generator to turn latents into sound, by spectral losses."""

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        generated, target = generate_slices(network, sentences.draw(BATCH, rng), rng)
        return _with_total(spectral_losses(network, generated, target))

    optimise(work / "sound.pt", network.dec, loss, **_schedule("sound"), muon=matrices(network.dec))


def _with_total(losses: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"loss": sum(WEIGHTS[name] * x for name, x in losses.items())} | losses


def _schedule(stage: str) -> dict[str, float]:
    return {"steps": STEPS[stage], "rate": LEARNING_RATES[stage], "seed": SEEDS[stage]}
