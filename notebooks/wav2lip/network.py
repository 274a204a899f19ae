"""Wav2Lip, its lip-sync expert and the face detector S3FD in PyTorch, with the key names of the released checkpoints.

Prajwal et al., "A Lip Sync Expert Is All You Need for Speech to Lip Generation In the Wild", ACM Multimedia 2020: an
encoder-decoder draws the lower half of a face from a piece of sound. In training, an expert that can tell lips in sync
from lips out of sync scores the result. Zhang et al., "S3FD: Single Shot Scale-invariant Face Detector", ICCV 2017,
finds the face first.

Shape comments show the channels of the released width; with `width` below 1 there are fewer.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from utils.models.tensors import save_half, tensor_mismatches
from utils.weights import load_torch

Size = int | tuple[int, int]


class Conv(nn.Module):
    """Convolution, batch normalisation and ReLU; with `residual` the input is added before the ReLU."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, stride: Size = 1, padding: int = 1, residual: bool = False
    ) -> None:
        super().__init__()
        self.conv_block = nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.BatchNorm2d(outputs))
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv_block(x)  # [B, outputs, h, w]
        return F.relu(y + x if self.residual else y)


class Upsample(nn.Module):
    """Transposed convolution (kernel 3), batch normalisation and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 2, padding: int = 1) -> None:
        super().__init__()
        self.conv_block = nn.Sequential(
            nn.ConvTranspose2d(inputs, outputs, 3, stride, padding, output_padding=stride - 1),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv_block(x))


def residuals(channels: int, count: int) -> list[Conv]:
    """Layers that keep the shape and add their input."""
    return [Conv(channels, channels, residual=True) for _ in range(count)]


def audio_encoder(width: float, last: int) -> nn.Sequential:
    """[B, 1, 80, 16] mel frames to [B, 512 * width, 1, 1]; `last`: residual layers of the last stage."""
    a, b, c, d, e = _channels(width, 32, 64, 128, 256, 512)
    return nn.Sequential(
        Conv(1, a),  # [B, 32, 80, 16]
        *residuals(a, 2),
        Conv(a, b, stride=(3, 1)),  # [B, 64, 27, 16]
        *residuals(b, 2),
        Conv(b, c, stride=3),  # [B, 128, 9, 6]
        *residuals(c, 2),
        Conv(c, d, stride=(3, 2)),  # [B, 256, 3, 3]
        *residuals(d, last),
        Conv(d, e, padding=0),  # [B, 512, 1, 1]
        Conv(e, e, kernel=1, padding=0),
    )


class Wav2Lip(nn.Module):
    """The generator. `width` scales the channels: 1 is the released network, of 36.3 million parameters."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        self.width = width
        a, b, c, d, e, f = _channels(width, 16, 32, 64, 128, 256, 512)
        self.face_encoder_blocks = nn.ModuleList(
            nn.Sequential(*layers)
            for layers in (
                [Conv(6, a, kernel=7, padding=3)],  # [B, 16, 96, 96]
                [Conv(a, b, stride=2), *residuals(b, 2)],  # [B, 32, 48, 48]
                [Conv(b, c, stride=2), *residuals(c, 3)],  # [B, 64, 24, 24]
                [Conv(c, d, stride=2), *residuals(d, 2)],  # [B, 128, 12, 12]
                [Conv(d, e, stride=2), *residuals(e, 2)],  # [B, 256, 6, 6]
                [Conv(e, f, stride=2), *residuals(f, 1)],  # [B, 512, 3, 3]
                [Conv(f, f, padding=0), Conv(f, f, kernel=1, padding=0)],  # [B, 512, 1, 1]
            )
        )
        self.audio_encoder = audio_encoder(width, last=1)
        (g,) = _channels(width, 384)
        self.face_decoder_blocks = nn.ModuleList(
            nn.Sequential(*layers)
            for layers in (
                [Conv(f, f, kernel=1, padding=0)],  # [B, 512, 1, 1]
                [Upsample(2 * f, f, stride=1, padding=0), *residuals(f, 1)],  # [B, 512, 3, 3]
                [Upsample(2 * f, f), *residuals(f, 2)],  # [B, 512, 6, 6]
                [Upsample(f + e, g), *residuals(g, 2)],  # [B, 384, 12, 12]
                [Upsample(g + d, e), *residuals(e, 2)],  # [B, 256, 24, 24]
                [Upsample(e + c, d), *residuals(d, 2)],  # [B, 128, 48, 48]
                [Upsample(d + b, c), *residuals(c, 2)],  # [B, 64, 96, 96]
            )
        )
        self.output_block = nn.Sequential(Conv(c + a, b), nn.Conv2d(b, 3, 1), nn.Sigmoid())

    def forward(self, audio: Tensor, face: Tensor) -> Tensor:
        """Faces [B, 3, 96, 96] in 0..1, BGR, whose lips say `audio` [B, 1, 80, 16] (16 mel frames).

        face: [B, 6, 96, 96] in 0..1, BGR: the face with its lower half black, then a face of the same person to copy
        from. For T consecutive frames, audio [B, T, 1, 80, 16] and face [B, 6, T, 96, 96] give [B, 3, T, 96, 96].
        """
        if face.ndim == 5:
            batch = face.shape[0]
            drawn = self(audio.flatten(0, 1), face.transpose(1, 2).flatten(0, 1))  # [B * T, 3, 96, 96]
            return drawn.unflatten(0, (batch, -1)).transpose(1, 2)
        features = self.encode(face)  # from [B, 16, 96, 96] down to [B, 512, 1, 1]
        x = self.audio_encoder(audio)  # [B, 512, 1, 1]
        for block in self.face_decoder_blocks:
            x = torch.cat([block(x), features.pop()], 1)  # from [B, 512 + 512, 1, 1] up to [B, 64 + 16, 96, 96]
        return self.output_block(x)

    def encode(self, face: Tensor) -> list[Tensor]:
        """The output of each block of the face encoder, from [B, 16, 96, 96] down to [B, 512, 1, 1]."""
        features = []
        for block in self.face_encoder_blocks:
            face = block(face)
            features.append(face)
        return features


