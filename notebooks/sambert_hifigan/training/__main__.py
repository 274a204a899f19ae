"""Trains the tiny checkpoint: `python -m notebooks.sambert_hifigan.training`.

The stages keep their state in models/sambert_hifigan-training, so that a stopped run continues where it was:
  speech     Kokoro synthesizes composed sentences in its Mandarin voices and mixtures of them; its durations align them
  voices     the speaker encoder embeds every sentence
  acoustic   SAMBERT is trained to synthesize a sentence in the voice of an embedding
  vocoder    HiFi-GAN is trained by spectra, to turn mel spectrogram and pitch into sound
  finish     HiFi-GAN is trained against discriminators; half of the spectrograms are SAMBERT's
The run is seeded. It writes the checkpoint, FP16 safetensors, to tiny/ and prints the quality on held-out sentences.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from notebooks.sambert_hifigan import convert
from notebooks.sambert_hifigan.data import kokoro_spelling, trials
from notebooks.sambert_hifigan.measuring import quality
from notebooks.sambert_hifigan.network.acoustic import KanTtsSAMBERT, save_acoustic
from notebooks.sambert_hifigan.network.reference import Reference
from notebooks.sambert_hifigan.network.vocoder import Generator, save_vocoder
from notebooks.sambert_hifigan.pipeline import SPEAKERS, Synthesizer
from notebooks.sambert_hifigan.training.acoustic import (
    SentenceBatches,
    join_threes,
    new_acoustic,
    predict_mels,
    train_acoustic,
)
from notebooks.sambert_hifigan.training.alignment import read_sentences
from notebooks.sambert_hifigan.training.speech import SEED, UNSEEN_VOICES, VOICES, embed_voices, make_speech
from notebooks.sambert_hifigan.training.vocoder import Segments, new_vocoder, train_adversarial, train_spectral
from utils import files, paths, weights
from utils.speech import judging
from utils.speech.kokoro_teacher import SAMPLE_RATE_HZ, Teacher
from utils.speech.listening import MOS, Recogniser, prepare_encoder, prepare_recogniser
from utils.speech.sentences.mandarin import HELD_OUT
from utils.speech.speaker_encoder import Voiceprint
from utils.training import provenance

TINY = paths.notebook_dir(__package__) / "tiny"


def new_networks() -> tuple[KanTtsSAMBERT, Generator]:
    """Both networks with random weights."""
    torch.manual_seed(SEED)
    return new_acoustic(), new_vocoder()


def save(folder: Path, acoustic: KanTtsSAMBERT, vocoder: Generator, voices: dict[str, Tensor]) -> None:
    """Write the checkpoint folder, with the embeddings [256] of VOICES."""
    save_acoustic(folder / "am", acoustic)
    save_vocoder(folder / "voc", vocoder)
    provenance.stamp(folder)
    for name in VOICES:
        with files.replaced(folder / "am" / SPEAKERS / f"{name}.npy") as partial:
            np.save(partial, voices[name].numpy(), allow_pickle=False)


def report(voices: dict[str, Tensor], recognise: Recogniser, opinion: MOS) -> None:
    """Print the quality on held-out sentences, with the error rate of the teacher, and the similarity of new voices."""
    synthesizer, teacher, voiceprint = Synthesizer(convert.prepare()), Teacher(), Voiceprint(prepare_encoder())
    examined = trials(list(VOICES))
    spellings = [kokoro_spelling(synthesizer.frontend.read(text)) for text in HELD_OUT]

    # the error rate of the teacher
    styles = [teacher.styles[VOICES[trial.speaker]] for trial in examined]
    sounds = [teacher(groups, style).samples for groups, style in zip(spellings, styles, strict=True)]
    transcripts = judging.transcripts(sounds, recognise, "the teacher is heard")
    rate = judging.error_rate(transcripts, HELD_OUT, quality.characters)

    # the quality of the checkpoint
    known = {name: voices[name].numpy() for name in VOICES}
    judge = quality.Judge(examined, recognise, voiceprint, opinion, known)
    reference = Reference(TINY, synthesizer)
    for row in quality.table(judge, {"FP16": quality.ConvertedVoice(synthesizer)}, reference, rate):
        print(", ".join(f"{key} {x:.3f}" if isinstance(x, float) else f"{key} {x}" for key, x in row.items()))

    # voices that training has not seen
    for name in UNSEEN_VOICES:
        recording = np.concatenate([teacher(groups, teacher.styles[name]).samples for groups in spellings[:8]])
        wanted = voiceprint(recording, SAMPLE_RATE_HZ)
        sound = np.concatenate([synthesizer(text, wanted)[0] for text in HELD_OUT[8:12]])
        synthesized = voiceprint(sound, SAMPLE_RATE_HZ)
        nearest = max(float(synthesized @ voice) for voice in known.values())
        cosine = synthesized @ wanted
        print(f"New voice {name}: cosine {cosine:.3f} with its recording, {nearest:.3f} with the nearest known")


def main() -> None:
    """Train, save, and print the quality."""
    work = paths.training_dir(__package__)
    recogniser, opinion = Recogniser(prepare_recogniser()), MOS(weights.fetch("dnsmos"))  # missing files show up first
    sentences = read_sentences(make_speech(work))
    prints, means = embed_voices(work, sentences)
    acoustic, vocoder = new_networks()
    batches = SentenceBatches(sentences, prints, means)
    train_acoustic(work, acoustic, batches, SentenceBatches(*join_threes(sentences, prints), means))
    train_spectral(work, vocoder, Segments(sentences))
    train_adversarial(work, vocoder, Segments(sentences, predict_mels(acoustic, sentences, means)))
    save(TINY, acoustic, vocoder, means)
    report(means, recogniser, opinion)


if __name__ == "__main__":
    main()
