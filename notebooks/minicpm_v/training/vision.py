"""Stages "seeing", "reading" and "naming": the vision tower learns what is where, and the resampler to pass it on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from notebooks.minicpm_v.network import MiniCPMV
from notebooks.minicpm_v.training import settings
from notebooks.minicpm_v.training.batches import Batches
from notebooks.minicpm_v.training.settings import CLASSES, GRID, PLACES
from utils.training.loop import autocast, matrices, optimise
from utils.training.vision_language import NOWHERE, naming_loss, point_cross_entropy

BATCH = 64
NAMING_WEIGHT = 2.0


class VisionReadout(nn.Module):
    """Vision tower and resampler, with linear layers that read from the output of either what is where."""

    def __init__(self, model: MiniCPMV):
        super().__init__()
        self.model = model
        width, classes = model.config["hidden_size"], 4 * sum(CLASSES)
        self.patch = nn.Linear(model.config["vision_config"]["hidden_size"], classes)
        self.query = nn.Linear(width, classes)
        self.place = nn.Linear(width, 2 * GRID)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits of shape, colour and letter at four points, [n, patches, 4, classes] from the tower and
        [n, queries, 4, classes] from the resampler; logits of each query's row and column [n, queries, 2, GRID]; the
        resampler's output [n, queries, D], from which the latter two are read."""
        mask = batch["patch_attention_mask"]  # [n, patches]
        features = self.model.vpm(batch["pixel_values"], mask, batch["position_ids"])  # [n, patches, C]
        output = self.model.resample(features, mask, batch["sizes"])  # [n, queries, D]
        return (
            self.patch(features).float().unflatten(-1, (4, -1)),
            self.query(output).float().unflatten(-1, (4, -1)),
            self.place(output).float().unflatten(-1, (2, -1)),
            output.float(),
        )


def at_queries(truth: Tensor, sizes: Tensor) -> Tensor:
    """The classes at the place of each query [n, queries, 4, 3]; NOWHERE where there is no patch.

    truth: classes of each patch [n, patches, 4, 3]. sizes: [n, 2], rows and columns of patches.
    """
    down, across = PLACES.T  # [queries] each
    rows, columns = (side[:, None] for side in sizes.T)  # [n, 1] each
    inside = (down < rows) & (across < columns)  # [n, queries]
    patch = torch.where(inside, down * columns + across, 0)  # [n, queries]
    classes = truth[torch.arange(len(truth))[:, None], patch]  # [n, queries, 4, 3]
    return classes.masked_fill(~inside[..., None, None], NOWHERE)


def train_vision(readout: VisionReadout, batches: Batches, stage: str) -> None:
    """Train vision tower and resampler.

    Stage "reading" shows mostly letters; "naming" trains the resampler alone, with the naming loss in addition.
    """
    model = readout.model
    model.llm.requires_grad_(False)
    model.vpm.requires_grad_(stage != "naming")
    names = batches.names()

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        # Draw a batch
        printed = stage == "reading" or (stage == "naming" and step % 2 == 0)
        batch = batches.points(BATCH, rng, printed)
        patch_truth = batch["truth"]  # [n, patches, 4, 3]
        query_truth = at_queries(patch_truth, batch["sizes"])  # [n, queries, 4, 3]

        # Forward
        with autocast(), sdpa_kernel(SDPBackend.MATH):  # for few patches the fused kernel's backward pass is slower
            patch_logits, query_logits, place_logits, output = readout(batch)

        # Losses
        places = PLACES.repeat(len(place_logits), 1, 1)  # [n, queries, 2]
        parts = {
            "tower": point_cross_entropy(patch_logits, patch_truth, CLASSES),
            "resampler": point_cross_entropy(query_logits, query_truth, CLASSES),
            "places": F.cross_entropy(place_logits.flatten(0, 2), places.flatten()),
        }
        if stage == "naming":
            parts["names"] = NAMING_WEIGHT * names_loss(output, query_truth, model.llm.get_input_embeddings(), names)

        # Accuracy of letters, which is printed only
        accuracies = {
            "letters, tower": letter_accuracy(patch_logits, patch_truth),
            "letters, resampler": letter_accuracy(query_logits, query_truth),
        }
        return {"loss": sum(parts.values())} | parts | accuracies

    hidden = matrices(model.vpm.encoder, model.resampler.kv_proj, model.resampler.attn)
    optimise(settings.WORK / f"{stage}.pt", readout, loss, **settings.STAGES[stage], muon=hidden)
    model.llm.requires_grad_(True)


def letter_accuracy(logits: Tensor, truth: Tensor) -> Tensor:
    """The accuracy of letters where there are some; logits [..., classes] and classes [..., 3] at points."""
    letters = logits.split(CLASSES, -1)[2].argmax(-1)
    printed = truth[..., 2] > 0
    return (letters == truth[..., 2])[printed].float().mean()


def names_loss(output: Tensor, truth: Tensor, embeddings: nn.Embedding, names: list[list[Tensor]]) -> Tensor:
    """The sum of the naming losses of shapes, colours and letters in the resampler's output [n, queries, D].

    truth: classes at a query's points [n, queries, 4, 3]. names: as `Batches.names`.
    """
    words = F.normalize(embeddings.weight, dim=-1)  # [vocabulary, D]
    total = output.new_zeros(())
    for aspect, spellings in enumerate(names):
        classes = truth[..., aspect]  # [n, queries, 4]
        where = (classes >= 0).all(-1)  # [n, queries]
        present = F.one_hot(classes.clamp_min(0), CLASSES[aspect]).amax(-2)[..., 1:].float()  # [n, queries, names]
        for ids in spellings:
            total = total + naming_loss(output, words, ids, present, where)
    return total
