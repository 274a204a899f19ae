"""Trains the tiny checkpoint: `python -m notebooks.sambert_hifigan.training`.

Stages, each kept in models/sambert_hifigan-training, so that a run that was stopped goes on where it was:
  speech     Kokoro's Mandarin voices and mixtures of them say composed sentences; its durations align the symbols
  voices     the speaker encoder hears who says each of them
  acoustic   SAMBERT learns to say a sentence in the voice that an embedding describes
  vocoder    HiFi-GAN learns to turn mel spectrogram and pitch to sound, by its spectra
  finish     the vocoder goes on against critics, as in the paper, half its spectrograms now being the acoustic model's
Seeded. Writes the voice's folder, FP16 safetensors, to tiny/ and prints the quality on held-out sentences.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from notebooks.sambert_hifigan import convert
from notebooks.sambert_hifigan.data import spelled, training_sentences, trials
from notebooks.sambert_hifigan.measuring import quality
from notebooks.sambert_hifigan.network.acoustic import KanTtsSAMBERT, save_acoustic, stretch
from notebooks.sambert_hifigan.network.reference import Reference
from notebooks.sambert_hifigan.network.vocoder import Generator, save_vocoder
from notebooks.sambert_hifigan.pipeline import SPEAKERS, Synthesizer
from notebooks.sambert_hifigan.pipeline.frontend import Frontend
from notebooks.sambert_hifigan.training.alignment import BASE_F0, FFT, MELS, SPAN_F0, TABLES, Lesson, join, read_lessons
from utils import paths, weights
from utils.speech import judging
from utils.speech.kokoro_teacher import HOP, RATE, STYLE, Teacher
from utils.speech.listening import MOS, Recogniser, prepare_encoder, prepare_recogniser
from utils.speech.sentences.mandarin import HELD_OUT
from utils.speech.speaker_encoder import Voiceprint
from utils.training.loop import half, optimise
from utils.training.vocoder import Critic, Critics, opinions, spectral_error

TINY = paths.notebook_dir(__package__) / "tiny"
WORK = paths.training_dir(__package__)
NAMED = {  # the checkpoint's voices: which of Kokoro's each is
    **{"xiaobei": "zf_xiaobei", "xiaoxiao": "zf_xiaoxiao", "xiaoyi": "zf_xiaoyi"},
    **{"yunjian": "zm_yunjian", "yunxi": "zm_yunxi", "yunyang": "zm_yunyang"},
}
UNSEEN = ("af_bella", "am_puck")  # voices in no mixture, to see what becomes of new ones
SENTENCES, MIXTURES = 1600, 40  # half of the sentences are said by the named voices
STEPS = {"acoustic": 6000, "vocoder": 4000, "finish": 1600}
RATES = {"acoustic": 1e-3, "vocoder": 2e-3, "finish": 5e-4}
BATCH, SEGMENT = 16, 32  # sentences or segments of a step; frames of a segment
WORKERS = 2
SEED = 0

ACOUSTIC = {
    **{table: len(entries) for table, entries in TABLES.items()},
    **{"SE": True, "NSF": True, "num_mels": MELS + 2, "outputs_per_step": 3, "max_len": 400},
    **{"embedding_dim": 128, "encoder_num_layers": 3, "encoder_num_heads": 4, "encoder_num_units": 128},
    **{"encoder_ffn_inner_dim": 256, "encoder_dropout": 0.1, "encoder_projection_units": 64},
    **{"speaker_units": 256, "emotion_units": 4, "predictor_filter_size": 21, "predictor_fsmn_num_layers": 2},
    **{"predictor_num_memory_units": 64, "predictor_ffn_inner_dim": 128, "predictor_dropout": 0.1},
    **{"predictor_shift": 0, "predictor_lstm_units": 64, "dur_pred_prenet_units": [64, 64]},
    **{"dur_pred_lstm_units": 96, "decoder_prenet_units": [128, 128], "decoder_num_layers": 4},
    **{"decoder_num_heads": 4, "decoder_num_units": 128, "decoder_ffn_inner_dim": 256, "decoder_dropout": 0.1},
    **{"postnet_filter_size": 21, "postnet_fsmn_num_layers": 2, "postnet_num_memory_units": 128},
    **{"postnet_ffn_inner_dim": 256, "postnet_dropout": 0.1, "postnet_shift": 7, "postnet_lstm_units": 96},
}
VOCODER = {
    **{"in_channels": MELS, "out_channels": 1, "channels": 128, "kernel_size": 7, "upsample_scales": [10, 5, 2, 2]},
    **{"upsample_kernal_sizes": [20, 11, 4, 4], "resblock_kernel_sizes": [3, 7], "bias": True, "causal": False},
    **{"resblock_dilations": [[1, 3, 5]] * 2, "nonlinear_activation": "LeakyReLU"},
    **{"nonlinear_activation_params": {"negative_slope": 0.1}, "use_weight_norm": False},
    "nsf_params": {"nb_harmonics": 7, "sampling_rate": RATE},
}
CHANNELS = torch.tensor([1.0] * MELS + [8.0, 4.0])  # weights in the acoustic model's error: pitch makes the tones
LONGER = 0.15  # of the steps are of three sentences in one
NOISE = 0.2  # on the frames that the decoder is told: those that it will make itself are not right either
PERIODS = (2, 3, 5, 7, 11)  # of the critics, as in the paper
SPECTRA, FEATURES = 15.0, 2.0  # weights of both errors beside the critics' opinion


# --- speech -------------------------------------------------------------------------------------------------------


def style(teacher: Teacher, number: int) -> tuple[str, np.ndarray]:
    """Who says sentence `number`, a named voice or a mixture: name and style [510, 256].

    A mixture has the prosody of a named voice, and a timbre between a named one's and any other's of the same sex.
    """
    names = list(NAMED)
    if number % 2 == 0:
        name = names[number // 2 % len(names)]
        return name, teacher.styles[NAMED[name]]
    mixture = number // 2 % MIXTURES
    rng = np.random.default_rng([SEED, mixture])
    prosody = teacher.styles[NAMED[names[mixture % len(names)]]]
    sex = NAMED[names[mixture % len(names)]][1]
    near = [voice for voice in NAMED.values() if voice[1] == sex]
    far = [voice for voice in teacher.styles if voice[1] == sex and voice not in UNSEEN]
    share, timbre = rng.uniform(0.1, 0.8), STYLE // 2
    mixed = prosody.copy()
    mixed[:, :timbre] = share * teacher.styles[rng.choice(near)][:, :timbre]
    mixed[:, :timbre] += (1 - share) * teacher.styles[rng.choice(far)][:, :timbre]
    return f"mixture{mixture}", mixed


def record(folder: Path, texts: Sequence[str], numbers: Sequence[int]) -> None:
    """Have the sentences of these numbers said into `folder`, but for those that are there."""
    missing = [number for number in numbers if not (folder / f"{number:04}.npz").exists()]
    if not missing:
        return
    teacher, frontend = Teacher(), Frontend(TABLES)
    for done, number in enumerate(missing):
        voice, spoken_by = style(teacher, number)
        said = teacher(spelled(frontend.read(texts[number])), spoken_by)
        path = folder / f"{number:04}.npz"
        with path.with_suffix(".partial").open("wb") as file:
            samples = (said.samples * 32767).round().astype(np.int16)
            np.savez(file, text=texts[number], voice=voice, samples=samples, frames=said.frames, f0=said.f0)
        os.replace(path.with_suffix(".partial"), path)
        if done % 100 == 99:
            print(f"speech {number + 1}/{len(texts)}", flush=True)


def make_speech(count: int = SENTENCES) -> list[Path]:
    """The files of the training sentences, said where they are missing by two processes."""
    folder = WORK / "speech"
    folder.mkdir(parents=True, exist_ok=True)
    texts = training_sentences(Frontend(TABLES), count, SEED)
    Teacher()  # fetches it, before two processes want to
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        shares = [range(k, count, WORKERS) for k in range(WORKERS)]
        for worker in [pool.submit(record, folder, texts, share) for share in shares]:
            worker.result()
    return [folder / f"{number:04}.npz" for number in range(count)]


def hear_voices(lessons: Sequence[Lesson]) -> tuple[Tensor, dict[str, Tensor]]:
    """Embeddings of every sentence [n, 256], and of every voice [256], the mean of its sentences'."""
    path = WORK / f"voices-{len(lessons)}.npz"
    if not path.exists():
        voiceprint = Voiceprint(prepare_encoder())
        prints = np.stack([voiceprint.embed(x.sound) for x in tqdm(lessons, desc="voices", mininterval=5)])
        with path.with_suffix(".partial").open("wb") as file:
            np.savez(file, prints=prints)
        os.replace(path.with_suffix(".partial"), path)
    with np.load(path, allow_pickle=False) as stored:
        prints = torch.from_numpy(stored["prints"])
    voices = np.array([lesson.voice for lesson in lessons])
    means = {voice: F.normalize(prints[voices == voice].mean(0), dim=0) for voice in dict.fromkeys(voices.tolist())}
    return prints, means


