"""The layers that the parts of SynthesizerTrn share: attention, encoder, WaveNet, and the encoder of style.

Kim et al., "Conditional Variational Autoencoder with Adversarial Learning for End-to-End Text-to-Speech" (VITS), ICML
2021, has all but the last. B: batch, C: channels, T: frames, H: heads, G: channels of the style. A mask [B, 1, T] is 1
where there is a frame and 0 where there is padding; None: there is no padding. `ge`, a name of the released
checkpoints, is the style embedding [B, G, 1].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """x [B, C, T] with padding set to 0."""
    return x if mask is None else x * mask


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of [B, C, T]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x.transpose(1, 2), self.gamma.shape, self.gamma, self.beta, 1e-5)  # [B, T, C]
        return x.transpose(1, 2)  # [B, C, T]


class Attention(nn.Module):
    """Multi-head attention; with a window, relative positions up to that distance have learned keys and values.

    Shaw et al., "Self-Attention with Relative Position Representations", NAACL 2018. window: the largest distance.
    """

    def __init__(self, channels: int, heads: int, window: int = 0) -> None:
        super().__init__()
        size = channels // heads
        self.heads, self.window, self.temperature = heads, window, math.sqrt(size)
        self.conv_q, self.conv_k, self.conv_v, self.conv_o = (nn.Conv1d(channels, channels, 1) for _ in range(4))
        if window:
            self.emb_rel_k = nn.Parameter(torch.randn(1, 2 * window + 1, size) * size**-0.5)
            self.emb_rel_v = nn.Parameter(torch.randn(1, 2 * window + 1, size) * size**-0.5)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, C, T] for x [B, C, T], which attends to memory [B, C, M] with mask [B, 1, M]. With a window M is T."""
        query = self._split_heads(self.conv_q(x)) / self.temperature  # [B, H, T, C / H]
        keys = self._split_heads(self.conv_k(memory))  # [B, H, M, C / H]
        values = self._split_heads(self.conv_v(memory))  # [B, H, M, C / H]
        scores = query @ keys.transpose(2, 3)  # [B, H, T, M]
        if self.window:
            scores = scores + self._by_row(query @ self.emb_rel_k.transpose(1, 2))
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, -1e4)
        weights = scores.softmax(-1)  # [B, H, T, M]
        context = weights @ values  # [B, H, T, C / H]
        if self.window:
            context = context + self._by_distance(weights) @ self.emb_rel_v
        return self.conv_o(context.transpose(2, 3).flatten(1, 2))  # [B, C, T]

    def _split_heads(self, x: Tensor) -> Tensor:
        """[B, H, T, C / H] for x [B, C, T]."""
        return x.unflatten(1, (self.heads, -1)).transpose(2, 3)

    def _by_row(self, x: Tensor) -> Tensor:
        """[..., T, T] for x [..., T, 2 * window + 1]: entry [i, j] is that of distance j - i; 0 beyond the window."""
        length, distances = x.shape[-2], x.shape[-1]
        flat = F.pad(x, (0, length)).flatten(-2)[..., : length * (length + distances - 1)]
        return flat.unflatten(-1, (length, -1))[..., self.window : self.window + length]

    def _by_distance(self, x: Tensor) -> Tensor:
        """[..., T, 2 * window + 1] for x [..., T, T]: the inverse of `_by_row`."""
        length, distances = x.shape[-1], 2 * self.window + 1
        flat = F.pad(F.pad(x, (self.window, self.window)).flatten(-2), (0, length))
        return flat.unflatten(-1, (length, -1))[..., :distances]


