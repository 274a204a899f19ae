"""The HiFi-GAN generators of KAN-TTS in PyTorch, with the key names of the released checkpoints.

Mel spectrogram to sound: Kong et al., "HiFi-GAN: Generative Adversarial Networks for Efficient and High Fidelity Speech
Synthesis", NeurIPS 2020. At every stage, KAN-TTS adds up two ways of upsampling: a transposed convolution, and
repetition followed by a convolution. With NSF (Wang et al., "Neural source-filter-based waveform model", ICASSP 2019)
every stage also adds sines that follow the pitch.

B: batch, F: frames, S: samples (F times `hop`), M: mel channels without pitch and voicing, H: sines, C: channels, T:
length at a stage. Sizes in comments are those of the released 16 kHz vocoder.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from notebooks.sambert_hifigan.network.checkpoint import check, parameters, read_config, read_tensors, save

SINE_AMPLITUDE, VOICED_NOISE = 0.1, 0.003  # of the sines, and of the noise added to them
UNVOICED_NOISE = SINE_AMPLITUDE / 3


class Conv(nn.Module):
    """A convolution that keeps the length. If causal, it reads no later samples."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int, causal: bool, bias: bool) -> None:
        super().__init__()
        reach = (kernel - 1) * dilation
        self.padding = (reach, 0) if causal else (reach // 2, reach // 2)
        self.conv1d = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, outputs, T] for x [B, inputs, T]."""
        return self.conv1d(F.pad(x, self.padding))


class Upsample(nn.Module):
    """A transposed convolution to `stride` times the length. If causal, it reads no later samples."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, causal: bool, bias: bool) -> None:
        super().__init__()
        padding = 0 if causal else (kernel - stride) // 2
        self.surplus = kernel - stride - 2 * padding
        self.deconv = nn.ConvTranspose1d(inputs, outputs, kernel, stride, padding, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, outputs, stride * T] for x [B, inputs, T]."""
        x = self.deconv(x)  # [B, outputs, stride * T + surplus]
        return x[..., : -self.surplus] if self.surplus else x


class Downsample(nn.Module):
    """Downsamples the source by `stride` for a stage. If causal, it reads no later samples."""

    def __init__(self, outputs: int, stride: int, causal: bool) -> None:
        super().__init__()
        kernel = 2 * stride if stride > 1 else 1
        self.padding = (kernel - 1, 0) if causal else (kernel // 4, kernel // 4)
        self.conv1d = nn.Conv1d(1, outputs, kernel, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[B, outputs, S / stride] for x [B, 1, S]."""
        return self.conv1d(F.pad(x, self.padding))