class SyncNet(nn.Module):
    """The expert: embeds sound and lips so that matching pairs are close to each other. `width` as in Wav2Lip."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        self.width = width
        a, b, c, d, e = _channels(width, 32, 64, 128, 256, 512)
        self.face_encoder = nn.Sequential(
            Conv(15, a, kernel=7, padding=3),  # [B, 32, 48, 96]
            Conv(a, b, kernel=5, stride=(1, 2)),  # [B, 64, 46, 47]
            *residuals(b, 2),
            Conv(b, c, stride=2),  # [B, 128, 23, 24]
            *residuals(c, 3),
            Conv(c, d, stride=2),  # [B, 256, 12, 12]
            *residuals(d, 2),
            Conv(d, e, stride=2),  # [B, 512, 6, 6]
            *residuals(e, 2),
            Conv(e, e, stride=2),  # [B, 512, 3, 3]
            Conv(e, e, padding=0),  # [B, 512, 1, 1]
            Conv(e, e, kernel=1, padding=0),
        )
        self.audio_encoder = audio_encoder(width, last=2)

    def forward(self, audio: Tensor, face: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of length 1, [B, 512 * width] each, of audio [B, 1, 80, 16] and face [B, 15, 48, 96].

        face: the lower halves of five consecutive frames, joined along the channels, BGR in 0..1.
        """
        embeddings = self.audio_encoder(audio), self.face_encoder(face)  # [B, 512, 1, 1] each
        return tuple(F.normalize(x.flatten(1), dim=1) for x in embeddings)


class L2Norm(nn.Module):
    """Scales every place's channels to length 1, then each channel by a weight."""

    def __init__(self, channels: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels,), scale))

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10) * self.weight[:, None, None]


class S3FD(nn.Module):
    """The face detector: VGG-16 with heads at six scales, of 22.5 million parameters."""

    STAGES = {1: (64, 64), 2: (128, 128), 3: (256, 256, 256), 4: (512, 512, 512), 5: (512, 512, 512)}
    HEADS = {  # layers whose features give scores and boxes, finest first: channels
        "conv3_3_norm": 256,
        "conv4_3_norm": 512,
        "conv5_3_norm": 512,
        "fc7": 1024,
        "conv6_2": 512,
        "conv7_2": 256,
    }

    def __init__(self) -> None:
        super().__init__()
        inputs = 3
        for stage, sizes in self.STAGES.items():
            for i, outputs in enumerate(sizes, 1):
                setattr(self, f"conv{stage}_{i}", nn.Conv2d(inputs, outputs, 3, padding=1))
                inputs = outputs
        self.fc6 = nn.Conv2d(512, 1024, 3, padding=3)
        self.fc7 = nn.Conv2d(1024, 1024, 1)
        self.conv6_1 = nn.Conv2d(1024, 256, 1)
        self.conv6_2 = nn.Conv2d(256, 512, 3, stride=2, padding=1)
        self.conv7_1 = nn.Conv2d(512, 128, 1)
        self.conv7_2 = nn.Conv2d(128, 256, 3, stride=2, padding=1)
        for stage, scale in ((3, 10.0), (4, 8.0), (5, 5.0)):
            setattr(self, f"conv{stage}_3_norm", L2Norm(self.STAGES[stage][-1], scale))
        for name, channels in self.HEADS.items():
            classes = 4 if name == "conv3_3_norm" else 2
            setattr(self, f"{name}_mbox_conf", nn.Conv2d(channels, classes, 3, padding=1))
            setattr(self, f"{name}_mbox_loc", nn.Conv2d(channels, 4, 3, padding=1))

    def forward(self, image: Tensor) -> list[Tensor]:
        """Twelve maps: for strides 4, 8 ... 128, scores [B, 2, h, w] (background, face; no softmax) and offsets
        [B, 4, h, w] of boxes from priors of 4 strides' size.

        image: [B, 3, H, W], 0..255 less the means (104, 117, 123).
        """
        features: dict[str, Tensor] = {}
        x = image
        for stage, sizes in self.STAGES.items():
            for i in range(1, len(sizes) + 1):
                x = F.relu(self.get_submodule(f"conv{stage}_{i}")(x))
            if stage >= 3:
                # [B, 256, H / 4, W / 4], [B, 512, H / 8, W / 8], [B, 512, H / 16, W / 16]
                features[f"conv{stage}_3_norm"] = self.get_submodule(f"conv{stage}_3_norm")(x)
            x = F.max_pool2d(x, 2)
        x = F.relu(self.fc6(x))  # [B, 1024, h, w] with h = H / 32 + 4, w = W / 32 + 4: its padding is wide
        x = F.relu(self.fc7(x))
        features["fc7"] = x
        for stage in (6, 7):
            x = F.relu(self.get_submodule(f"conv{stage}_1")(x))
            x = F.relu(self.get_submodule(f"conv{stage}_2")(x))  # h and w halved, rounded up; 512, then 256 channels
            features[f"conv{stage}_2"] = x
        maps = []
        for name in self.HEADS:
            scores = self.get_submodule(f"{name}_mbox_conf")(features[name])  # [B, 2, h, w], finest [B, 4, h, w]
            background = scores[:, :-1].amax(1, keepdim=True)  # the finest scale has three kinds of background
            maps.append(torch.cat([background, scores[:, -1:]], 1))  # [B, 2, h, w]
            maps.append(self.get_submodule(f"{name}_mbox_loc")(features[name]))  # [B, 4, h, w]
        return maps


