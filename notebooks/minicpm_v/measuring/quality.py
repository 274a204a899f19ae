"""Are the answers right? Held-out pictures and wordings, questions of every kind, at every precision.

A trial is a picture that training never saw with a question in words that it never heard. An answer counts when it is
the true one, letter for letter. The controls must lose: no picture, another one, small words without slicing, and
whoever always says what is right most often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from notebooks.minicpm_v.data import held_out
from notebooks.minicpm_v.network import load
from notebooks.minicpm_v.pipeline.slicing import batch, cut, placeholder, plan
from utils import compare
from utils.drawn_world.answers import Trial, accuracy, blank, exchanged, most_frequent
from utils.drawn_world.questions import KINDS

Ask = Callable[[Image.Image, str, bool], str]  # picture, question, whether to slice -> answer
LONGEST = 40  # tokens of an answer, reasons included
SMALL_WORDS = "label"  # the kind that slicing is for
MARGIN = 0.05  # how far below PyTorch an accuracy may be
# accuracies that the tiny checkpoint is to reach in any case; small words are meant to reach 0.85, and do not yet
AIMS = dict.fromkeys(KINDS, 0.9) | {SMALL_WORDS: 0.7}
AGREEMENT = 0.85  # of the tokens with PyTorch's
TOKENS = "token agreement with PyTorch"


def trials(count: int = 40, kinds: Sequence[str] = KINDS) -> list[Trial]:
    """`count` held-out trials of each kind."""
    return [trial for kind in kinds for trial in held_out(kind, count)]


def asking(chat) -> Ask:
    """Asks a `pipeline.VisionChat` or a `Reference`, greedily, each question in a conversation of its own."""
    return lambda picture, text, slicing: chat.ask(picture, text, max_new_tokens=LONGEST, slicing=slicing)


class Reference:
    """The unquantised network of a checkpoint folder of 2.6 in PyTorch: what all accuracies are held against.

    It shares only the slicing with the pipeline: tokenizer, chat template and generation are those of transformers.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.model = load(checkpoint, dtype=torch.float32)
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)

    @torch.inference_mode()
    def ask(self, picture: Image.Image, text: str, max_new_tokens: int, slicing: bool) -> str:
        """The greedy answer to a question about an RGB picture."""
        model, config, tokenizer = self.model, self.model.config, self.tokenizer
        slices = config["slice_config"]
        planned = plan(picture.size, slices["max_slice_nums"] if slicing else 1, slices["scale_resolution"])
        content = f"{placeholder(planned.grid, config['query_num'])}\n{text}"
        template = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        ids = tokenizer.apply_chat_template([{"role": "user", "content": content}], **template)["input_ids"]
        given = batch(cut(picture, planned), model.vpm.config.image_size // model.vpm.config.patch_size)
        arrays = given.pixel_values, given.patch_attention_mask, given.position_ids, given.sizes
        seen = model.encode_images(*map(torch.from_numpy, arrays))
        embeddings = model.llm.get_input_embeddings()(ids)
        embeddings = embeddings.masked_scatter((ids == tokenizer.unk_token_id)[..., None], seen)
        said = model.llm.generate(
            inputs_embeds=embeddings,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
        return tokenizer.decode(said[0], skip_special_tokens=True)

    def tokens(self, text: str) -> list[int]:
        """A text's token ids."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


def answers(ask: Ask, trials: Sequence[Trial], slicing: bool = True, what: str = "") -> list[str]:
    """The answer to each trial; a bar shows the progress."""
    return [ask(picture, question.text, slicing) for picture, question in tqdm(trials, desc=what, mininterval=1)]


def agreement(said: Sequence[str], reference: Sequence[str], tokens: Callable[[str], Sequence[int]]) -> float:
    """The share of tokens that are the same up to the first that differs, of the longer one of each two answers.

    tokens: a text's token ids.
    """
    same = total = 0
    for ours, theirs in zip(map(tokens, said), map(tokens, reference), strict=True):
        pairs = list(zip(ours, theirs, strict=False))
        same += next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))
        total += max(len(ours), len(theirs))
    return same / total if total else 1.0


def table(
    trials: Sequence[Trial], asks: Mapping[str, Ask], reference: Ask, tokens: Callable, aims: Mapping[str, float] = {}
) -> list[dict]:
    """Quality rows of every kind at each precision of `asks`, with the unquantised PyTorch reference and the controls.

    A threshold lies MARGIN below the reference, or at the kind's aim, where that is higher. The controls are put to
    the first of `asks`. tokens: see `agreement`.
    """
    first = next(iter(asks.values()))
    theirs = answers(reference, trials, what="PyTorch")
    wanted = accuracy(theirs, trials)
    ours = {precision: answers(ask, trials, what=precision) for precision, ask in asks.items()}
    found = {precision: accuracy(said, trials) for precision, said in ours.items()}
    other = answers(first, exchanged(trials), what="another picture")
    losers = {
        "blank picture": accuracy(answers(first, blank(trials), what="blank picture"), trials),
        "another picture": accuracy(other, trials),
        "the most frequent answer": accuracy(most_frequent(trials), trials),
    }
    small = [trial for trial in trials if trial[1].kind == SMALL_WORDS]
    losers["slicing off"] = accuracy(answers(first, small, slicing=False, what="slicing off"), small)
    rows = []
    for kind, reached in wanted.items():
        metric, goal = f"accuracy, {kind}", max(reached - MARGIN, aims.get(kind, 0.0))
        rows += [compare.quality(metric, name, x[kind], reached, goal, "higher") for name, x in found.items()]
        rows += [compare.control(metric, name, x[kind], goal, "higher") for name, x in losers.items() if kind in x]
    for precision, said in ours.items():
        rows.append(compare.quality(TOKENS, precision, agreement(said, theirs, tokens), 1.0, AGREEMENT, "higher"))
    lost = agreement(other, theirs, tokens)
    return [*rows, compare.control(TOKENS, "another picture", lost, AGREEMENT, "higher")]
