"""Batches of drawn scenes: conversations about pictures, prompts with their drawings, and points of pictures."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from notebooks.janus_pro import data
from notebooks.janus_pro.training.settings import (
    ASSISTANT,
    BEGIN,
    BEGIN_OF_IMAGE,
    END,
    END_OF_IMAGE,
    PADDING_ID,
    PATCH_PX,
    PLACEHOLDER,
    POINTS,
    ROWS,
    SPECIAL,
    TOKENS,
    USER,
)
from utils.drawn_world import questions
from utils.drawn_world.scenes import COLOURS, PLACES, SHAPES, Scene, draw, label_maps
from utils.training.vision_language import padded

DESCRIBE_SHARE = 0.1  # of conversations: one question for the whole picture
PORTRAIT_SHARE = 0.4  # of conversations: a description of one thing after another
MAX_QUESTIONS = 6  # of the other conversations
UNPROMPTED_SHARE = 0.1  # of drawings: the prompt is replaced by padding, as classifier-free guidance needs it
KIND_SHARES = {"thing": 0.1, "place": 0.1, "count": 0.2, "several": 0.25, "relation": 0.25, "half": 0.1}  # of prompts
PLACE_WORDS = tuple(dict.fromkeys(" ".join(PLACES).split()))


def conversation(
    rng: np.random.Generator, duplicates_share: float = 0.0
) -> tuple[Image.Image, list[questions.Question]]:
    """A picture and questions about it; duplicates_share: of pictures with several things of one colour and shape."""
    if duplicates_share and rng.random() < duplicates_share:
        scene = data.scene_with_duplicates(rng)
    else:
        scene = data.any_scene(rng)
    share, asked = rng.random(), []
    if share >= DESCRIBE_SHARE + PORTRAIT_SHARE:
        asked = questions.questions(scene, rng, MAX_QUESTIONS)
    elif share >= DESCRIBE_SHARE:
        asked = questions.portraits(scene, rng)
    return draw(scene), asked or [questions.describe(scene, rng)]  # things that are all equal have no names


class Batches:
    """Drawn scenes as tensors. What is drawn depends only on the generator that a method gets."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def tokens(self, asked: list[questions.Question], picture: bool = True) -> tuple[list[int], list[int]]:
        """A conversation's token ids, and for each whether it is a target (1) or given (0).

        picture: whether the conversation begins with one. Later questions have the same form without it.
        """
        image_ids = [BEGIN_OF_IMAGE, *[PLACEHOLDER] * TOKENS, END_OF_IMAGE]
        ids, learned = [SPECIAL.index(BEGIN)], [0]
        for number, question in enumerate(asked):
            given = self.encode(f"{USER}: ")
            if picture and number == 0:
                given += image_ids
            given += self.encode(f"\n{question.text}\n\n{ASSISTANT}:")
            answer = [*self.encode(f" {question.target}"), SPECIAL.index(END)]
            ids += given + answer
            learned += [0] * len(given) + [1] * len(answer)
        return ids, learned

    def questions(self, count: int, rng: np.random.Generator, duplicates_share: float = 0.0) -> list[dict[str, Tensor]]:
        """Conversations about pictures in two batches, the shorter and the longer ones, so that little is padded.

        Each has "pixels" [n, 3, S, S], "ids" and "learned" [n, tokens].
        """
        conversations = [conversation(rng, duplicates_share) for _ in range(count)]
        rows = [self.tokens(asked) for _, asked in conversations]
        halves = np.array_split(np.argsort([len(ids) for ids, _ in rows]), 2)
        return [
            {"pixels": to_pixels([conversations[i][0] for i in half])} | padded([rows[i] for i in half], PADDING_ID)
            for half in halves
        ]

    def judgements(self, count: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """Questions about how two things lie, without a picture: the places are given, what follows is the target."""
        rows: list[tuple[list[int], list[int]]] = []
        while len(rows) < count:
            question = questions.ask(data.any_scene(rng), "relation", rng)
            if question:
                ids, learned = self.tokens([question], picture=False)
                first, second, *_ = question.target.split(", ")
                begin = learned.index(1) + len(self.encode(f" {first}, {second}"))
                rows.append((ids, [int(place >= begin) for place in range(len(ids))]))
        return padded(rows, PADDING_ID)

    def prompts(self, count: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """Prompts with correct drawings, some with padding in place of the prompt; keys as in `questions`."""
        scenes, rows = [], []
        for _ in range(count):
            kind = str(rng.choice(list(KIND_SHARES), p=list(KIND_SHARES.values())))
            prompted = rng.random() >= UNPROMPTED_SHARE
            if kind == "half":
                scene, prompt = data.partial_prompt(rng)
            else:  # prompts for held-out pairs are for tests; without a prompt, any pair may be drawn
                pairs = data.TRAINING_PAIRS if prompted else data.ALL_PAIRS
                scene, prompt = data.random_prompt(rng, kind, pairs=pairs)
            words = self.encode(f"{USER}: {prompt.text}\n\n{ASSISTANT}:")
            given = [SPECIAL.index(BEGIN), *(words if prompted else [PADDING_ID] * len(words))]
            drawn = [BEGIN_OF_IMAGE, *[PLACEHOLDER] * (TOKENS - 1)]  # each predicts the next; the last is not an input
            rows.append((given + drawn, [0] * len(given) + [1] * len(drawn)))
            scenes.append(scene)
        return {"pixels": to_pixels([draw(scene) for scene in scenes])} | padded(rows, PADDING_ID)

    def names(self) -> list[Tensor]:
        """Token ids [k] of the names of all shapes, of all colours, and of PLACE_WORDS, as words within a text."""
        aspects = SHAPES, list(COLOURS), PLACE_WORDS
        return [torch.tensor([self.encode(f" {name}") for name in names])[:, 0] for names in aspects]

    def points(self, count: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """Pictures as "pixels", and as "truth" the classes at the points of each patch [n, patches, points, 2]."""
        scenes = [data.any_scene(rng) for _ in range(count)]
        return {"pixels": to_pixels([draw(x) for x in scenes]), "truth": torch.stack([at_points(x) for x in scenes])}


def to_pixels(pictures: list[Image.Image]) -> Tensor:
    """Pictures as [n, 3, S, S] in -1..1."""
    return torch.from_numpy(np.stack([np.asarray(x) for x in pictures])).permute(0, 3, 1, 2).float() / 127.5 - 1


def at_points(scene: Scene) -> Tensor:
    """Shape and colour at the points of each patch of a scene [patches, points, 2], as `label_maps` numbers them."""
    step = PATCH_PX // POINTS
    points = label_maps(scene)[:2, step // 2 :: step, step // 2 :: step].astype(np.int64)
    points = points.reshape(2, ROWS, POINTS, ROWS, POINTS)  # [2, row, y in the patch, column, x in the patch]
    points = points.transpose(1, 3, 2, 4, 0)  # [row, column, y, x, 2]
    return torch.from_numpy(points.reshape(TOKENS, POINTS**2, 2))