def load_released(path: str | Path, network: nn.Module) -> nn.Module:
    """Fill `network` from a checkpoint of the authors' and return it, ready for inference.

    path: `wav2lip.pth`, `wav2lip_gan.pth`, `lipsync_expert.pth` or `s3fd-619a316812.pth`. Code pickled in the file is
    not run. Raises ValueError when the file cannot be read, or when its tensors are not those of the network: the
    message lists missing and unknown names and other shapes. The network then stays unchanged.
    """
    path, name = Path(path), type(network).__name__
    if not path.is_file():
        raise ValueError(f"{path} is not there. Give the checkpoint file for {name}.")
    stored = load_torch(path)
    tensors = stored.get("state_dict", stored) if isinstance(stored, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(x, Tensor) for x in tensors.values()):
        raise ValueError(f"{path} holds no state dict. Give the checkpoint file for {name}.")
    return _fill(network, {key.removeprefix("module."): x for key, x in tensors.items()}, path)


def save_tiny(folder: str | Path, wav2lip: Wav2Lip, syncnet: SyncNet) -> Path:
    """Write both networks as FP16 safetensors, and their widths to config.json; returns the folder.

    Existing files are replaced once all new ones are written. Raises ValueError, and changes nothing, when a parameter
    is not finite in FP16.
    """
    networks = {"wav2lip": wav2lip, "syncnet": syncnet}
    widths = {name: {"width": network.width} for name, network in networks.items()}
    tensors = {f"{name}.safetensors": network.state_dict() for name, network in networks.items()}
    return save_half(folder, tensors, {"config.json": json.dumps(widths, indent=1) + "\n"})


def load_tiny(folder: str | Path) -> tuple[Wav2Lip, SyncNet]:
    """The generator and the expert that `save_tiny` wrote, in float32, ready for inference.

    Raises ValueError when a file is missing or damaged, or holds other tensors than its network has (listed).
    """
    folder = Path(folder)
    try:
        widths = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        networks = Wav2Lip(widths["wav2lip"]["width"]), SyncNet(widths["syncnet"]["width"])
        stored = [load_file(folder / f"{name}.safetensors") for name in ("wav2lip", "syncnet")]
    except Exception as error:
        raise ValueError(
            f"{folder} holds no tiny checkpoint that can be read: it needs config.json, wav2lip.safetensors and "
            f"syncnet.safetensors, as `save_tiny` writes them. ({error!r})"
        ) from error
    return tuple(_fill(network, tensors, folder) for network, tensors in zip(networks, stored, strict=True))


def _fill(network: nn.Module, tensors: dict[str, Tensor], source: Path) -> nn.Module:
    """Load the tensors into the network, all of them or none."""
    own = network.state_dict()
    shapes = ({key: x.shape for key, x in some.items()} for some in (own, tensors))
    if mismatches := tensor_mismatches(
        *shapes, not_finite=[key for key, x in tensors.items() if not torch.isfinite(x).all()]
    ):
        raise ValueError(f"{source} is no checkpoint of this {type(network).__name__}. Tensors {mismatches}.")
    network.load_state_dict(tensors)
    return network.eval()


def _channels(width: float, *sizes: int) -> list[int]:
    return [round(size * width) for size in sizes]