class FeedForward(nn.Module):
    """Two convolutions over time."""

    def __init__(self, channels: int, hidden: int, kernel: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv1d(channels, hidden, kernel, padding="same")
        self.conv_2 = nn.Conv1d(hidden, channels, kernel, padding="same")

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return masked(self.conv_2(masked(F.relu(self.conv_1(masked(x, mask))), mask)), mask)


class Encoder(nn.Module):
    """Layers of attention and convolutions, each added to its input and normalised."""

    WINDOW = 4

    def __init__(self, channels: int, hidden: int, heads: int, layers: int, kernel: int) -> None:
        super().__init__()
        self.attn_layers = nn.ModuleList(Attention(channels, heads, self.WINDOW) for _ in range(layers))
        self.norm_layers_1 = nn.ModuleList(ChannelNorm(channels) for _ in range(layers))
        self.ffn_layers = nn.ModuleList(FeedForward(channels, hidden, kernel) for _ in range(layers))
        self.norm_layers_2 = nn.ModuleList(ChannelNorm(channels) for _ in range(layers))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, C, T] for x [B, C, T]."""
        x = masked(x, mask)
        layers = zip(self.attn_layers, self.norm_layers_1, self.ffn_layers, self.norm_layers_2, strict=True)
        for attention, norm_1, feed_forward, norm_2 in layers:
            x = norm_1(x + attention(x, x, mask))  # [B, C, T]
            x = norm_2(x + feed_forward(x, mask))  # [B, C, T]
        return masked(x, mask)


class WaveNet(nn.Module):
    """Gated convolutions, conditioned on a style (van den Oord et al., 2016), without dilation."""

    def __init__(self, channels: int, kernel: int, layers: int, style: int) -> None:
        super().__init__()
        self.channels = channels
        self.in_layers = nn.ModuleList(nn.Conv1d(channels, 2 * channels, kernel, padding="same") for _ in range(layers))
        widths = [2 * channels] * (layers - 1) + [channels]  # the last has no layer to go on to
        self.res_skip_layers = nn.ModuleList(nn.Conv1d(channels, width, 1) for width in widths)
        self.cond_layer = nn.Conv1d(style, 2 * channels * layers, 1)

    def forward(self, x: Tensor, ge: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, C, T] for x [B, C, T] and the style ge [B, G, 1]."""
        total = 0
        styles = self.cond_layer(ge).chunk(len(self.in_layers), 1)  # [B, 2 C, 1] for each layer
        for convolve, split, style in zip(self.in_layers, self.res_skip_layers, styles, strict=True):
            content, gate = (convolve(x) + style).chunk(2, 1)  # [B, C, T] each
            skip = split(content.tanh() * gate.sigmoid())  # [B, 2 C, T], of the last layer [B, C, T]
            if split.out_channels > self.channels:
                residual, skip = skip.chunk(2, 1)  # [B, C, T] each
                x = masked(x + residual, mask)
            total = total + skip
        return masked(total, mask)


class Linear(nn.Module):
    """A linear layer under the checkpoint's name."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class GatedConv(nn.Module):
    """A convolution whose one half gates the other, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        conv = nn.Conv1d(channels, 2 * channels, 5, padding="same")
        self.conv1 = nn.ModuleDict({"conv": conv})

    def forward(self, x: Tensor) -> Tensor:
        return x + F.glu(self.conv1["conv"](x), 1)  # [B, C, T]


class StyleAttention(nn.Module):
    """Attention of two heads, added to the input; its scores are divided by the root of the whole width."""

    HEADS = 2

    def __init__(self, width: int) -> None:
        super().__init__()
        self.temperature = math.sqrt(width)
        self.w_qs, self.w_ks, self.w_vs, self.fc = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] for x [B, T, C]."""
        query, keys, values = (
            linear(x).unflatten(-1, (self.HEADS, -1)).transpose(1, 2) for linear in (self.w_qs, self.w_ks, self.w_vs)
        )  # [B, H, T, C / H] each
        scores = query @ keys.transpose(2, 3) / self.temperature  # [B, H, T, T]
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, -math.inf)
        context = scores.softmax(-1) @ values  # [B, H, T, C / H]
        return x + self.fc(context.transpose(1, 2).flatten(2))


class StyleEncoder(nn.Module):
    """A voice in one vector, from a spectrogram (Min et al., "Meta-StyleSpeech", ICML 2021)."""

    def __init__(self, bins: int, width: int, outputs: int) -> None:
        super().__init__()
        layers = Linear(bins, width), nn.Mish(), nn.Identity(), Linear(width, width), nn.Mish()  # 2: a dropout layer
        self.spectral = nn.Sequential(*layers)
        self.temporal = nn.Sequential(GatedConv(width), GatedConv(width))
        self.slf_attn = StyleAttention(width)
        self.fc = Linear(width, outputs)

    def forward(self, spectrogram: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, G, 1] for spectrogram [B, bins, T]."""
        x = masked(self.spectral(spectrogram.transpose(1, 2)).transpose(1, 2), mask)  # [B, C, T]
        for layer in self.temporal:
            x = masked(layer(x), mask)
        x = self.fc(self.slf_attn(x.transpose(1, 2), mask)).transpose(1, 2)  # [B, G, T]
        if mask is None:
            return x.mean(-1, keepdim=True)
        return (x * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
