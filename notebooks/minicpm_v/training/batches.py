"""Batches of drawn scenes: conversations about sliced pictures, and points of slices."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from notebooks.minicpm_v import data
from notebooks.minicpm_v.pipeline import slicing
from notebooks.minicpm_v.training.settings import CONFIG, PADDING_ID, PATCH_PX
from utils.drawn_world import questions
from utils.drawn_world.scenes import COLOURS, LETTERS, SHAPES, draw, label_maps
from utils.training.vision_language import NOWHERE, padded

DESCRIBE_SHARE = 0.1  # of conversations: one question for the whole picture
PORTRAIT_SHARE = 0.5  # of conversations: a description of one thing after another
MAX_QUESTIONS = 8  # of the other conversations
TWO_PICTURES_SHARE = 0.15  # of conversations about small pictures
LARGE_SHARE = 0.4  # of the pictures whose points are learned
LARGE_SHARE_PRINTED = 0.7  # the same, where only slices with letters are
SLICES_PER_PICTURE = 3  # of which points are learned, at most

Turns = list[tuple[Image.Image, list[questions.Question]]]  # pictures, each with the questions that follow it


def conversation(rng: np.random.Generator, large: bool) -> Turns:
    """One picture with its questions, or sometimes two small ones."""
    if large:
        scenes = [data.large_scene(rng)]
    elif rng.random() < TWO_PICTURES_SHARE:
        scenes = [data.small_scene(rng), data.small_scene(rng)]
    else:
        scenes = [data.small_scene(rng)]
    share, turns = rng.random(), []
    for scene in scenes:
        asked = []
        if share >= DESCRIBE_SHARE + PORTRAIT_SHARE:
            asked = questions.questions(scene, rng, MAX_QUESTIONS // len(scenes))
        elif share >= DESCRIBE_SHARE:
            asked = questions.portraits(scene, rng)
        # things that are all equal have no names
        turns.append((draw(scene), asked or [questions.describe(scene, rng)]))
    return turns


class Batches:
    """Drawn scenes as tensors. What is drawn depends only on the generator that a method gets."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def tokens(self, turns: Turns) -> tuple[list[Image.Image], list[int], list[int]]:
        """A conversation's slices, its token ids, and for each token whether it is a target (1) or given (0)."""
        slices, ids, learned = [], [], []
        for number, (picture, asked) in enumerate(turns):
            slices += cut(picture)
            text = slicing.placeholder(plan(picture).grid, CONFIG["query_num"], index=number) + "\n"
            for question in asked:
                given = self.encode(self.prompt(text + question.text))
                answer = self.encode(f"{question.target}<|im_end|>")
                after = self.encode("\n")
                ids += given + answer + after
                learned += [0] * len(given) + [1] * len(answer) + [0] * len(after)
                text = ""
        return slices, ids, learned

    @staticmethod
    def prompt(text: str) -> str:
        """The text of a turn, up to where the answer begins."""
        return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"

    def questions(self, count: int, rng: np.random.Generator, large: bool) -> dict[str, Tensor]:
        """A batch of conversations, see `collate`."""
        return self.collate([self.tokens(conversation(rng, large)) for _ in range(count)])

    def judgements(self, count: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """Questions about how two things lie, without a picture: the places are given, what follows is the target."""
        rows: list[tuple[list[int], list[bool]]] = []
        while len(rows) < count:
            question = questions.ask(data.small_scene(rng), "relation", rng)
            if question:
                first, second, *_ = question.target.split(", ")
                ids = self.encode(self.prompt(question.text) + f"{question.target}<|im_end|>")
                given = self.encode(self.prompt(question.text) + f"{first}, {second}")
                rows.append((ids, [place >= len(given) for place in range(len(ids))]))
        return padded(rows, PADDING_ID)

    def names(self) -> list[list[Tensor]]:
        """Token ids [k] of the names of all shapes, colours and letters, in each of their spellings.

        Shapes and colours have two, as the first word of a text and as a word within it.
        """
        spellings = [
            [SHAPES, [f" {name}" for name in SHAPES]],
            [list(COLOURS), [f" {name}" for name in COLOURS]],
            [LETTERS],
        ]
        return [[torch.tensor([self.encode(name) for name in names])[:, 0] for names in same] for same in spellings]

    def collate(self, conversations: list[tuple[list[Image.Image], list[int], list[int]]]) -> dict[str, Tensor]:
        """A batch of what `tokens` returns: the fields of slicing.Batch for all slices, "ids" and "learned"."""
        slices = to_tensors([piece for pieces, _, _ in conversations for piece in pieces])
        return slices | padded([(ids, learned) for _, ids, learned in conversations], PADDING_ID)

    def points(self, count: int, rng: np.random.Generator, printed: bool) -> dict[str, Tensor]:
        """Slices, and as "truth" the classes at four points of each patch [n, patches, 4, 3].

        NOWHERE is for points without a class. printed: only slices with letters, most of them small.
        """
        slices, truths = [], []
        while len(slices) < count:
            is_large = rng.random() < (LARGE_SHARE_PRINTED if printed else LARGE_SHARE)
            scene = data.large_scene(rng) if is_large else data.small_scene(rng)
            pieces = cut(draw(scene))
            maps = [cut(Image.fromarray(x), Image.Resampling.NEAREST) for x in label_maps(scene)]
            for number in rng.permutation(len(pieces))[: None if printed else SLICES_PER_PICTURE]:
                truth = np.stack([np.asarray(x[number]) for x in maps]).astype(np.int64)  # [3, height, width]
                if number == 0 and len(pieces) > 1:
                    truth[2][truth[2] > 0] = NOWHERE  # letters are too small to be read in the overview
                if (truth[2] > 0).any() or not printed:
                    slices.append(pieces[number])
                    truths.append(at_points(truth))
        return to_tensors(slices) | {"truth": nn.utils.rnn.pad_sequence(truths, True, NOWHERE)}


def plan(picture: Image.Image) -> slicing.Plan:
    """How a picture is sliced."""
    return slicing.plan(picture.size, resolution=data.SIDE_PX)


def cut(picture: Image.Image, resample: int = Image.Resampling.BICUBIC) -> list[Image.Image]:
    """The overview and the slices of a picture."""
    return slicing.cut(picture, plan(picture), resample)


def to_tensors(slices: list[Image.Image]) -> dict[str, Tensor]:
    """The fields of slicing.Batch as tensors."""
    batch = slicing.batch(slices, CONFIG["image_size"] // PATCH_PX)
    return {key: torch.from_numpy(x) for key, x in vars(batch).items()}


def at_points(maps: np.ndarray) -> Tensor:
    """Values of maps [3, height, width] at four points of each patch [patches, 4, 3]."""
    quarter = PATCH_PX // 4
    points = maps[:, quarter :: PATCH_PX // 2, quarter :: PATCH_PX // 2]  # [3, 2 * rows, 2 * columns]
    rows, columns = (side // 2 for side in points.shape[1:])
    points = points.reshape(3, rows, 2, columns, 2).transpose(1, 3, 2, 4, 0)  # [rows, columns, 2, 2, 3]
    return torch.from_numpy(np.ascontiguousarray(points.reshape(rows * columns, 4, 3)))
