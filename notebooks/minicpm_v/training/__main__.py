"""Trains the tiny checkpoint: `python -m notebooks.minicpm_v.training`.

Eight stages, whose states are kept in models/minicpm_v-training: a run that was stopped resumes there.
  seeing   vision tower and resampler learn shape, colour and letter at four points of every patch
  reading  both continue with slices that show letters
  judging  the language model learns, from text alone, what follows from the places of two things
  naming   the resampler learns to output the language model's own embeddings of names
  small    resampler and language model learn to describe pictures that stay whole and to answer questions about them
  large    both learn the same of sliced pictures, with words that only the slices show, among small ones
  mixed    both go on at a lower learning rate, with more small pictures; the weights become a mean (`refine`)
  balanced the same once more, with small pictures in every second batch
Scenes come from data.py, questions from utils.drawn_world.questions; both are drawn during training. It is seeded.
It writes FP16 safetensors, configuration and tokenizer to tiny/, and prints the accuracy of held-out questions.
"""

from __future__ import annotations

from notebooks.minicpm_v.network import save_tiny
from notebooks.minicpm_v.training.batches import Batches
from notebooks.minicpm_v.training.language import held_out_accuracy, refine, train_answers, train_judging
from notebooks.minicpm_v.training.settings import TINY, make_tokenizer, untrained
from notebooks.minicpm_v.training.vision import VisionReadout, train_vision
from utils.drawn_world.questions import KINDS
from utils.training import provenance


def main() -> None:
    """Train, save, and print the quality."""
    model, tokenizer = untrained(), make_tokenizer()
    batches = Batches(tokenizer)

    # Each part learns what it can by itself
    readout = VisionReadout(model)
    train_vision(readout, batches, "seeing")
    train_vision(readout, batches, "reading")
    train_judging(model, batches)
    train_vision(readout, batches, "naming")

    # All parts together
    train_answers(model, batches, "small")
    train_answers(model, batches, "large")
    refine(model, batches, "mixed")
    refine(model, batches, "balanced")

    # Save the checkpoint, and measure it
    save_tiny(TINY, model)
    provenance.stamp(TINY)
    tokenizer.save_pretrained(TINY)
    shares = {kind: held_out_accuracy(model, batches, kind, 100) for kind in KINDS}
    print("Held out, right: " + ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items()))


if __name__ == "__main__":
    main()