# --- the acoustic model -------------------------------------------------------------------------------------------


class Sentences:
    """Batches of sentences of about the same length; every draw is a function of the generator that is passed in."""

    def __init__(self, lessons: Sequence[Lesson], prints: Tensor, means: dict[str, Tensor]) -> None:
        self.lessons, self.prints, self.means = lessons, prints, means
        self.lengths = np.array([len(lesson.mel) for lesson in lessons])

    def draw(self, count: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """As `batch`, of random sentences, each with the voice as it is in that sentence, or the mean of all."""
        order = np.argsort(self.lengths + rng.uniform(0, 60, len(self.lengths)))
        start = rng.integers(max(1, len(order) - count + 1))
        picked = order[start : start + count]
        voices = [self.prints[i] if rng.random() < 0.5 else self.means[self.lessons[i].voice] for i in picked]
        return batch([self.lessons[i] for i in picked], torch.stack(voices))


def threes(lessons: Sequence[Lesson], prints: Tensor) -> tuple[list[Lesson], Tensor]:
    """Three sentences of a voice at a time as one long one, and its embedding [n, 256]: positions up to the 200th."""
    joined, voices = [], []
    for voice in dict.fromkeys(lesson.voice for lesson in lessons):
        own = [i for i, lesson in enumerate(lessons) if lesson.voice == voice]
        for three in zip(*[iter(own)] * 3, strict=False):
            joined.append(join([lessons[i] for i in three]))
            voices.append(F.normalize(prints[list(three)].mean(0), dim=0))
    return joined, torch.stack(voices)


def batch(lessons: Sequence[Lesson], voices: Tensor) -> dict[str, Tensor]:
    """Padded tensors of B sentences and their voices [B, 256]; mask [B, T] tells symbols from padding."""
    padded = {
        field: pad_sequence([getattr(lesson, field) for lesson in lessons], batch_first=True)
        for field in ("ling", "emotion", "frames", "pitch", "energy", "mel")
    }
    counts = torch.tensor([len(lesson.emotion) for lesson in lessons])
    length = padded["emotion"].shape[1]
    return padded | {
        "mask": torch.arange(length) < counts[:, None],
        "speaker": voices[:, None].expand(-1, length, -1),
    }


class Taught(NamedTuple):
    """What the acoustic model says when it is told the truth about what came before."""

    decoded: Tensor  # [B, F, 82], and
    mel: Tensor  # [B, F, 82], with the postnet
    there: Tensor  # [B, F], True where there is a frame
    log_durations: Tensor  # [B, T]
    pitch: Tensor  # [B, T]
    energy: Tensor  # [B, T]


def teach(network: KanTtsSAMBERT, given: dict[str, Tensor], noise: float = 0.0) -> Taught:
    """Say the sentences of a `batch`, told true durations, pitch, energy and frames, those with `noise` on them."""
    mask, frames, adaptor = given["mask"], given["frames"], network.variance_adaptor
    text, speaker, emotion = network.encode(given["ling"], given["emotion"], given["speaker"], mask)
    targets = given["pitch"], given["energy"]
    adapted, condition, pitch, energy = adaptor(text, speaker, emotion, mask, targets)
    log_durations = adaptor.duration_predictor.teach(condition, (frames + 1.0).log())
    token, place = stretch(frames, network.r)
    memory, _ = network.remember(adapted, speaker, emotion, token, place)
    there = place > 0
    told = F.pad(given["mel"], (0, 0, 0, place.shape[1] - given["mel"].shape[1]))
    told = told + noise * torch.randn_like(told)
    band = int(frames[0].max() / network.r + 0.5)  # one sentence's: in time the model meets bands of all widths
    decoded = network.decoder.teach(memory, told, band, there[:, :: network.r]) * there[..., None]
    mel = decoded + network.mel_postnet(decoded, there)
    return Taught(decoded, mel, there, log_durations, pitch, energy)


def learn_to_speak(network: KanTtsSAMBERT, sentences: Sentences, longer: Sentences) -> None:
    """Teach the acoustic model to say sentences, and now and then those of `threes`."""

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        torch.manual_seed(int(rng.integers(2**31)))  # of dropout: the same when a stopped run goes on
        given = longer.draw(BATCH // 3, rng) if rng.random() < LONGER else sentences.draw(BATCH, rng)
        said, mask = teach(network, given, NOISE), given["mask"]
        target = F.pad(given["mel"], (0, 0, 0, said.there.shape[1] - given["mel"].shape[1]))
        parts = {
            "coarse": _error(said.decoded, target, said.there),
            "mel": _error(said.mel, target, said.there),
            "duration": F.mse_loss(said.log_durations[mask], (given["frames"] + 1.0).log()[mask]),
            "pitch": F.mse_loss(said.pitch[mask], given["pitch"][mask]),
            "energy": F.mse_loss(said.energy[mask], given["energy"][mask]),
        }
        return {"loss": sum(parts.values())} | parts

    optimise(WORK / "acoustic.pt", network, loss, steps=STEPS["acoustic"], rate=RATES["acoustic"])


def _error(made: Tensor, target: Tensor, there: Tensor) -> Tensor:
    """Mean absolute difference of frames, each channel with its weight."""
    return ((made - target).abs()[there] * CHANNELS).mean()


# --- the vocoder --------------------------------------------------------------------------------------------------


class Segments:
    """Random segments of sentences, by true or imagined mel spectrograms."""

    def __init__(self, lessons: Sequence[Lesson], mels: Sequence[Tensor] = ()) -> None:
        """mels: what the acoustic model makes of each lesson, [F, 80]; half of the segments are then of these."""
        self.lessons, self.mels = lessons, mels

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """mel [B, 82, SEGMENT], with pitch in Hz and voicing as the vocoder takes them, and samples [B, 1, S]."""
        frames, sounds = [], []
        for i in rng.integers(len(self.lessons), size=count):
            lesson = self.lessons[i]
            start = int(rng.integers(len(lesson.mel) - SEGMENT + 1))
            here = slice(start, start + SEGMENT)
            pitch = (lesson.mel[here, MELS] * SPAN_F0 + BASE_F0).clamp_min(30)
            mel = self.mels[i] if self.mels and rng.random() < 0.5 else lesson.mel[:, :MELS]
            frames.append(torch.cat([mel[here], pitch[:, None], lesson.mel[here, MELS + 1 :]], 1).T)
            sounds.append(lesson.samples[start * HOP : (start + SEGMENT) * HOP])
        samples = torch.from_numpy(np.stack(sounds)).float() / 32767
        return torch.stack(frames), samples[:, None]


def sing(vocoder: Generator, mel: Tensor, rng: np.random.Generator) -> Tensor:
    """Sound [B, 1, S] of mel [B, 82, F], its source begun anywhere."""
    random = torch.Generator().manual_seed(int(rng.integers(2**31)))
    phase = (torch.rand(len(mel), vocoder.sines, 1, generator=random) * 2 - 1) * torch.pi
    phase[:, 0] = 0
    noise = torch.randn(len(mel), vocoder.sines, mel.shape[2] * vocoder.hop, generator=random)
    with half():
        return vocoder(mel, phase, noise).float()


def learn_to_sound(vocoder: Generator, segments: Segments) -> None:
    """Teach the vocoder by spectra."""

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        mel, true = segments.draw(BATCH, rng)
        return {"loss": spectral_error(sing(vocoder, mel, rng), true)}

    optimise(WORK / "vocoder.pt", vocoder, loss, steps=STEPS["vocoder"], rate=RATES["vocoder"])


def finish(vocoder: Generator, segments: Segments) -> None:
    """Train the vocoder against critics."""
    network = nn.ModuleDict({"vocoder": vocoder, "critics": Critics(Critic(period) for period in PERIODS)})

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        mel, true = segments.draw(BATCH, rng)
        made = sing(vocoder, mel, rng)
        parts = opinions(network["critics"], made, true) | {"spectra": spectral_error(made, true)}
        total = parts["critics"] + parts["fooled"] + FEATURES * parts["features"] + SPECTRA * parts["spectra"]
        return {"loss": total} | parts

    optimise(WORK / "finish.pt", network, loss, steps=STEPS["finish"], rate=RATES["finish"])


@torch.no_grad()
def imagine(network: KanTtsSAMBERT, lessons: Sequence[Lesson], means: dict[str, Tensor]) -> list[Tensor]:
    """Mel spectrograms [F, 80] of the lessons by the acoustic model, told what came before."""
    made = []
    for lesson in tqdm(lessons, desc="imagined", mininterval=5):
        said = teach(network, batch([lesson], means[lesson.voice][None]))
        made.append(said.mel[0, : len(lesson.mel), :MELS].clone())
    return made


# --- the checkpoint -----------------------------------------------------------------------------------------------


def networks() -> tuple[KanTtsSAMBERT, Generator]:
    """Both networks, untrained."""
    torch.manual_seed(SEED)
    acoustic = KanTtsSAMBERT({"Model": {"KanTtsSAMBERT": {"params": ACOUSTIC}}})
    acoustic.f0 = BASE_F0, SPAN_F0
    audio = {"sampling_rate": RATE, "hop_length": HOP, "n_fft": FFT, "num_mels": MELS}
    return acoustic, Generator({"Model": {"Generator": {"params": VOCODER}}, "audio_config": audio})


def save(folder: Path, acoustic: KanTtsSAMBERT, vocoder: Generator, voices: dict[str, Tensor]) -> None:
    """Write the checkpoint folder of a voice, with embeddings of the named voices."""
    save_acoustic(folder / "am", acoustic)
    save_vocoder(folder / "voc", vocoder)
    speakers = folder / "am" / SPEAKERS
    speakers.mkdir(exist_ok=True)
    for name in NAMED:
        partial = speakers / f".{name}.partial"
        with partial.open("wb") as file:
            np.save(file, voices[name].numpy(), allow_pickle=False)
        os.replace(partial, speakers / f"{name}.npy")


def report(voices: dict[str, Tensor], recognise: Recogniser, opinion: MOS) -> None:
    """Print the quality on held-out sentences, beside the teacher's, and how near new voices are met."""
    synthesizer, teacher, voiceprint = Synthesizer(convert.prepare()), Teacher(), Voiceprint(prepare_encoder())
    examined = trials(list(NAMED))
    spellings = [spelled(synthesizer.frontend.read(text)) for text in HELD_OUT]
    said = [teacher(groups, teacher.styles[NAMED[x.speaker]]) for groups, x in zip(spellings, examined, strict=True)]
    heard = judging.transcripts([x.samples for x in said], recognise, "the teacher is heard")
    rate = judging.error_rate(heard, HELD_OUT, quality.characters)
    known = {name: voices[name].numpy() for name in NAMED}
    judge = quality.Judge(examined, recognise, voiceprint, opinion, known)
    reference = Reference(TINY, synthesizer)
    for row in quality.table(judge, {"FP16": quality.Converted(synthesizer)}, reference, rate):
        print(", ".join(f"{key} {x:.3f}" if isinstance(x, float) else f"{key} {x}" for key, x in row.items()))
    for name in UNSEEN:
        recording = np.concatenate([teacher(groups, teacher.styles[name]).samples for groups in spellings[:8]])
        wanted = voiceprint(recording, RATE)
        sound = np.concatenate([synthesizer(text, wanted)[0] for text in HELD_OUT[8:12]])
        found = voiceprint(sound, RATE)
        near = max(float(found @ voice) for voice in known.values())
        print(f"New voice {name}: cosine {found @ wanted:.3f} with its recording, {near:.3f} with the nearest known")


def main() -> None:
    """Train, save, and print the quality."""
    ears = Recogniser(prepare_recogniser()), MOS(weights.fetch("dnsmos"))  # what they lack shows before the work begins
    lessons = read_lessons(make_speech())
    prints, means = hear_voices(lessons)
    acoustic, vocoder = networks()
    learn_to_speak(acoustic, Sentences(lessons, prints, means), Sentences(*threes(lessons, prints), means))
    learn_to_sound(vocoder, Segments(lessons))
    finish(vocoder, Segments(lessons, imagine(acoustic, lessons, means)))
    save(TINY, acoustic, vocoder, means)
    report(means, *ears)


if __name__ == "__main__":
    main()
