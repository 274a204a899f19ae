"""The second stage of GPT-SoVITS in PyTorch, SynthesizerTrn, with the key names of the released checkpoints.

Semantic tokens (25 per second) and phonemes become sound in the voice of a recording (RVC-Boss, GPT-SoVITS, 2024, on
Kim et al., VITS, ICML 2021). v1, v2 and v2Pro differ in their phonemes and in the input of the style encoder; v2Pro
takes a speaker embedding, too. B: batch, N: tokens, T: frames (2 N, unless the speed is changed), P: phonemes, C:
channels of the latents, G: channels of the style embedding `ge`, F: bins of a spectrogram, S: samples.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from notebooks.gpt_sovits.network.layers import Attention, Encoder, StyleEncoder, WaveNet, masked
from notebooks.gpt_sovits.network.vocoder import Generator
from notebooks.gpt_sovits.pipeline.constants import SPEAKER_SIZE, VERSIONS

DEFAULTS = {  # sizes that the config of a released checkpoint does not give
    "ssl_channels": 768,
    "codes": 1024,
    "mrte_channels": 512,
    "mrte_heads": 4,
    "style_channels": 128,
    "flow_layers": 4,
    "posterior_layers": 16,
}


class Spectrogram(nn.Module):
    """Magnitudes of the short-time Fourier transform, without frames beyond the ends.

    data: "filter_length" and "win_length" (both the window's), "hop_length", in samples.
    """

    def __init__(self, data: dict) -> None:
        super().__init__()
        self.size, self.hop, self.length = data["filter_length"], data["hop_length"], data["win_length"]
        window = torch.hann_window(self.length, device="cpu")  # no weight: it is there on the meta device too
        self.register_buffer("window", window, persistent=False)

    def forward(self, wav: Tensor) -> Tensor:
        """[B, F, S / hop] for wav [B, S] in -1..1, S more than half the difference of window and hop."""
        padding = (self.size - self.hop) // 2
        wav = F.pad(wav[:, None], (padding, padding), mode="reflect")[:, 0]  # [B, S + 2 padding]
        sizes = self.size, self.hop, self.length, self.window
        spectrum = torch.stft(wav, *sizes, center=False, return_complex=True)  # [B, F, T]
        spectrum = torch.view_as_real(spectrum)  # [B, F, T, 2]
        return (spectrum.square().sum(-1) + 1e-8).sqrt()


class Codebook(nn.Module):
    """Vector quantisation: a vector is replaced by the nearest of `codes` learned ones."""

    def __init__(self, codes: int, channels: int) -> None:
        super().__init__()
        self.register_buffer("embed", torch.randn(codes, channels))

    def encode(self, x: Tensor) -> Tensor:
        """The index of the nearest vector, [B, N] int64, for x [B, channels, N]."""
        products = x.transpose(1, 2) @ self.embed.t()  # [B, N, codes]; with the constant first, ARM does not compile it
        distances = self.embed.square().sum(1) - 2 * products  # [B, N, codes], squared, less x's norms
        return distances.argmin(2)

    def decode(self, codes: Tensor) -> Tensor:
        """[B, channels, N] for codes [B, N] int64."""
        return F.embedding(codes, self.embed).transpose(1, 2)


class MRTE(nn.Module):
    """Adds the phonemes, by attention, and the style to the frames of tokens."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        hidden, width = config["hidden_channels"], config["mrte_channels"]
        self.cross_attention = Attention(width, config["mrte_heads"])
        self.c_pre, self.text_pre = nn.Conv1d(hidden, width, 1), nn.Conv1d(hidden, width, 1)
        self.c_post = nn.Conv1d(width, hidden, 1)

    def forward(
        self, frames: Tensor, text: Tensor, ge: Tensor, mask: Tensor | None, text_mask: Tensor | None
    ) -> Tensor:
        """[B, hidden, T] for frames [B, hidden, T], text [B, hidden, P] and ge [B, mrte, 1]."""
        frames, text = self.c_pre(frames), self.text_pre(text)  # [B, mrte, T], [B, mrte, P]
        phonemes = self.cross_attention(frames, text, text_mask)  # [B, mrte, T]
        return masked(self.c_post(phonemes + frames + ge), mask)


class TextEncoder(nn.Module):
    """The prior: mean and logarithm of the deviation of every frame's latents, from tokens, phonemes and style."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        hidden, layers = config["hidden_channels"], config["n_layers"]
        sizes = hidden, config["filter_channels"], config["n_heads"]
        self.ssl_proj = nn.Conv1d(config["ssl_channels"], hidden, 1)
        self.encoder_ssl = Encoder(*sizes, layers // 2, config["kernel_size"])
        self.encoder_text = Encoder(*sizes, layers, config["kernel_size"])
        self.text_embedding = nn.Embedding(config["symbols"], hidden)
        self.mrte = MRTE(config)
        self.encoder2 = Encoder(*sizes, layers // 2, config["kernel_size"])
        self.proj = nn.Conv1d(hidden, 2 * config["inter_channels"], 1)

    def forward(
        self,
        quantized: Tensor,
        phones: Tensor,
        ge: Tensor,
        frames: int | Tensor,
        mask: Tensor | None = None,
        text_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states [B, hidden, frames], means and logarithms of deviations [B, C, frames].

        quantized: [B, ssl, T]. phones: [B, P] int64. ge: [B, mrte, 1]. frames: T, or another number for slower or
        faster speech. A mask is for T.
        """
        y = self.encoder_ssl(masked(self.ssl_proj(quantized), mask), mask)  # [B, hidden, T]
        text = self.encoder_text(self.text_embedding(phones).transpose(1, 2), text_mask)  # [B, hidden, P]
        y = self.encoder2(self.mrte(y, text, ge, mask, text_mask), mask)  # [B, hidden, T]
        y = F.interpolate(y, size=frames, mode="linear")  # [B, hidden, frames]
        mean, logs = masked(self.proj(y), mask).chunk(2, 1)  # [B, C, frames] each
        return y, mean, logs


class PosteriorEncoder(nn.Module):
    """The posterior: the latents of recorded sound. Only training needs it."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        hidden = config["hidden_channels"]
        self.pre = nn.Conv1d(config["bins"], hidden, 1)
        self.enc = WaveNet(hidden, 5, config["posterior_layers"], config["gin_channels"])
        self.proj = nn.Conv1d(hidden, 2 * config["inter_channels"], 1)

    def forward(
        self, spectrogram: Tensor, ge: Tensor, noise: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Latents, means and logarithms of deviations, [B, C, T] each, for spectrogram [B, F, T], the style ge
        [B, G, 1] and normal noise [B, C, T]."""
        x = self.enc(masked(self.pre(spectrogram), mask), ge, mask)  # [B, hidden, T]
        mean, logs = masked(self.proj(x), mask).chunk(2, 1)  # [B, C, T] each
        return masked(mean + noise * logs.exp(), mask), mean, logs


class Coupling(nn.Module):
    """Shifts half of the channels by a function of the other half and the style."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        half, hidden = config["inter_channels"] // 2, config["hidden_channels"]
        self.pre, self.post = nn.Conv1d(half, hidden, 1), nn.Conv1d(hidden, half, 1)
        self.enc = WaveNet(hidden, 5, 4, config["gin_channels"])

    def forward(self, x: Tensor, ge: Tensor, mask: Tensor | None, reverse: bool) -> Tensor:
        first, second = x.chunk(2, 1)  # [B, C / 2, T] each
        hidden = self.enc(masked(self.pre(first), mask), ge, mask)  # [B, hidden, T]
        shift = masked(self.post(hidden), mask)  # [B, C / 2, T]
        return torch.cat([first, second - shift if reverse else second + shift], 1)


class Flip(nn.Module):
    """The channels in the opposite order, so that the next coupling shifts the other half."""

    def forward(self, x: Tensor, ge: Tensor, mask: Tensor | None, reverse: bool) -> Tensor:
        return x.flip(1)


class Flow(nn.Module):
    """The invertible map between the latents of sound and the space of the prior."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        pairs = [(Coupling(config), Flip()) for _ in range(config["flow_layers"])]
        self.flows = nn.ModuleList(layer for pair in pairs for layer in pair)

    def forward(self, x: Tensor, ge: Tensor, mask: Tensor | None = None, reverse: bool = False) -> Tensor:
        """[B, C, T] for x [B, C, T]: latents to the prior's space or, `reverse`, back; ge: the style [B, G, 1]."""
        for layer in reversed(self.flows) if reverse else self.flows:
            x = layer(x, ge, mask, reverse)
        return x


class SynthesizerTrn(nn.Module):
    """The network that a checkpoint's config describes, weight norm folded. Weights are random until loaded.

    config: "data" as `Spectrogram` takes it with "sampling_rate" (Hz), and "model" with the sizes of `Generator` and
    "version" (one of VERSIONS), "hidden_channels", "filter_channels", "n_heads", "n_layers", "kernel_size". Sizes other
    than DEFAULTS, "symbols" (phonemes) and "style_bins" (of the style encoder's input) are there, too. posterior: build
    the posterior encoder. Raises ValueError for another version.
    """

    def __init__(self, config: dict, posterior: bool = False) -> None:
        super().__init__()
        self.config, self.version = config, config["model"].get("version")
        if self.version not in VERSIONS:
            raise ValueError(f"There is no version {self.version!r} of SoVITS here. Known are {', '.join(VERSIONS)}.")
        bins = config["data"]["filter_length"] // 2 + 1
        released = {
            "symbols": VERSIONS[self.version],
            "style_bins": bins if self.version == "v1" else 704,
            "bins": bins,
        }
        sizes = DEFAULTS | released | config["model"]
        self.bins, style = sizes["style_bins"], sizes["gin_channels"]
        self.enc_p, self.dec, self.flow = TextEncoder(sizes), Generator(sizes), Flow(sizes)
        if posterior:
            self.enc_q = PosteriorEncoder(sizes)
        self.ref_enc = StyleEncoder(self.bins, sizes["style_channels"], style)
        self.ssl_proj = nn.Conv1d(sizes["ssl_channels"], sizes["ssl_channels"], 2, 2)  # 50 frames per second to 25
        codebook = nn.ModuleDict({"_codebook": Codebook(sizes["codes"], sizes["ssl_channels"])})
        self.quantizer = nn.ModuleDict({"vq": nn.ModuleDict({"layers": nn.ModuleList([codebook])})})
        if self.version == "v2Pro":
            self.sv_emb, self.ge_to512 = nn.Linear(SPEAKER_SIZE, style), nn.Linear(style, sizes["mrte_channels"])
            self.prelu = nn.PReLU(style)
        self.spectrogram = Spectrogram(config["data"])

    @property
    def codebook(self) -> Codebook:
        return self.quantizer["vq"]["layers"][0]["_codebook"]

    def encode(self, ssl: Tensor) -> Tensor:
        """Tokens [B, N] int64 of HuBERT's states ssl [B, 768, 2 N or one more]."""
        return self.codebook.encode(self.ssl_proj(ssl))  # of [B, 768, N]

    def style(self, spectrogram: Tensor, speaker: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """The style embedding ge [B, G, 1] of a recording's spectrogram [B, F, T].

        speaker: [B, 20480], the speaker embedding, v2Pro only.
        """
        ge = self.ref_enc(spectrogram[:, : self.bins], mask)  # [B, G, 1]
        return ge if speaker is None else self.prelu(ge + self.sv_emb(speaker)[..., None])

    def prior(
        self,
        codes: Tensor,
        phones: Tensor,
        ge: Tensor,
        frames: int | Tensor,
        mask: Tensor | None = None,
        text_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`TextEncoder` of tokens codes [B, N] int64, phones [B, P] int64 and the style embedding ge [B, G, 1]."""
        quantized = self.codebook.decode(codes)[..., None].expand(-1, -1, -1, 2).flatten(2)  # [B, ssl, 2 N]
        if self.version == "v2Pro":
            ge = self.ge_to512(ge.transpose(1, 2)).transpose(1, 2)  # [B, mrte, 1]
        return self.enc_p(quantized, phones, ge, frames, mask, text_mask)

    def forward(self, codes: Tensor, phones: Tensor, ge: Tensor, noise: Tensor) -> Tensor:
        """Sound [B, 1, S] in -1..1, for codes [B, N] int64, phones [B, P] int64 and the style embedding ge [B, G, 1].

        noise: [B, C, T], normal times `constants.NOISE_SCALE`. T is 2 N, or int(2 N / speed) + 1 at another speed.
        """
        _, mean, logs = self.prior(codes, phones, ge, noise.shape[-1])  # [B, C, T] each
        latents = self.flow(mean + noise * logs.exp(), ge, reverse=True)  # [B, C, T]
        return self.dec(latents, ge)
