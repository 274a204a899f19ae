"""Stages "seeing" and "naming": the vision tower learns what is where, and the aligner to pass it on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import JanusForConditionalGeneration

from notebooks.janus_pro.training import settings
from notebooks.janus_pro.training.batches import PLACE_WORDS, Batches
from notebooks.janus_pro.training.settings import CLASSES, POINTS, ROWS, WIDTH
from utils.drawn_world.scenes import PLACES
from utils.training.loop import autocast, matrices, optimise
from utils.training.vision_language import naming_loss, point_cross_entropy

BATCH = 48
NAMING_WEIGHT = 2.0


class VisionReadout(nn.Module):
    """Vision tower and aligner, with linear layers that read from the output of either what is where."""

    def __init__(self, model: JanusForConditionalGeneration):
        super().__init__()
        self.tower, self.aligner = model.model.vision_model, model.model.aligner
        classes = POINTS**2 * sum(CLASSES)
        self.patch = nn.Linear(self.tower.config.hidden_size, classes)
        self.aligned = nn.Linear(WIDTH, classes)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of shape and colour at points, [n, patches, points, classes], read from the tower and from the
        aligner, and the aligner's output [n, patches, D]; pixels: [n, 3, S, S]."""
        features = self.tower(pixels).last_hidden_state  # [n, patches, C]
        embeddings = self.aligner(features)  # [n, patches, D]
        tower_logits = self.patch(features).float().unflatten(-1, (POINTS**2, -1))
        aligner_logits = self.aligned(embeddings).float().unflatten(-1, (POINTS**2, -1))
        return tower_logits, aligner_logits, embeddings.float()


def train_vision(readout: VisionReadout, model: JanusForConditionalGeneration, batches: Batches, stage: str) -> None:
    """Train vision tower and aligner; in stage "naming" the aligner alone, with the naming loss in addition."""
    readout.tower.requires_grad_(stage != "naming")
    words = F.normalize(model.get_input_embeddings().weight.detach(), dim=-1)  # [vocabulary, D]
    names = batches.names()

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        # Draw a batch
        batch = batches.points(BATCH, rng)
        truth = batch["truth"]  # [n, patches, points, 2]

        # Forward
        with autocast(), sdpa_kernel(SDPBackend.MATH):  # for few patches the fused kernel's backward pass is slower
            tower_logits, aligner_logits, output = readout(batch["pixels"])

        # Losses
        parts = {
            "tower": point_cross_entropy(tower_logits, truth, CLASSES),
            "aligner": point_cross_entropy(aligner_logits, truth, CLASSES),
        }
        if stage == "naming":
            parts["names"] = NAMING_WEIGHT * names_loss(output, truth, words, names)
        return {"loss": sum(parts.values())} | parts

    hidden = matrices(readout.tower.encoder, readout.aligner)
    optimise(settings.WORK / f"{stage}.pt", readout, loss, **settings.STAGES[stage], muon=hidden)


def names_present(truth: Tensor) -> list[Tensor]:
    """Which shapes, colours and PLACE_WORDS describe each patch, [n, patches, names] each, 0 or 1.

    truth: classes at the points of the patches [n, patches, points, 2].
    """
    present = []
    for classes, count in zip(truth.unbind(-1), CLASSES, strict=True):
        present.append(F.one_hot(classes, count).amax(-2)[..., 1:].float())  # without the background
    ninth = torch.arange(ROWS) * 3 // ROWS  # of each row, and of each column
    places = [PLACES[3 * row + column].split() for row in ninth for column in ninth]  # of each patch
    where = torch.tensor([[float(word in place) for word in PLACE_WORDS] for place in places])  # [patches, words]
    return [*present, where * present[0].amax(-1, keepdim=True)]  # background has no place


def names_loss(output: Tensor, truth: Tensor, words: Tensor, names: list[Tensor]) -> Tensor:
    """The sum of the naming losses of shapes, colours and places in the aligner's output [n, patches, D].

    truth: as for `names_present`. words: [vocabulary, D], embeddings of length 1. names: as `Batches.names`.
    """
    pairs = zip(names, names_present(truth), strict=True)
    return sum(naming_loss(output, words, ids, present) for ids, present in pairs)
