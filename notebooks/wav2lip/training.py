"""Trains the tiny checkpoint: `python -m notebooks.wav2lip.training`.

There are four stages. Each saves its state in models/wav2lip-training, and a run that was stopped resumes there:
  clips          drawn heads speak the training sentences
  audio encoder  the generator's audio encoder learns to predict the shape of the mouth from sound
  expert         SyncNet learns which lips and sounds belong together, as in the paper
  generator      Wav2Lip learns to redraw the mouth, by reconstruction alone and then with the expert, as in the paper
Training is seeded. It writes FP16 safetensors to tiny/ and prints metrics on held-out clips.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from notebooks.wav2lip.data.clips import Clip, held_out_clip, training_clip, training_sound
from notebooks.wav2lip.network import SyncNet, Wav2Lip, save_tiny
from notebooks.wav2lip.pipeline import SIDE
from utils import paths
from utils.files import replaced
from utils.training import provenance
from utils.training.loop import autocast, matrices, optimise
from utils.training.shares import side_by_side

TINY = paths.notebook_dir(__package__) / "tiny"
WORK = paths.training_dir(__package__)
WIDTH = 0.25  # of the channels of the released networks
TRAINING_CLIPS = 480
TRAINING_UTTERANCES = 9600  # clips without pictures, for the audio encoder
HELD_OUT_CLIPS = 12
STEPS = {"audio_encoder": 4000, "expert": 900, "generator": 6000}
LEARNING_RATES = {"audio_encoder": 2e-3, "expert": 1e-3, "generator": 2e-3}
SYNC_START = 0.7  # share of the steps after which the expert's loss joins
SYNC_WEIGHT = 0.03  # of the expert's loss, as in the paper
LIP_WEIGHT = 10.0  # of the reconstruction at the lips
UPPER_HALF_WEIGHT = 0.3  # of the reconstruction in the upper half of the face
SUPERVISED_BLOCKS = [3, 4, 5]  # of the decoder; their outputs are compared with the target, too
SUPERVISION_WEIGHT = 0.5
SYNC_SCALE = 15  # factor of the cosines in the expert's cross-entropy
FRAMES = 5  # consecutive video frames that the expert sees
SEED = 0


def draw_clips(folder: Path, numbers: Sequence[int]) -> None:
    """Draw the training clips of these numbers into `folder`; existing files stay."""
    for number in numbers:
        path = folder / f"{number:04}.npz"
        if not path.exists():
            with replaced(path) as unfinished:
                np.savez(unfinished, **vars(training_clip(number)))


def training_sounds(numbers: Sequence[int]) -> list[Clip]:
    """The clips without pictures of these numbers."""
    return [training_sound(number) for number in numbers]


def load_clips(count: int = TRAINING_CLIPS, folder: Path = WORK / "clips") -> list[Clip]:
    """The training clips; two processes draw those that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    side_by_side(partial(draw_clips, folder), count)
    return [Clip(**np.load(folder / f"{number:04}.npz")) for number in range(count)]