class ResidualStack(nn.Module):
    """Pairs of a dilated and a plain convolution with leaky ReLUs; each pair has a residual connection."""

    def __init__(
        self, channels: int, kernel: int, dilations: list[int], slope: float, causal: bool, bias: bool
    ) -> None:
        super().__init__()
        self.slope = slope
        self.convs1 = nn.ModuleList(Conv(channels, channels, kernel, d, causal, bias) for d in dilations)
        self.convs2 = nn.ModuleList(Conv(channels, channels, kernel, 1, causal, bias) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] for x [B, C, T]."""
        for dilated, plain in zip(self.convs1, self.convs2, strict=True):
            y = dilated(F.leaky_relu(x, self.slope))  # [B, C, T]
            x = x + plain(F.leaky_relu(y, self.slope))  # [B, C, T]
        return x


class Source(nn.Module):
    """Sines at the pitch and its multiples in voiced frames, and noise in unvoiced ones, mixed into one signal."""

    def __init__(self, harmonics: int, rate: int, hop: int) -> None:
        super().__init__()
        self.rate, self.hop = rate, hop
        self.register_buffer("multiples", torch.arange(1.0, harmonics + 2)[:, None], persistent=False)
        self.register_buffer("samples", torch.arange(1.0, hop + 1), persistent=False)
        self.ffn = nn.Sequential(nn.Conv1d(harmonics + 1, 1, 1), nn.Tanh())

    def forward(self, f0: Tensor, voiced: Tensor, phase: Tensor, noise: Tensor) -> Tensor:
        """[B, 1, S] for f0 (Hz) and voiced (0 or 1), both [B, 1, F].

        phase: [B, H, 1], of each sine at the beginning, in radians. noise: [B, H, S], normally distributed.
        """
        pitch = f0 * self.multiples  # [B, H, F], Hz
        frame_rate = self.rate / self.hop  # Hz

        # the phase at the start of every frame, in turns; whole turns are dropped, or the rounding would grow with time
        left = pitch - frame_rate * (pitch / frame_rate).floor()  # [B, H, F]
        before = left.cumsum(-1) - left  # [B, H, F]
        before = (before - frame_rate * (before / frame_rate).floor()) / frame_rate  # [B, H, F]

        # the phase of every sample
        angle = before[..., None] + (pitch / self.rate)[..., None] * self.samples  # [B, H, F, hop]
        angle = (angle - angle.floor()).flatten(2)  # [B, H, S]

        # sines in voiced frames, noise in the others
        voiced = voiced.repeat_interleave(self.hop, -1)  # [B, 1, S]
        sines = SINE_AMPLITUDE * torch.sin(2 * math.pi * angle + phase) + VOICED_NOISE * noise  # [B, H, S]
        return self.ffn(voiced * sines + (1 - voiced) * UNVOICED_NOISE * noise)


class Generator(nn.Module):
    """The vocoder that a voice's config.yaml describes, its weight norm folded. Weights are random until loaded.

    config: its content, with Model / Generator / params. Raises ValueError for a missing setting, and for one that no
    released voice has.
    """

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.config = config
        params = parameters(config, "Generator")
        try:
            self._build(params)
        except KeyError as error:
            raise ValueError(f"The configuration of Generator has no {error.args[0]!r}.") from error

    def _build(self, params: dict) -> None:
        channels, kernel, scales = params["channels"], params["kernel_size"], params["upsample_scales"]
        rest = {"causal": params["causal"], "bias": params["bias"]}
        activation, outputs = params.get("nonlinear_activation", "LeakyReLU"), params["out_channels"]
        if activation != "LeakyReLU" or outputs != 1:
            raise ValueError(f"A Generator of {outputs} channels with {activation} is not known: 1 with LeakyReLU is.")
        slope = params["nonlinear_activation_params"]["negative_slope"]
        self.mels, self.hop = params["in_channels"], math.prod(scales)
        self.slope = slope
        widths = [channels >> i for i in range(len(scales) + 1)]
        self.conv_pre = Conv(params["in_channels"], channels, kernel, 1, **rest)
        ups, repeats, blocks = [], [], []
        for i, (scale, size) in enumerate(zip(scales, params["upsample_kernal_sizes"], strict=True)):
            before, after = widths[i : i + 2]
            ups.append(nn.Sequential(nn.LeakyReLU(slope), Upsample(before, after, size, scale, **rest)))
            conv = Conv(before, after, kernel, 1, **rest)
            repeats.append(nn.Sequential(nn.Upsample(scale_factor=scale), nn.LeakyReLU(slope), conv))
            for size, dilations in zip(params["resblock_kernel_sizes"], params["resblock_dilations"], strict=True):
                blocks.append(ResidualStack(after, size, dilations, slope, **rest))
        self.transpose_upsamples, self.repeat_upsamples = nn.ModuleList(ups), nn.ModuleList(repeats)
        self.conv_blocks, self.stacks = nn.ModuleList(blocks), len(params["resblock_kernel_sizes"])
        self.conv_post = Conv(widths[-1], 1, kernel, 1, **rest)
        self.nsf = params.get("nsf_params")
        if self.nsf:
            self.rate, self.sines = self.nsf["sampling_rate"], self.nsf["nb_harmonics"] + 1
            self.source_module = Source(self.nsf["nb_harmonics"], self.rate, self.hop)
            strides = [math.prod(scales[i + 1 :]) for i in range(len(scales))]
            self.source_downs = nn.ModuleList(
                Downsample(*sizes, params["causal"]) for sizes in zip(widths[1:], strides, strict=True)
            )

    def forward(self, mel: Tensor, phase: Tensor | None = None, noise: Tensor | None = None) -> Tensor:
        """Sound [B, 1, S] in -1..1 for mel [B, M, F], or with NSF for mel [B, M + 2, F].

        With NSF, the last two channels are the pitch in Hz and the voicing (0 or 1). The source then needs phase
        [B, H, 1] in radians (uniform, but 0 for the first sine) and noise [B, H, S] (standard normal).
        """
        if not self.nsf:
            return self.filter(mel)
        mel, f0, voiced = mel.split([self.mels, 1, 1], 1)  # [B, M, F], [B, 1, F], [B, 1, F]
        return self.filter(mel, self.source_module(f0, voiced, phase, noise))

    def filter(self, mel: Tensor, source: Tensor | None = None) -> Tensor:
        """Sound [B, 1, S] for mel [B, M, F] without pitch and voicing, and for the source [B, 1, S] with NSF."""
        x = self.conv_pre(mel)  # [B, 256, F]
        for i, (up, repeat) in enumerate(zip(self.transpose_upsamples, self.repeat_upsamples, strict=True)):
            x = x + x.sin()  # [B, C, T]
            x = repeat(x) + up(x)  # [B, C / 2, scale * T]
            if source is not None:
                x = x + self.source_downs[i](source)
            stacks = self.conv_blocks[i * self.stacks : (i + 1) * self.stacks]
            x = sum(stack(x) for stack in stacks) / self.stacks  # [B, C / 2, scale * T]
        return self.conv_post(F.leaky_relu(x)).tanh()  # [B, 1, S]; this slope is the default of PyTorch, 0.01


def folded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with weight norm (Salimans and Kingma, 2016) folded: every weight_g and weight_v become one weight.

    Each row of weight_v is scaled to the length in weight_g. A row is an output channel of a convolution, and an input
    channel of a transposed convolution.
    """
    plain = {key: x for key, x in tensors.items() if not key.endswith((".weight_g", ".weight_v"))}
    for key, direction in tensors.items():
        if key.endswith(".weight_v"):
            name = key.removesuffix("_v")
            length = direction.flatten(1).norm(dim=1)[:, None, None]
            plain[name] = direction * (tensors[f"{name}_g"] / length)
    return plain


