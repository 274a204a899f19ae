"""Trains the tiny checkpoint: `python -m notebooks.wav2lip.training`.

Four stages, each kept in models/wav2lip-training, so that a run that was stopped goes on where it was:
  clips      heads are drawn and made to speak
  hearing    the generator's audio encoder learns to tell the shape of the mouth from sound
  expert     SyncNet learns which lips and sounds belong together, as in the paper
  generator  Wav2Lip learns to redraw the mouth: reconstruction first, then with the expert's opinion, as in the paper
Seeded. Writes FP16 safetensors to tiny/ and prints the loss on held-out clips.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from notebooks.wav2lip.data.clips import CROP, Clip, held_out_clip, training_clip, training_sound
from notebooks.wav2lip.network import SyncNet, Wav2Lip, save_tiny
from utils import paths
from utils.training.loop import half, optimise

TINY = paths.notebook_dir(__package__) / "tiny"
WORK = paths.training_dir(__package__)
WIDTH = 0.25
CLIPS, SOUNDS, HELD_OUT_CLIPS = 480, 4800, 12
STEPS = {"hearing": 2500, "expert": 900, "generator": 7500}
RATES = {"hearing": 2e-3, "expert": 1e-3, "generator": 2e-3}
WORKERS = 2
SYNC_FROM, SYNC_WEIGHT = 0.7, 0.03  # share of the steps without the expert; its weight after, as in the paper
LIP_WEIGHT, ELSEWHERE = 10.0, 0.3  # of the reconstruction at the lips, and in the upper half
LEVELS, LEVEL_WEIGHT = [3, 4, 5], 0.5  # blocks of the decoder whose picture is judged, too, and how much
FRAMES = 5  # in a row, that the expert sees
SEED = 0


def draw_clips(folder: Path, numbers: Sequence[int]) -> None:
    """Draw the training clips of these numbers into `folder`, but for those that are there."""
    for number in numbers:
        path = folder / f"{number:04}.npz"
        if not path.exists():
            with path.with_suffix(".partial").open("wb") as file:
                np.savez(file, **vars(training_clip(number)))
            os.replace(path.with_suffix(".partial"), path)


def make_clips(count: int = CLIPS, folder: Path = WORK / "clips") -> list[Clip]:
    """The training clips, drawn where they are missing by two processes."""
    folder.mkdir(parents=True, exist_ok=True)
    # espeak-ng's jitter depends on what was said before: fixed shares in fresh processes repeat exactly
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        for worker in [pool.submit(draw_clips, folder, range(k, count, WORKERS)) for k in range(WORKERS)]:
            worker.result()
    return [Clip(**np.load(folder / f"{number:04}.npz")) for number in range(count)]


class Batches:
    """Random pieces of clips as tensors; every draw is a function of the generator that is passed in."""

    def __init__(self, clips: Sequence[Clip]):
        self.clips = clips

    def pick(self, count: int, rng: np.random.Generator, length: int = 1):
        """`count` times a clip and the first of `length` frames in a row."""
        for number in rng.integers(len(self.clips), size=count):
            clip = self.clips[number]
            yield clip, int(rng.integers(len(clip.faces) - length + 1))

    def unlike(self, clip: Clip, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """For each row, a frame whose mouth is among the half least like it, so that it is of no use to copy."""
        apart = np.abs(clip.mouth[rows][:, None] - clip.mouth[None]).sum(2)
        return np.argsort(apart, 1)[np.arange(len(rows)), -1 - rng.integers(len(clip.mouth) // 2, size=len(rows))]

    def sounds(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Mel windows [count, 1, 80, 16] and the mouths [count, 3] that belong to them."""
        picked = [(clip.windows([frame])[0], clip.mouth[frame]) for clip, frame in self.pick(count, rng)]
        mels, mouths = (np.stack(x) for x in zip(*picked, strict=True))
        return torch.from_numpy(mels), torch.from_numpy(mouths)

    def lips(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Mel windows [count, 1, 80, 16] and lower halves of five faces in a row [count, 15, 48, 96]."""
        mels, faces = [], []
        for clip, frame in self.pick(count, rng, FRAMES):
            flip = rng.random() < 0.5
            five = clip.faces[frame : frame + FRAMES, CROP // 2 :, :: -1 if flip else 1]
            mels.append(clip.windows([frame])[0])
            faces.append(five.transpose(0, 3, 1, 2).reshape(15, CROP // 2, CROP))
        return torch.from_numpy(np.stack(mels)), torch.from_numpy(np.stack(faces)).float() / 255

    def faces(self, count: int, rng: np.random.Generator, length: int = 1) -> dict[str, Tensor]:
        """What the generator learns from, `count` times `length` frames in a row:

        mel [n, 1, 80, 16], face [n, 6, 96, 96] (masked, reference), target [n, 3, 96, 96], weight [n, 1, 96, 96] of the
        reconstruction, first [count, 1, 80, 16]: the window of each row's first frame, which the expert hears.
        """
        mels, masked, references, targets, places = [], [], [], [], []
        for clip, frame in self.pick(count, rng, length):
            rows = np.arange(frame, frame + length)
            others = self.unlike(clip, rows, rng)
            flip = rng.random() < 0.5
            for row, other in zip(rows, others, strict=True):
                pair = np.stack([clip.faces[row], clip.faces[other]])[:, :, :: -1 if flip else 1]
                pair = pair.astype(np.float32) / 255
                targets.append(pair[0])
                references.append(pair[1])
                x, y = clip.place[row]
                places.append((CROP - x if flip else x, y))
            mels.append(clip.windows(rows))
        target = torch.from_numpy(np.stack(targets)).permute(0, 3, 1, 2)
        reference = torch.from_numpy(np.stack(references)).permute(0, 3, 1, 2)
        masked = target.clone()
        masked[:, :, CROP // 2 :] = 0
        return {
            "mel": torch.from_numpy(np.concatenate(mels)),
            "first": torch.from_numpy(np.stack([m[0] for m in mels])),
            "face": torch.cat([masked, reference], 1),
            "target": target,
            "weight": weights(np.array(places, np.float32)),
        }


def weights(places: np.ndarray) -> Tensor:
    """Weight of each pixel in the reconstruction [n, 1, 96, 96]: most at the mouths (x, y) [n, 2], little above."""
    rows, columns = np.mgrid[:CROP, :CROP].astype(np.float32)
    across = (columns - places[:, 0, None, None]) / 17
    down = (rows - places[:, 1, None, None]) / 13
    weight = np.where(rows < CROP // 2, ELSEWHERE, 1.0) + LIP_WEIGHT * np.exp(-(across**2 + down**2))
    return torch.from_numpy(weight.astype(np.float32))[:, None]


class Hearing(nn.Module):
    """The generator's audio encoder, and a line that reads opening, width and visibility from its output."""

    def __init__(self, encoder: nn.Module, channels: int):
        super().__init__()
        self.encoder, self.mouth = encoder, nn.Linear(channels, 3)

    def forward(self, mel: Tensor) -> Tensor:
        return self.mouth(self.encoder(mel).flatten(1).float())


def learn_to_hear(generator: Wav2Lip, batches: Batches) -> Hearing:
    """Teach the audio encoder the shapes of the mouth."""
    network = Hearing(generator.audio_encoder, round(512 * generator.width))

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        mel, mouth = batches.sounds(128, rng)
        with half():
            heard = network(mel)
        return {"loss": F.mse_loss(heard, mouth)}

    optimise(WORK / "hearing.pt", network, loss, steps=STEPS["hearing"], rate=RATES["hearing"])
    return network


def agreement(expert: SyncNet, mel: Tensor, faces: Tensor) -> Tensor:
    """Cosine of sound and lips, of every sound with every lips [n, n]."""
    sound, lips = expert(mel, faces)
    return sound.float() @ lips.float().T


def learn_to_judge(expert: SyncNet, batches: Batches) -> None:
    """Teach SyncNet which of 48 sounds belongs to which lips."""

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        mel, faces = batches.lips(48, rng)
        with half():
            cosine = agreement(expert, mel, faces)
        right = torch.arange(len(cosine))
        total = F.cross_entropy(cosine * 15, right) + F.cross_entropy(cosine.T * 15, right)
        return {"loss": total / 2, "nearest": (cosine.argmax(1) == right).float().mean()}

    optimise(WORK / "expert.pt", expert, loss, steps=STEPS["expert"], rate=RATES["expert"])


def begin_with_a_copy(generator: Wav2Lip) -> None:
    """Set first and last layers so that the untrained generator hands the reference picture through."""
    first, last, colour = generator.face_encoder_blocks[0][0].conv_block, *generator.output_block[:2]
    last = last.conv_block
    here = range(-first[0].out_channels, 0)[:3]  # the outermost features come last in what the output block gets
    with torch.no_grad():
        colour.weight.mul_(0.1)
        colour.bias.zero_()
        for k, place in enumerate(here):
            for layer, source in ((first, 3 + k), (last, place)):
                layer[0].weight[k] = 0
                layer[0].weight[k, source, layer[0].kernel_size[0] // 2, layer[0].kernel_size[1] // 2] = 1
                layer[1].bias[k] = 2.5  # of standard deviations: so that little is cut off at zero
            colour.weight[:, k] = 0
            colour.weight[k, k] = 1.1
            colour.bias[k] = -1.1 * 2.5


class Levels(nn.Module):
    """The generator with a view on its decoder at 12, 24 and 48 pixels: a shorter way from the error to the sound."""

    def __init__(self, generator: Wav2Lip):
        super().__init__()
        self.generator = generator
        channels = [generator.face_decoder_blocks[k + 1][0].conv_block[0].in_channels for k in LEVELS]
        self.views = nn.ModuleList(nn.Conv2d(count, 3, 1) for count in channels)

    def forward(self, mel: Tensor, face: Tensor) -> list[Tensor]:
        """Pictures at 96, 12, 24 and 48 pixels."""
        features = self.generator.encode(face)
        x, seen = self.generator.audio_encoder(mel), []
        for number, block in enumerate(self.generator.face_decoder_blocks):
            x = torch.cat([block(x), features.pop()], 1)
            if number in LEVELS:
                seen.append(self.views[LEVELS.index(number)](x).sigmoid().float())
        return [self.generator.output_block(x).float(), *seen]


def difference(drawn: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean absolute difference; target and weight are brought to the size of `drawn`."""
    target, weight = (F.adaptive_avg_pool2d(x, drawn.shape[-1]) for x in (target, weight))
    return ((drawn - target).abs() * weight).mean() / weight.mean()


def learn_to_draw(generator: Wav2Lip, expert: SyncNet, batches: Batches) -> None:
    """Teach Wav2Lip to redraw the lower half of a face so that it fits the sound."""
    expert.requires_grad_(False)
    expert.eval()
    generator.audio_encoder.requires_grad_(False)
    begin_with_a_copy(generator)
    network = Levels(generator).to(memory_format=torch.channels_last)

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        generator.audio_encoder.eval()  # keeps what it heard, its statistics too
        judged = step >= SYNC_FROM * STEPS["generator"]
        batch = batches.faces(*((3, rng, FRAMES) if judged else (16, rng)))
        with half():
            drawn, *levels = network(batch["mel"], batch["face"].to(memory_format=torch.channels_last))
        errors = [difference(x, batch["target"], batch["weight"]) for x in (drawn, *levels)]
        parts = {"loss": errors[0] + LEVEL_WEIGHT * sum(errors[1:]), "error": errors[0], "small": errors[1]}
        if judged:
            lips = drawn[:, :, CROP // 2 :].unflatten(0, (-1, FRAMES)).flatten(1, 2)
            cosine = F.cosine_similarity(*expert(batch["first"], lips))
            parts["sync"] = -cosine.clamp(1e-4, 1).log().mean()
            parts["loss"] = (1 - SYNC_WEIGHT) * parts["loss"] + SYNC_WEIGHT * parts["sync"]
        return parts

    optimise(WORK / "generator.pt", network, loss, steps=STEPS["generator"], rate=RATES["generator"])
    generator.to(memory_format=torch.contiguous_format)


@torch.inference_mode()
def held_out(generator: Wav2Lip, hearing: Hearing, expert: SyncNet, clips: Sequence[Clip]) -> str:
    """What held-out clips say, in a sentence."""
    batches, rng = Batches(clips), np.random.default_rng(SEED)
    mel, mouth = batches.sounds(512, rng)
    heard = [np.corrcoef(a, b)[0, 1] for a, b in zip(hearing(mel).T.numpy(), mouth.T.numpy(), strict=True)]
    cosine = agreement(expert, *batches.lips(48, rng))
    nearest = (cosine.argmax(1) == torch.arange(len(cosine))).float().mean()
    batch = batches.faces(64, rng)
    drawn = generator(batch["mel"], batch["face"])
    shares = []
    for picture in (drawn, batch["face"][:, 3:]):
        shares.append(((picture - batch["target"]).abs() * batch["weight"]).mean() / batch["weight"].mean())
    return (
        "opening, width and visibility heard with a correlation of " + ", ".join(f"{x:.3f}" for x in heard)
        + f"; the expert finds the right lips among 48 in {nearest:.0%}; error of the drawing {shares[0]:.4f}, "
        f"of the reference picture {shares[1]:.4f}"
    )  # fmt: skip


def share_hearing(generator: Wav2Lip, expert: SyncNet) -> None:
    """The expert's audio encoder begins as the generator's, all but its last layers, whose number differs."""
    heard = generator.audio_encoder.state_dict()
    alike = {key: x for key, x in heard.items() if int(key.split(".")[0]) <= 10}
    expert.audio_encoder.load_state_dict(alike, strict=False)


def main() -> None:
    """Train, save, and print the quality."""
    torch.manual_seed(SEED)
    generator, expert = Wav2Lip(WIDTH), SyncNet(WIDTH)
    hearing = learn_to_hear(generator, Batches([training_sound(number) for number in range(SOUNDS)]))
    batches = Batches(make_clips())
    share_hearing(generator, expert)
    learn_to_judge(expert, batches)
    learn_to_draw(generator, expert, batches)
    save_tiny(TINY, generator, expert)
    print("Held out: " + held_out(generator, hearing, expert, [held_out_clip(k) for k in range(HELD_OUT_CLIPS)]))


if __name__ == "__main__":
    main()
