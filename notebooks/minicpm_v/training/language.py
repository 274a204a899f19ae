"""The language model learns to answer questions: all stages of the training but "seeing", "reading" and "naming"."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from notebooks.minicpm_v.data import held_out
from notebooks.minicpm_v.network import MiniCPMV
from notebooks.minicpm_v.training import settings
from notebooks.minicpm_v.training.batches import Batches
from notebooks.minicpm_v.training.settings import SPECIAL, VOCABULARY
from utils.training.loop import autocast, matrices, optimise
from utils.training.vision_language import FP32_ATTENTION

JUDGEMENTS = 48  # in a batch of stage "judging"
SMALL_CONVERSATIONS, LARGE_CONVERSATIONS = 16, 12  # in a batch of pictures that stay whole, or are sliced
SMALL_INTERVALS = {"small": 1, "large": 4, "mixed": 3, "balanced": 2}  # each such batch of a stage has small pictures
HARD_WEIGHT = 3.0  # of letters, yes and no among the tokens of answers: they take longest to learn


def train_judging(model: MiniCPMV, batches: Batches) -> None:
    """Train the language model, on text alone, to say which of two words fits and whether that means yes or no.

    When it is trained with pictures only, the accuracy of yes and no stays at chance for thousands of steps.
    """

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        # Draw a batch
        batch = batches.judgements(JUDGEMENTS, rng)

        # Forward
        with autocast():
            embeddings = model.llm.model.embed_tokens(batch["ids"])  # [n, tokens, D]
            logits, targets = text_logits(model, embeddings, batch)  # [k, vocabulary], [k]

        # Loss, and the accuracy of yes and no: they stand before the end
        yes_no = torch.roll(targets == SPECIAL.index("<|im_end|>"), -1)
        return {"loss": F.cross_entropy(logits, targets), "right": token_accuracy(logits, targets, yes_no)}

    hidden = matrices(model.llm.model.layers)
    optimise(settings.WORK / "judging.pt", model.llm, loss, **settings.STAGES["judging"], muon=hidden)


def train_answers(model: MiniCPMV, batches: Batches, stage: str) -> None:
    """Train resampler and language model to answer, but for stage "small" mostly or half about sliced pictures."""
    model.vpm.requires_grad_(False)
    model.llm.set_attn_implementation(FP32_ATTENTION)
    model.llm.model.compile(dynamic=True)
    letters = batches.names()[2][0]
    yes_no = torch.tensor([batches.encode(f" {word}")[0] for word in ("yes", "no")])
    weight = torch.ones(VOCABULARY)
    weight[letters] = HARD_WEIGHT
    weight[yes_no] = HARD_WEIGHT

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        # Draw a batch
        large = step % SMALL_INTERVALS[stage] > 0
        batch = batches.questions(LARGE_CONVERSATIONS if large else SMALL_CONVERSATIONS, rng, large)

        # Forward
        with autocast():
            logits, targets = answer_logits(model, batch)  # [k, vocabulary], [k]

        # Loss, and accuracies, which are printed only
        size = "large" if large else "small"
        every = torch.ones_like(targets, dtype=torch.bool)
        accuracies = {f"{size} right": token_accuracy(logits, targets, every)}
        for name, ids in (("letters", letters), ("yes and no", yes_no)):
            if (which := torch.isin(targets, ids)).any():
                accuracies[f"{size} {name} right"] = token_accuracy(logits, targets, which)
        return {"loss": F.cross_entropy(logits, targets, weight)} | accuracies

    hidden = matrices(model.llm.model.layers, model.resampler.kv_proj, model.resampler.attn)
    optimise(settings.WORK / f"{stage}.pt", model, loss, **settings.STAGES[stage], muon=hidden)


def refine(model: MiniCPMV, batches: Batches, stage: str) -> None:
    """Train as `train_answers` does, and take the mean of the weights before and after (Wortsman et al., "Model soups",
    2022): it knows more large words and counts better, and forgets fewer small words."""
    earlier = {key: values.clone() for key, values in model.state_dict().items()}
    train_answers(model, batches, stage)
    model.load_state_dict({key: earlier[key].lerp(values, 0.5) for key, values in model.state_dict().items()})


def answer_logits(model: MiniCPMV, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of the targets [k, vocabulary] in a batch of `Batches.questions`, and the targets [k]."""
    ids = batch["ids"]  # [n, tokens]
    pictures = model.encode_images(
        batch["pixel_values"], batch["patch_attention_mask"], batch["position_ids"], batch["sizes"]
    )  # [slices, queries, D]
    embeddings = model.llm.model.embed_tokens(ids).to(pictures.dtype)  # [n, tokens, D]
    placeholders = (ids == SPECIAL.index("<unk>"))[..., None]  # [n, tokens, 1]
    embeddings = embeddings.masked_scatter(placeholders, pictures.flatten(0, 1))
    return text_logits(model, embeddings, batch)


def text_logits(model: MiniCPMV, embeddings: Tensor, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of the targets [k, vocabulary], and the targets [k], for embeddings [n, tokens, D]."""
    learned = batch["learned"][:, 1:]  # [n, tokens - 1]: a hidden state predicts the next token
    hidden = model.llm.model(inputs_embeds=embeddings, use_cache=False).last_hidden_state  # [n, tokens, D]
    return model.llm.lm_head(hidden[:, :-1][learned]).float(), batch["ids"][:, 1:][learned]


def token_accuracy(logits: Tensor, targets: Tensor, which: Tensor) -> Tensor:
    """The accuracy of the targets [k] that `which` [k] selects; logits: [k, vocabulary]."""
    return (logits.argmax(-1) == targets)[which].float().mean()


@torch.inference_mode()
def held_out_accuracy(model: MiniCPMV, batches: Batches, kind: str, count: int) -> float:
    """The share of held-out questions of a kind for which every token of the answer is the most probable one."""
    correct = []
    for picture, question in held_out(kind, count):
        batch = batches.collate([batches.tokens([(picture, [question])])])
        logits, targets = answer_logits(model, batch)
        correct.append(bool((logits.argmax(-1) == targets).all()))
    return float(np.mean(correct))