def load_vocoder(folder: str | Path) -> Generator:
    """The vocoder of a voice's `voc` folder, ready for inference.

    folder: config.yaml and ckpt/checkpoint_N.pth (the largest N) or model.safetensors. Raises ValueError when a file is
    missing or damaged, or does not hold the tensors of the network; the message lists missing and unknown names, and
    other shapes.
    """
    network = Generator(read_config(folder))
    tensors, source = read_tensors(folder, "model", "generator")
    check(stored_shapes(network), tensors, source)
    network.load_state_dict(folded(tensors))
    return network.eval()


def save_vocoder(folder: str | Path, network: Generator) -> Path:
    """Write the network as FP16 model.safetensors and config.yaml, as `load_vocoder` reads them; returns the folder.

    The weights are stored folded, with use_weight_norm off. Raises ValueError, and changes nothing, for a weight that
    is not finite in FP16.
    """
    params = parameters(network.config, "Generator") | {"use_weight_norm": False}
    return save(folder, network.config | {"Model": {"Generator": {"params": params}}}, network.state_dict())


def stored_shapes(network: Generator) -> dict[str, torch.Size]:
    """The shapes of the tensors in a checkpoint of the network, with weight norm if its configuration says so."""
    shapes = {key: x.shape for key, x in network.state_dict().items()}
    if not parameters(network.config, "Generator").get("use_weight_norm", True):
        return shapes
    normed = {key: shape for key, shape in shapes.items() if key.endswith(".weight")}
    lengths = {f"{key}_g": torch.Size([shape[0], 1, 1]) for key, shape in normed.items()}
    directions = {f"{key}_v": shape for key, shape in normed.items()}
    return {key: shape for key, shape in shapes.items() if key not in normed} | lengths | directions
