"""Trains the tiny checkpoint: `python -m notebooks.janus_pro.training`.

Eight stages, whose states are kept in models/janus_pro-training: a run that was stopped resumes there.
  vq          the autoencoder learns to encode pictures as 36 tokens and to decode them
  seeing      vision tower and aligner learn shape and colour at sixteen points of every patch
  judging     the language model learns, from text alone, what follows from the places of two things
  naming      the aligner learns to output the language model's own embeddings of names and places
  both        aligner and language model learn to answer questions, language model and image head to draw
  duplicates  both tasks continue with more questions, some about several things of the same colour and shape
  pairs       they continue with an image head that also learns which colour goes with which shape
  white       the decoder of pictures learns to leave blank areas white
Scenes come from data.py, questions from utils.drawn_world.questions; both are drawn during training. It is seeded.
It writes FP16 safetensors, configuration, processor and tokenizer to tiny/, and prints the shares of correct answers
and drawings.
"""

from __future__ import annotations

import json

from notebooks.janus_pro.measuring import quality
from notebooks.janus_pro.network import save_tiny
from notebooks.janus_pro.network.reference import Reference
from notebooks.janus_pro.training.autoencoder import train_autoencoder, train_decoder
from notebooks.janus_pro.training.batches import Batches
from notebooks.janus_pro.training.image_head import add_products, join_head, split_head
from notebooks.janus_pro.training.language import train_both_tasks, train_judging
from notebooks.janus_pro.training.settings import CHECKPOINT_SETTINGS, TINY, make_tokenizer, untrained
from notebooks.janus_pro.training.vision import VisionReadout, train_vision
from utils.training import provenance


def main() -> None:
    """Train, save, and print the quality."""
    model, tokenizer = untrained(), make_tokenizer()
    batches = Batches(tokenizer)

    # Each part learns what it can by itself
    train_autoencoder(model)
    readout = VisionReadout(model)
    train_vision(readout, model, batches, "seeing")
    train_judging(model, batches)
    train_vision(readout, model, batches, "naming")

    # Both tasks together; a code's logit is the sum of those of its colour and of its part of a shape
    split_head(model)
    for stage in ("both", "duplicates"):
        train_both_tasks(model, batches, stage)
    add_products(model)
    train_both_tasks(model, batches, "pairs")
    join_head(model)

    # The decoder of pictures, on which nothing else depends
    train_decoder(model)

    # Save the checkpoint, and measure it as it will be loaded
    save_tiny(TINY, model)
    provenance.stamp(TINY)
    tokenizer.save_pretrained(TINY)
    for name, settings in CHECKPOINT_SETTINGS.items():
        (TINY / name).write_text(json.dumps(settings) + "\n", encoding="utf-8")
    print(quality.summary(Reference(TINY)))


if __name__ == "__main__":
    main()