class Batches:
    """Random pieces of clips as tensors. Every draw depends only on the random generator that is passed in."""

    def __init__(self, clips: Sequence[Clip]):
        self.clips = clips

    def sample(self, count: int, rng: np.random.Generator, length: int = 1) -> Iterator[tuple[Clip, int]]:
        """Yield `count` times a clip, and the first of `length` consecutive frames in it."""
        for number in rng.integers(len(self.clips), size=count):
            clip = self.clips[number]
            yield clip, int(rng.integers(len(clip.faces) - length + 1))

    def dissimilar_frames(self, clip: Clip, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A frame for each of the frames `rows` [k], drawn from the half of the clip whose mouths differ most.

        As a reference picture, such a frame does not show the mouth to draw.
        """
        distances = np.abs(clip.mouth[rows][:, None] - clip.mouth[None]).sum(2)  # [k, frames]
        ranks = -1 - rng.integers(len(clip.mouth) // 2, size=len(rows))  # [k], from the most different one
        return np.argsort(distances, 1)[np.arange(len(rows)), ranks]

    def audio_batch(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Mel windows [count, 1, 80, 16] and the mouths [count, 3] that belong to them."""
        mels, mouths = [], []
        for clip, frame in self.sample(count, rng):
            mels.append(clip.windows([frame])[0])
            mouths.append(clip.mouth[frame])
        return torch.from_numpy(np.stack(mels)), torch.from_numpy(np.stack(mouths))

    def sync_batch(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Mel windows [count, 1, 80, 16] and the lower halves of five consecutive faces [count, 15, 48, 96]."""
        mels, faces = [], []
        for clip, frame in self.sample(count, rng, FRAMES):
            flip = rng.random() < 0.5
            five = clip.faces[frame : frame + FRAMES, SIDE // 2 :, :: -1 if flip else 1]  # [5, 48, 96, 3]
            mels.append(clip.windows([frame])[0])
            faces.append(five.transpose(0, 3, 1, 2).reshape(15, SIDE // 2, SIDE))
        return torch.from_numpy(np.stack(mels)), torch.from_numpy(np.stack(faces)).float() / 255

    def generator_batch(self, count: int, rng: np.random.Generator, length: int = 1) -> dict[str, Tensor]:
        """Inputs and targets of the generator for `count` pieces of `length` consecutive frames, n frames in all.

        mel [n, 1, 80, 16]; face [n, 6, 96, 96]: masked face, reference; target [n, 3, 96, 96]; weight [n, 1, 96, 96] of
        each pixel in the reconstruction; first [count, 1, 80, 16]: the mel window of each piece's first frame, which
        is the expert's input.
        """
        mels, targets, references, places = [], [], [], []
        for clip, frame in self.sample(count, rng, length):
            rows = np.arange(frame, frame + length)
            others = self.dissimilar_frames(clip, rows, rng)
            flip = rng.random() < 0.5
            for row, other in zip(rows, others, strict=True):
                pair = np.stack([clip.faces[row], clip.faces[other]])[:, :, :: -1 if flip else 1]  # [2, 96, 96, 3]
                pair = pair.astype(np.float32) / 255
                targets.append(pair[0])
                references.append(pair[1])
                x, y = clip.place[row]
                places.append((SIDE - x if flip else x, y))
            mels.append(clip.windows(rows))
        target = torch.from_numpy(np.stack(targets)).permute(0, 3, 1, 2)  # [n, 3, 96, 96]
        reference = torch.from_numpy(np.stack(references)).permute(0, 3, 1, 2)  # [n, 3, 96, 96]
        masked = target.clone()
        masked[:, :, SIDE // 2 :] = 0
        return {
            "mel": torch.from_numpy(np.concatenate(mels)),
            "first": torch.from_numpy(np.stack([windows[0] for windows in mels])),
            "face": torch.cat([masked, reference], 1),
            "target": target,
            "weight": pixel_weights(np.array(places, np.float32)),
        }


def pixel_weights(places: np.ndarray) -> Tensor:
    """Weight of each pixel in the reconstruction [n, 1, 96, 96]: large at the mouths (x, y) [n, 2], small above."""
    rows, columns = np.mgrid[:SIDE, :SIDE].astype(np.float32)  # [96, 96] each
    across = (columns - places[:, 0, None, None]) / 17  # [n, 96, 96]
    down = (rows - places[:, 1, None, None]) / 13  # [n, 96, 96]
    weight = np.where(rows < SIDE // 2, UPPER_HALF_WEIGHT, 1.0) + LIP_WEIGHT * np.exp(-(across**2 + down**2))
    return torch.from_numpy(weight.astype(np.float32))[:, None]


class MouthRegressor(nn.Module):
    """The generator's audio encoder with a linear layer that predicts opening, width and visibility of the mouth."""

    def __init__(self, encoder: nn.Module, channels: int):
        super().__init__()
        self.encoder = encoder
        self.mouth = nn.Linear(channels, 3)

    def forward(self, mel: Tensor) -> Tensor:
        """Mouths [B, 3] for mel windows [B, 1, 80, 16]."""
        features = self.encoder(mel).flatten(1)  # [B, channels]
        return self.mouth(features.float())


def train_audio_encoder(generator: Wav2Lip, batches: Batches) -> MouthRegressor:
    """Train the audio encoder to predict the shape of the mouth; returns it with its linear layer."""
    network = MouthRegressor(generator.audio_encoder, round(512 * generator.width))

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        mel, mouth = batches.audio_batch(128, rng)  # [128, 1, 80, 16], [128, 3]
        with autocast():
            predicted = network(mel)  # [128, 3]
        return {"loss": F.mse_loss(predicted, mouth)}

    steps, rate = STEPS["audio_encoder"], LEARNING_RATES["audio_encoder"]
    hidden = matrices(generator.audio_encoder[1:])
    optimise(WORK / "audio_encoder.pt", network, loss, steps=steps, rate=rate, muon=hidden)
    return network


def similarities(expert: SyncNet, mel: Tensor, faces: Tensor) -> Tensor:
    """Cosine similarity [n, n] of every sound (rows) with all lips (columns)."""
    sound, lips = expert(mel, faces)  # [n, channels] each
    return sound.float() @ lips.float().T


def train_expert(expert: SyncNet, batches: Batches) -> None:
    """Train SyncNet to match 48 sounds with 48 lips, by cross-entropy in both directions."""

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        mel, faces = batches.sync_batch(48, rng)  # [48, 1, 80, 16], [48, 15, 48, 96]
        with autocast():
            cosine = similarities(expert, mel, faces)  # [48, 48]
        target = torch.arange(len(cosine))
        total = F.cross_entropy(cosine * SYNC_SCALE, target) + F.cross_entropy(cosine.T * SYNC_SCALE, target)
        return {"loss": total / 2, "accuracy": (cosine.argmax(1) == target).float().mean()}

    hidden = matrices(expert.face_encoder[1:], expert.audio_encoder[1:])
    optimise(WORK / "expert.pt", expert, loss, steps=STEPS["expert"], rate=LEARNING_RATES["expert"], muon=hidden)


def initialise_as_copy(generator: Wav2Lip) -> None:
    """Set the first and last layers so that the untrained generator returns the reference picture."""
    first = generator.face_encoder_blocks[0][0].conv_block
    last = generator.output_block[0].conv_block
    colour = generator.output_block[1]  # the 1 x 1 convolution to BGR
    channels = first[0].out_channels  # the encoder's first features are the last input channels of `last`
    with torch.no_grad():
        colour.weight.mul_(0.1)
        colour.bias.zero_()
        for k in range(min(3, channels)):
            for layer, source in ((first, 3 + k), (last, k - channels)):
                convolution, normalisation = layer
                height, width = convolution.kernel_size
                convolution.weight[k] = 0
                convolution.weight[k, source, height // 2, width // 2] = 1
                normalisation.bias[k] = 2.5  # standard deviations, so that the ReLU cuts off little
            colour.weight[:, k] = 0
            colour.weight[k, k] = 1.1
            colour.bias[k] = -1.1 * 2.5


class DeepSupervision(nn.Module):
    """The generator with outputs of its decoder at 12, 24 and 48 pixels: a shorter path from the error to the sound."""

    def __init__(self, generator: Wav2Lip):
        super().__init__()
        self.generator = generator
        channels = [generator.face_decoder_blocks[k + 1][0].conv_block[0].in_channels for k in SUPERVISED_BLOCKS]
        self.views = nn.ModuleList(nn.Conv2d(count, 3, 1) for count in channels)

    def forward(self, mel: Tensor, face: Tensor) -> list[Tensor]:
        """Pictures [n, 3, side, side] with sides of 96, 12, 24 and 48 pixels, for inputs as in `Wav2Lip.forward`."""
        features = self.generator.encode(face)  # from [n, channels, 96, 96] down to [n, channels, 1, 1]
        x = self.generator.audio_encoder(mel)  # [n, channels, 1, 1]
        small = []
        for number, block in enumerate(self.generator.face_decoder_blocks):
            x = torch.cat([block(x), features.pop()], 1)  # [n, channels, side, side], side 1, 3, 6, 12, 24, 48, 96
            if number in SUPERVISED_BLOCKS:
                view = self.views[SUPERVISED_BLOCKS.index(number)]
                small.append(view(x).sigmoid().float())  # [n, 3, side, side]
        return [self.generator.output_block(x).float(), *small]


def weighted_error(drawn: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean absolute error of pictures [n, 3, side, side]; target and weight are scaled to their size."""
    target, weight = (F.adaptive_avg_pool2d(x, drawn.shape[-1]) for x in (target, weight))
    return ((drawn - target).abs() * weight).mean() / weight.mean()


def train_generator(generator: Wav2Lip, expert: SyncNet, batches: Batches) -> None:
    """Train Wav2Lip to redraw the lower half of a face so that it fits the sound."""
    expert.requires_grad_(False)
    expert.eval()
    generator.audio_encoder.requires_grad_(False)
    initialise_as_copy(generator)
    network = DeepSupervision(generator).to(memory_format=torch.channels_last)

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        generator.audio_encoder.eval()  # it stays frozen, its batch statistics too
        with_expert = step >= SYNC_START * STEPS["generator"]

        # Batch: single frames at first, later pieces of five frames, which the expert needs
        batch = batches.generator_batch(3, rng, FRAMES) if with_expert else batches.generator_batch(16, rng)

        # Pictures of the generator, at its full size and at those of deep supervision
        with autocast():
            face = batch["face"].to(memory_format=torch.channels_last)  # [n, 6, 96, 96]
            drawn, *small = network(batch["mel"], face)  # [n, 3, 96, 96]; [n, 3, 12, 12] ... [n, 3, 48, 48]

        # Reconstruction
        errors = [weighted_error(x, batch["target"], batch["weight"]) for x in (drawn, *small)]
        losses = {"loss": errors[0] + SUPERVISION_WEIGHT * sum(errors[1:]), "error": errors[0], "small": errors[1]}

        # Expert: the lower halves of five consecutive pictures against the sound of the first
        if with_expert:
            lips = drawn[:, :, SIDE // 2 :].unflatten(0, (-1, FRAMES))  # [3, 5, 3, 48, 96]
            sound, lips = expert(batch["first"], lips.flatten(1, 2))  # [3, channels] each
            cosine = F.cosine_similarity(sound, lips)  # [3]
            losses["sync"] = -cosine.clamp(1e-4, 1).log().mean()
            losses["loss"] = (1 - SYNC_WEIGHT) * losses["loss"] + SYNC_WEIGHT * losses["sync"]
        return losses

    hidden = matrices(*generator.face_encoder_blocks[1:], *generator.face_decoder_blocks)
    steps, rate = STEPS["generator"], LEARNING_RATES["generator"]
    optimise(WORK / "generator.pt", network, loss, steps=steps, rate=rate, muon=hidden)
    generator.to(memory_format=torch.contiguous_format)


@torch.inference_mode()
def held_out_summary(generator: Wav2Lip, regressor: MouthRegressor, expert: SyncNet, clips: Sequence[Clip]) -> str:
    """Metrics of the three networks on held-out clips, as text."""
    batches, rng = Batches(clips), np.random.default_rng(SEED)

    # Audio encoder: correlation of predicted and true mouths, for opening, width and visibility
    mel, mouth = batches.audio_batch(512, rng)  # [512, 1, 80, 16], [512, 3]
    pairs = zip(regressor(mel).T.numpy(), mouth.T.numpy(), strict=True)
    correlations = ", ".join(f"{np.corrcoef(predicted, true)[0, 1]:.3f}" for predicted, true in pairs)

    # Expert: how often the lips that belong to a sound are the most similar ones
    cosine = similarities(expert, *batches.sync_batch(48, rng))  # [48, 48]
    accuracy = (cosine.argmax(1) == torch.arange(len(cosine))).float().mean()

    # Generator: its reconstruction error, and that of the reference picture as a baseline
    batch = batches.generator_batch(64, rng)
    drawn, reference = generator(batch["mel"], batch["face"]), batch["face"][:, 3:]  # [64, 3, 96, 96] each
    error, baseline = (weighted_error(x, batch["target"], batch["weight"]) for x in (drawn, reference))
    return (
        f"opening, width and visibility predicted with a correlation of {correlations}; "
        f"the expert finds the right lips among 48 in {accuracy:.0%}; "
        f"error of the drawing {error:.4f}, of the reference picture {baseline:.4f}"
    )


def copy_audio_encoder(generator: Wav2Lip, expert: SyncNet) -> None:
    """Initialise the expert's audio encoder from the generator's, except the last layers, which differ in number."""
    trained = generator.audio_encoder.state_dict()
    shared = {key: x for key, x in trained.items() if int(key.split(".")[0]) <= 10}
    expert.audio_encoder.load_state_dict(shared, strict=False)


def main() -> None:
    """Train, save, and print metrics on held-out clips."""
    torch.manual_seed(SEED)
    generator, expert = Wav2Lip(WIDTH), SyncNet(WIDTH)
    utterances = [*chain(*side_by_side(training_sounds, TRAINING_UTTERANCES))]
    regressor = train_audio_encoder(generator, Batches(utterances))
    batches = Batches(load_clips())
    copy_audio_encoder(generator, expert)
    train_expert(expert, batches)
    train_generator(generator, expert, batches)
    save_tiny(TINY, generator, expert)
    provenance.stamp(TINY)
    clips = [held_out_clip(number) for number in range(HELD_OUT_CLIPS)]
    print("Held out: " + held_out_summary(generator, regressor, expert, clips))


if __name__ == "__main__":
    main()
