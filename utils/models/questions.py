"""Questions with checkable answers for language models: an answer is correct when it contains the right word."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from utils import compare
from utils.models.llm import FP32_PROPERTIES

if TYPE_CHECKING:
    import openvino_genai as genai
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MAX_ANSWER_TOKENS = 32
MAX_FEWER = 5  # correct answers than PyTorch
GOAL = 43  # of the 48 answers: nine in ten correct ones, from which on a model is useful

# Question, and what a correct answer contains (regular expression, any case).
QUESTIONS = (
    ("What is the capital of France?", r"\bParis\b"),
    ("What is the capital of Italy?", r"\bRome\b"),
    ("What is the capital of Japan?", r"\bTokyo\b"),
    ("What is the capital of Germany?", r"\bBerlin\b"),
    ("What is the capital of Spain?", r"\bMadrid\b"),
    ("What is the capital of England?", r"\bLondon\b"),
    ("What is the capital of China?", r"\bBeijing\b"),
    ("What is the capital of Russia?", r"\bMoscow\b"),
    ("What is the capital of Egypt?", r"\bCairo\b"),
    ("What is the capital of Greece?", r"\bAthens\b"),
    ("What is the capital of Canada?", r"\bOttawa\b"),
    ("What is the capital of Australia?", r"\bCanberra\b"),
    ("In which country is the city of Munich?", r"\bGermany\b"),
    ("In which country is the city of Barcelona?", r"\bSpain\b"),
    ("On which continent is Kenya?", r"\bAfrica"),
    ("On which continent is Brazil?", r"\bSouth America"),
    ("Which planet is closest to the Sun?", r"\bMercury\b"),
    ("Which planet is known as the Red Planet?", r"\bMars\b"),
    ("What is the largest planet in the solar system?", r"\bJupiter\b"),
    ("What is the largest ocean on Earth?", r"\bPacific\b"),
    ("What is the tallest mountain on Earth?", r"\bEverest\b"),
    ("What is the chemical formula of water?", r"\bH2O\b|\bH₂O\b"),
    ("What is the chemical symbol of gold?", r"\bAu\b"),
    ("Which gas do plants take in from the air?", r"\bcarbon dioxide\b|\bCO2\b"),
    ("Which gas do humans need to breathe to live?", r"\boxygen\b"),
    ("At how many degrees Celsius does water boil?", r"\b100\b"),
    ("How many days are there in a week?", r"\bseven\b|\b7\b"),
    ("How many months are there in a year?", r"\btwelve\b|\b12\b"),
    ("How many hours are there in a day?", r"\b24\b|\btwenty-four\b"),
    ("How many legs does a spider have?", r"\beight\b|\b8\b"),
    ("How many sides does a triangle have?", r"\bthree\b|\b3\b"),
    ("What is 2 + 2?", r"\b4\b|\bfour\b"),
    ("What is 5 + 3?", r"\b8\b|\beight\b"),
    ("What is 10 - 4?", r"\b6\b|\bsix\b"),
    ("Who wrote Romeo and Juliet?", r"\bShakespeare\b"),
    ("Who painted the Mona Lisa?", r"\bLeonardo\b|\bda Vinci\b"),
    ("Who developed the theory of relativity?", r"\bEinstein\b"),
    ("Who was the first president of the United States?", r"\bWashington\b"),
    ("Which language is spoken in Brazil?", r"\bPortuguese\b"),
    ("Which colour do you get when you mix blue and yellow?", r"\bgreen\b"),
    ("What is the opposite of hot?", r"\bcold\b|\bcool\b"),
    ("Which animal is known as the king of the jungle?", r"\blion\b"),
    ("What do bees make?", r"\bhoney\b"),
    ("Which season comes after winter?", r"\bspring\b"),
    ("What do we call a baby dog?", r"\bpupp"),
    ("Which organ pumps blood through the body?", r"\bheart\b"),
    ("What is frozen water called?", r"\bice\b"),
    ("Which star does the Earth revolve around?", r"\bSun\b"),
)


def is_correct(answer: str, pattern: str) -> bool:
    """Whether an answer matches the pattern of its question."""
    return bool(re.search(pattern, answer, re.IGNORECASE))


def count_correct(answers: Sequence[str], questions: Sequence[tuple[str, str]] = QUESTIONS, shift: int = 0) -> int:
    """The number of correct answers; answers: one for each question.

    shift: compare each answer with the question that many places later. Raises ValueError for another number
    of answers.
    """
    if len(answers) != len(questions):
        raise ValueError(f"There are {len(questions)} questions, and {len(answers)} answers.")
    patterns = [pattern for _, pattern in questions[shift:] + questions[:shift]]
    return sum(is_correct(answer, pattern) for pattern, answer in zip(patterns, answers, strict=True))


def load_torch(checkpoint: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The transformers model of a folder in FP32, and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(checkpoint)


def ask_torch(
    model, tokenizer, questions: Sequence[tuple[str, str]] = QUESTIONS, tokens: int = MAX_ANSWER_TOKENS
) -> list[str]:
    """The answers of a transformers model with greedy decoding, in one batch padded on the left.

    tokens: the most of an answer.
    """
    import torch

    tokenizer.padding_side = "left"
    chats = [[{"role": "user", "content": question}] for question, _ in questions]
    options = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True, "padding": True}
    inputs = tokenizer.apply_chat_template(chats, **options)
    with torch.inference_mode():
        ids = model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=tokens,
            pad_token_id=tokenizer.pad_token_id,
        )  # [questions, prompt + answer]
    return tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def answer_rows(
    answers: Mapping[str, Sequence[str]],
    expected: Sequence[str],
    scrambled_answers: Sequence[str] | None = None,
    questions: Sequence[tuple[str, str]] = QUESTIONS,
    max_fewer: int = MAX_FEWER,
    goal: int | None = GOAL,
) -> list[dict]:
    """Quality rows of answers by precision.

    expected: PyTorch's answers; a precision may have `max_fewer` correct ones less. goal: the number of correct answers
    at which a model is useful. scrambled_answers: those of the scrambled model, a control.
    """
    metric = f"right answers of {len(questions)}"
    reference = count_correct(expected, questions)
    threshold = reference - max_fewer
    rows = []
    for precision, given in answers.items():
        correct = count_correct(given, questions)
        of = {"goal": goal, "of": len(questions)}
        rows.append(compare.quality(metric, precision, correct, reference, threshold, "higher", **of))
    controls = {}
    if scrambled_answers is not None:
        controls["scrambled weights"] = count_correct(scrambled_answers, questions)
    controls["the next question"] = count_correct(expected, questions, shift=1)
    return rows + [compare.control(metric, name, value, threshold, "higher") for name, value in controls.items()]


def generate(source: Path, questions: Sequence[str], tokens: int, device: str = "CPU") -> list[str]:
    """The greedy answers of openvino_genai's LLMPipeline in this process, in FP32, one by one.

    source: an IR folder, or a GGUF file. tokens: the most of an answer.
    """
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(str(source), device, **FP32_PROPERTIES)
    tokenizer = pipeline.get_tokenizer()
    texts = []
    for question in questions:
        ids = tokenizer.encode(chat_prompt(tokenizer, question), add_special_tokens=False).input_ids
        result = pipeline.generate(ids, max_new_tokens=tokens, do_sample=False, apply_chat_template=False)
        texts.append(tokenizer.decode(result.tokens[0]))
    return texts


def generate_together(
    folder: Path,
    questions: Sequence[str],
    tokens: int,
    device: str = "CPU",
    prompt: Callable[[genai.Tokenizer, str], str] | None = None,
    **properties,
) -> list[str]:
    """The greedy answers of openvino_genai's ContinuousBatchingPipeline in this process, all in one batch.

    folder: an IR. tokens: the most of an answer. prompt: makes the text that is read of a tokenizer and a question, by
    default with the chat template. properties: of the device, and `adapters`.
    """
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1  # GB
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, device, properties)
    settings = pipeline.get_config()
    settings.max_new_tokens, settings.do_sample = tokens, False
    tokenizer, prompt = pipeline.get_tokenizer(), prompt or chat_prompt
    texts = [prompt(tokenizer, question) for question in questions]
    encoded = [tokenizer.encode(text, add_special_tokens=False).input_ids for text in texts]
    results = pipeline.generate(encoded, [settings] * len(encoded))
    return [tokenizer.decode(result.m_generation_ids[0]) for result in results]


def chat_prompt(tokenizer: genai.Tokenizer, question: str) -> str:
    """A question in the chat template of a tokenizer of openvino_genai."""
    return tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)


def token_table(tokenizer, texts: Sequence[str], width: int) -> np.ndarray:
    """The token ids of texts as rows of `width` numbers, filled with -1."""
    table = np.full((len(texts), width), -1)
    for row, text in zip(table, texts, strict=True):
        ids = tokenizer(text)["input_ids"]
        row[: len(ids)] = ids
    return table
