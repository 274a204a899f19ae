"""Stages "judging", "both", "duplicates" and "pairs": the language model learns to answer questions and to draw."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import JanusForConditionalGeneration

from notebooks.janus_pro.network import encode_pictures
from notebooks.janus_pro.training import settings
from notebooks.janus_pro.training.batches import Batches
from notebooks.janus_pro.training.settings import END, PLACEHOLDER, SPECIAL, VOCABULARY
from utils.training.loop import autocast, matrices, optimise
from utils.training.vision_language import FP32_ATTENTION

JUDGEMENTS = 48  # in a batch of stage "judging"
YES_NO_WEIGHT = 3.0  # of yes and no among the tokens of answers: they take longest to learn
DRAWING_WEIGHT = 4.0  # of the cross entropy of image tokens, most of which are background
THINGS_WEIGHT = 2.0  # of that of the other image tokens, given that they are no background


class Mix(NamedTuple):
    """The batch of a step with both tasks."""

    questions: int  # pictures with questions
    prompts: int  # pictures to draw
    drawing_weight: float  # of the loss of drawings, where that of answers has 1
    duplicates_share: float  # of the pictures with questions: several things have one colour and shape


MIXES = {"both": Mix(10, 32, 1.0, 0.0), "duplicates": Mix(20, 12, 0.2, 0.2), "pairs": Mix(10, 32, 1.0, 0.2)}


def train_judging(model: JanusForConditionalGeneration, batches: Batches) -> None:
    """Train the language model, on text alone, to say which of two words fits and whether that means yes or no.

    When it is trained with pictures only, the accuracy of yes and no stays at chance for thousands of steps.
    """
    network = nn.ModuleList([model.model.language_model, model.lm_head])

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        # Draw a batch
        batch = batches.judgements(JUDGEMENTS, rng)

        # Forward
        with autocast():
            embeddings = model.get_input_embeddings()(batch["ids"])  # [n, tokens, D]
            logits, targets = text_logits(model, embeddings, batch)  # [k, vocabulary], [k]

        # Loss, and the accuracy of yes and no: they stand before the end
        yes_no = torch.roll(targets == SPECIAL.index(END), -1)
        return {"loss": F.cross_entropy(logits, targets), "right": token_accuracy(logits, targets, yes_no)}

    hidden = matrices(model.model.language_model.layers)
    optimise(settings.WORK / "judging.pt", network, loss, **settings.STAGES["judging"], muon=hidden)


def train_both_tasks(model: JanusForConditionalGeneration, batches: Batches, stage: str) -> None:
    """Train aligner and language model to answer, and language model with its image parts to draw; stage: of MIXES."""
    network, mix = model.model, MIXES[stage]
    network.vision_model.requires_grad_(False)
    network.vqmodel.requires_grad_(False)
    network.language_model.set_attn_implementation(FP32_ATTENTION)
    yes_no = torch.tensor([batches.encode(f" {word}")[0] for word in ("yes", "no")])
    weight = torch.ones(VOCABULARY)
    weight[yes_no] = YES_NO_WEIGHT

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        with autocast():
            # Answers: logits [k, vocabulary] and targets [k] of both batches
            outputs = [
                answer_logits(model, batch) for batch in batches.questions(mix.questions, rng, mix.duplicates_share)
            ]
            words = torch.cat([logits for logits, _ in outputs])
            targets = torch.cat([tokens for _, tokens in outputs])

            # Drawings: logits [n * T, codes] and targets [n * T]
            codes, drawn = image_logits(model, batches.prompts(mix.prompts, rng))

        # Loss of answers
        answers = F.cross_entropy(words, targets, weight)
        parts = {"answers": answers}

        # Losses of drawings: of all tokens, and of those that are no background, given that they are none
        drawings = F.cross_entropy(codes, drawn)
        background = drawn.mode().values  # the most frequent token
        things = drawn != background
        without_background = codes[things].index_fill(-1, background, float("-inf"))
        thing_loss = F.cross_entropy(without_background, drawn[things])
        parts |= {"drawings": drawings, "things": thing_loss}

        # Accuracies, which are printed only
        parts["words right"] = token_accuracy(words, targets, torch.ones_like(targets, dtype=torch.bool))
        if (judged := torch.isin(targets, yes_no)).any():
            parts["yes and no right"] = token_accuracy(words, targets, judged)
        parts["things right"] = token_accuracy(codes, drawn, things)
        drawing_loss = DRAWING_WEIGHT * drawings + THINGS_WEIGHT * thing_loss
        return {"loss": answers + mix.drawing_weight * drawing_loss} | parts

    layers = [network.language_model.layers, network.aligner, network.generation_aligner, network.generation_head]
    optimise(settings.WORK / f"{stage}.pt", model, loss, **settings.STAGES[stage], muon=matrices(*layers))


def answer_logits(model: JanusForConditionalGeneration, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of the targets [k, vocabulary] in a batch of `Batches.questions`, and the targets [k]."""
    features = model.model.vision_model(batch["pixels"]).last_hidden_state  # [n, T, C]
    pictures = model.model.aligner(features)  # [n, T, D]
    return text_logits(model, insert_pictures(model, batch["ids"], pictures), batch)


def text_logits(
    model: JanusForConditionalGeneration, embeddings: Tensor, batch: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Logits of the targets [k, vocabulary], and the targets [k], for embeddings [n, tokens, D]."""
    learned = batch["learned"][:, 1:]  # [n, tokens - 1]: a hidden state predicts the next token
    hidden = model.model.language_model(inputs_embeds=embeddings, use_cache=False).last_hidden_state  # [n, tokens, D]
    return model.lm_head(hidden[:, :-1][learned]).float(), batch["ids"][:, 1:][learned]


def image_logits(model: JanusForConditionalGeneration, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of the image tokens [n * T, codes] in a batch of `Batches.prompts`, and these tokens [n * T]."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False):  # in FP32, as outside of training
        tokens = encode_pictures(model, batch["pixels"])  # [n, T]
    inputs = model.prepare_embeddings_for_image_generation(tokens[:, :-1])  # [n, T - 1, D]
    embeddings = insert_pictures(model, batch["ids"], inputs)  # [n, tokens, D]
    hidden = model.model.language_model(inputs_embeds=embeddings, use_cache=False).last_hidden_state  # [n, tokens, D]
    return model.model.generation_head(hidden[batch["learned"]]).float(), tokens.flatten()


def insert_pictures(model: JanusForConditionalGeneration, ids: Tensor, pictures: Tensor) -> Tensor:
    """Embeddings [n, tokens, D] of token ids [n, tokens], with those of pictures [n, T, D] at the placeholders."""
    embeddings = model.get_input_embeddings()(ids).to(pictures.dtype)
    return embeddings.masked_scatter((ids == PLACEHOLDER)[..., None], pictures.flatten(0, 1))


def token_accuracy(logits: Tensor, targets: Tensor, which: Tensor) -> Tensor:
    """The accuracy of the targets [k] that `which` [k] selects; logits: [k, classes]."""
    return (logits.argmax(-1) == targets)[which].float().mean()
