"""Trains a draft of SmolLM2 for speculative decoding: `python -m notebooks.llm_methods.training draft`.

LAYERS of the model's 30 are kept. First the model writes TEXTS dialogues with itself (`write_texts`). Then the layers
learn its probabilities of every next token in them (`distil`). The embedding, which is also the head, stays the model's
own and is not stored. Both stages keep what they have in models/llm_methods-training, so that a run that was stopped
goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from notebooks.llm_methods import convert
from notebooks.llm_methods.convert.drafting import load, packed, prune
from notebooks.llm_methods.pipeline import named
from utils import paths
from utils.bench import torch_precision
from utils.files import replaced
from utils.models.llm import tokenize
from utils.models.llm_speed import load_torch
from utils.training import provenance
from utils.training.loop import autocast, begin, matrices, optimise

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WORK = paths.training_dir(__package__)
LAYERS = (0, 10, 20, 29)
TEXTS, TOKENS = 4096, 256  # dialogues, and tokens of each
AT_ONCE = 256  # dialogues that are written at the same time, and stored in one file
HELD_OUT = 64  # dialogues, the last ones
QUESTION_TOKENS = 48  # at most, of a question that the model asks
TEMPERATURES = {"question": 1.0, "answer": 0.5}  # various questions, and answers near greedy ones
PASSAGE_TOKENS = (20, 80)
REQUESTS = ("Say this again.\n\n{}", "Go on with this text.\n\n{}", "What is this about?\n\n{}")
STEPS, BATCH, RATE = 3000, 8, 1e-3
SEED = 0


class Writer:
    """The model that talks to itself. folder: its IR; on a GPU its transformers folder."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        if torch.cuda.is_available():
            self.network = load_torch(folder, "BF16")
        else:
            import openvino_genai as genai

            scheduler = genai.SchedulerConfig()
            scheduler.cache_size = 1  # GB
            self.pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", {})
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.books = tokenize(folder, "calibration")[0]  # token ids

    def dialogues(self, numbers: Sequence[int]) -> np.ndarray:
        """Token ids [dialogues, TOKENS] of the dialogues with these numbers.

        In every fourth the question is about a passage of a book. The model asks all others itself. After its first
        answer it goes on for both sides.
        """
        before_question = self.chat("\0").partition("\0")[0]
        own = [self.ids(before_question)] * sum(number % 4 > 0 for number in numbers)
        asked = self.write(own, [QUESTION_TOKENS] * len(own), "question", numbers[0], ignore_eos=False)
        asked = iter(self.tokenizer.batch_decode(asked, skip_special_tokens=True))
        questions = [next(asked) if number % 4 else self.request(number) for number in numbers]
        starts = [self.ids(self.chat(question))[: TOKENS // 2] for question in questions]
        lengths = [TOKENS - len(start) for start in starts]
        answers = self.write(starts, lengths, "answer", numbers[0], ignore_eos=True)
        return np.array([start + answer for start, answer in zip(starts, answers, strict=True)], np.int32)

    def request(self, number: int) -> str:
        """A question about a passage of a book."""
        rng = np.random.default_rng([SEED, number])
        count = rng.integers(*PASSAGE_TOKENS)
        start = rng.integers(len(self.books) - count)
        return str(rng.choice(REQUESTS)).format(self.tokenizer.decode(self.books[start : start + count]).strip())

    def chat(self, question: str) -> str:
        """The text of a chat up to where the answer begins."""
        asked = [{"role": "user", "content": question}]
        return self.tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def write(
        self, starts: Sequence[Sequence[int]], lengths: Sequence[int], what: str, seed: int, *, ignore_eos: bool
    ) -> list[list[int]]:
        """What the model writes after each start, all at once: so many tokens, or less without ignore_eos."""
        if torch.cuda.is_available():
            torch.manual_seed(seed)
            end = None if ignore_eos else self.tokenizer.eos_token_id
            return write_with_torch(self.network, starts, lengths, TEMPERATURES[what], end)
        import openvino as ov
        import openvino_genai as genai

        prompts = [ov.Tensor(np.array([start], np.int64)) for start in starts]
        options = {"do_sample": True, "temperature": TEMPERATURES[what], "top_p": 0.95, "ignore_eos": ignore_eos}
        settings = []
        for i, length in enumerate(lengths):
            settings.append(genai.GenerationConfig(max_new_tokens=length, rng_seed=seed + i, **options))
            settings[-1].set_eos_token_id(self.tokenizer.eos_token_id)
        return [list(result.m_generation_ids[0]) for result in self.pipeline.generate(prompts, settings)]


def write_with_torch(
    network: PreTrainedModel,
    starts: Sequence[Sequence[int]],
    lengths: Sequence[int],
    temperature: float,
    end: int | None,
) -> list[list[int]]:
    """The same with a transformers model; end: the token after which a text is cut off."""
    network.generation_config.eos_token_id = None  # so that all texts of a batch are written to their full length
    longest = max(map(len, starts))
    ids = torch.tensor([[0] * (longest - len(start)) + list(start) for start in starts])  # [texts, longest]
    seen = torch.tensor([[0] * (longest - len(start)) + [1] * len(start) for start in starts])
    options = {"do_sample": True, "temperature": temperature, "top_p": 0.95, "top_k": 0, "pad_token_id": 0}
    written = network.generate(ids, attention_mask=seen, max_new_tokens=max(lengths), **options)[:, longest:].tolist()
    texts = [own[:length] for own, length in zip(written, lengths, strict=True)]
    return [own[: own.index(end) + 1] if end in own else own for own in texts]


def write_texts(folder: Path, work: Path = WORK, count: int = TEXTS) -> np.ndarray:
    """Token ids [count, TOKENS] of dialogues by the model in an IR folder.

    work: where they are stored; what is there is not written again.
    """
    files = {number: work / f"texts-{number:05}.npy" for number in range(0, count, AT_ONCE)}
    writer, begin = None, perf_counter()
    for number, file in files.items():
        if not file.is_file():
            writer = writer or Writer(folder)
            last = min(number + AT_ONCE, count)
            with replaced(file) as partial:
                np.save(partial, writer.dialogues(range(number, last)))
            print(f"dialogues {last}/{count}, {perf_counter() - begin:.0f} s", flush=True)
    return np.concatenate([np.load(file) for file in files.values()])


def distil(
    student: PreTrainedModel, teacher: PreTrainedModel, texts: np.ndarray, path: Path, steps: int = STEPS
) -> None:
    """Train the layers and the last norm of `student` to give the teacher's probabilities in texts [texts, tokens].

    path: the file of the training state.
    """
    student.requires_grad_(False)
    learned = nn.ModuleDict({"layers": student.model.layers, "norm": student.model.norm}).requires_grad_(True)

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        return compared(student, teacher, texts[rng.integers(len(texts), size=BATCH)])

    optimise(path, learned, loss, steps=steps, rate=RATE, seed=SEED, muon=matrices(learned))


def compared(student: PreTrainedModel, teacher: PreTrainedModel, texts: np.ndarray) -> dict[str, Tensor]:
    """How far a student is from its teacher in texts [texts, tokens].

    "loss": the Kullback-Leibler divergence of their probabilities of the next token, in nats. "agreement": the share of
    tokens after which both expect the same token most.
    """
    ids = torch.tensor(texts, dtype=torch.long)
    with torch.no_grad():
        wanted = teacher(ids, use_cache=False).logits.flatten(0, 1).float()  # [tokens, vocabulary]
    with autocast():
        guessed = student(ids, use_cache=False).logits.flatten(0, 1).float()
    loss = F.kl_div(guessed.log_softmax(-1), wanted.log_softmax(-1), reduction="batchmean", log_target=True)
    return {"loss": loss, "agreement": (guessed.argmax(-1) == wanted.argmax(-1)).float().mean()}


def save(student: PreTrainedModel, file: Path) -> None:
    """Write what a draft does not share with its model, at 8 bits."""
    own = {name: x for name, x in student.model.state_dict().items() if not name.startswith("embed_tokens.")}
    with replaced(file) as partial:
        save_file(packed(own), partial, provenance.metadata())


def main() -> None:
    """Write the texts, train, save, and print the agreement in texts that were held out."""
    begin()
    checkpoint, int8 = convert.checkpoint_folder(), named("INT8 asymmetric")
    on_gpu = torch.cuda.is_available()
    texts = write_texts(checkpoint if on_gpu else convert.prepare("tiny", int8.call, int8.name))
    teacher, student = load_torch(checkpoint, torch_precision()), load(checkpoint)
    prune(student, LAYERS)
    distil(student, teacher, texts[:-HELD_OUT], WORK / "draft.pt")
    save(student, convert.DRAFT)
    batches = np.split(texts[-HELD_OUT:], range(BATCH, HELD_OUT, BATCH))
    with torch.no_grad():
        shares = [float(compared(student, teacher, batch)["agreement"]) for batch in batches]
    print(f"{convert.DRAFT.name}: the same token is expected after {np.mean(shares):.1%} of the tokens held out")
