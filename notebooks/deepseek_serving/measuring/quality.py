"""Parity and quality of the served model: tokens in FP32; questions with checkable answers, and perplexity.

Answers are generated greedily, and count as correct when they contain the right word. There are two negative controls:
the same network with the rows of its matrices in random order, and answers compared with the next question.
The notebook asks NOTEBOOK_QUESTIONS. `python -m notebooks.deepseek_serving.measuring.quality` asks all of them, and
writes results/examination/deepseek_serving.json.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from notebooks.deepseek_serving import convert
from notebooks.deepseek_serving.measuring.bench import our_server
from notebooks.deepseek_serving.pipeline import Client
from notebooks.deepseek_serving.server import repository, serve
from utils import compare, report, select
from utils.models.llm import FP32_PROPERTIES, MODEL_XML, Session, copy_companions, perplexity, tokenize

if TYPE_CHECKING:
    import openvino as ov
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MAX_ANSWER_TOKENS = 32
MAX_FEWER = 5  # correct answers than PyTorch
GOAL = 43  # of the 48 answers: nine in ten correct ones, from which on a model is useful
MAX_PERPLEXITY = {"FP16": 1.01, "INT8": 1.03, "INT4": 1.2}  # times that of PyTorch
SERVED = "INT4"  # the precision that answers through a server in the examination

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
NOTEBOOK_QUESTIONS = QUESTIONS[::4]
NOTEBOOK_MAX_FEWER = 3
NOTEBOOK_PERPLEXITY_TOKENS = 256
PARITY_TOKENS = 64
PARITY_REQUESTS, REQUEST_TOKENS = 8, 12  # over HTTP


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


def ask_torch(model, tokenizer, questions: Sequence[tuple[str, str]] = QUESTIONS) -> list[str]:
    """The answers of a transformers model with greedy decoding, in one batch padded on the left."""
    import torch

    tokenizer.padding_side = "left"
    chats = [[{"role": "user", "content": question}] for question, _ in questions]
    options = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True, "padding": True}
    inputs = tokenizer.apply_chat_template(chats, **options)
    with torch.inference_mode():
        ids = model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=MAX_ANSWER_TOKENS,
            pad_token_id=tokenizer.pad_token_id,
        )  # [questions, prompt + answer]
    return tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def ask_server(client: Client, questions: Sequence[tuple[str, str]] = QUESTIONS, at_once: int = 16) -> list[str]:
    """The answers of a server with greedy decoding; at_once: concurrent questions."""
    with ThreadPoolExecutor(at_once) as threads:
        ask = partial(client.chat, max_tokens=MAX_ANSWER_TOKENS, temperature=0)
        return [reply.answer for reply in threads.map(ask, [question for question, _ in questions])]


def ask_ir(folder: Path, device: str = "CPU", **properties) -> list[str]:
    """The answers of an IR folder by openvino_genai in this process, with greedy decoding in one batch."""
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, device, properties)
    settings = pipeline.get_config()
    settings.max_new_tokens, settings.do_sample = MAX_ANSWER_TOKENS, False
    tokenizer = pipeline.get_tokenizer()
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
        for question, _ in QUESTIONS
    ]
    encoded = [tokenizer.encode(prompt, add_special_tokens=False).input_ids for prompt in prompts]
    results = pipeline.generate(encoded, [settings] * len(encoded))
    return [tokenizer.decode(result.m_generation_ids[0]) for result in results]


def scrambled(ir: Path, seed: int = 0) -> ov.Model:
    """The model of an FP16 IR with the rows of every matrix in its layers in random order: a negative control.

    Raises ValueError for an IR without FP16 matrices, such as a compressed one.
    """
    import openvino as ov

    model, rng = ov.Core().read_model(ir / MODEL_XML), np.random.default_rng(seed)
    matrices = 0
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and ".layers." in node.get_friendly_name() and len(node.shape) == 2:
            if node.get_element_type() == ov.Type.f16:
                rows = node.data[rng.permutation(len(node.data))]
                node.output(0).replace(ov.opset13.constant(rows).output(0))
                matrices += 1
    if not matrices:
        raise ValueError(f"{ir} has no FP16 matrices in its layers to scramble.")
    return model


def save_scrambled(ir: Path, folder: Path, seed: int = 0) -> Path:
    """Write the scrambled model with its tokenizers to a folder, which `ask_ir` opens; returns the folder."""
    import openvino as ov

    model = scrambled(ir, seed)
    copy_companions(ir, folder)
    ov.save_model(model, folder / MODEL_XML)
    return folder


def torch_logits(model) -> Callable[[np.ndarray], np.ndarray]:
    """Token ids [1, n] -> logits [1, n, vocabulary] of a transformers model, for `utils.models.llm.perplexity`."""
    import torch

    def logits(token_ids: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.from_numpy(token_ids)).logits.float().numpy()

    return logits


def ir_perplexity(model: ov.Model | Path, text: np.ndarray, device: str = "CPU") -> float:
    """The perplexity of token ids [1, tokens] by an OpenVINO model or its .xml file, computed in FP32."""
    return perplexity(Session(model, device, **FP32_PROPERTIES).prefill, text)


def parity(checkpoint: Path, ir: Path, device: str = "CPU") -> list[dict]:
    """Parity rows of an FP16 IR folder and the transformers model of its checkpoint, all computed in FP32.

    The logits of every token of a prompt and the next tokens are compared with PyTorch. The tokens over HTTP, of
    requests one by one and all at once, are compared with those of openvino_genai in this process.
    """
    import torch

    reference, tokenizer = load_torch(checkpoint)
    chat = [{"role": "user", "content": "Explain in two sentences why the sky is blue."}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = ids["input_ids"]  # [1, tokens of the prompt]
    options = {"attention_mask": torch.ones_like(ids), "pad_token_id": tokenizer.pad_token_id, "do_sample": False}
    with torch.inference_mode():
        logits = reference(ids).logits  # [1, tokens of the prompt, vocabulary]
        tokens = reference.generate(ids, min_new_tokens=PARITY_TOKENS, max_new_tokens=PARITY_TOKENS, **options)
    session = Session(ir / MODEL_XML, device, **FP32_PROPERTIES)
    rows = [
        compare.parity("logits of every prompt token", session.prefill(ids.numpy()), logits, 1e-2),
        compare.parity(
            f"{PARITY_TOKENS} greedy tokens",
            session.generate(ids.numpy(), PARITY_TOKENS),
            tokens[:, ids.shape[1] :],
            0,
        ),
    ]
    questions = [f"Tell me something about the number {number}." for number in range(PARITY_REQUESTS)]
    with repository.temporary("exact", ir, device=device, plugin_config=FP32_PROPERTIES) as folder:
        with serve(folder, quiet=True) as server, Client(server.url) as client:
            alone = _replies(client, questions, at_once=1)
            together = _replies(client, questions, at_once=len(questions))
    expected = _token_table(tokenizer, _generate(ir, questions, device))
    for how, answers in (("one by one", alone), ("eight at once", together)):
        rows.append(compare.parity(f"over HTTP, {how}: greedy tokens", _token_table(tokenizer, answers), expected, 0))
    return rows


def _replies(client: Client, questions: Sequence[str], at_once: int) -> list[str]:
    ask = partial(client.chat, max_tokens=REQUEST_TOKENS, temperature=0)
    with ThreadPoolExecutor(at_once) as threads:
        return [reply.answer for reply in threads.map(ask, questions)]


def _generate(ir: Path, questions: Sequence[str], device: str) -> list[str]:
    """The answers of openvino_genai in this process, in FP32, one by one."""
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(str(ir), device, **FP32_PROPERTIES)
    tokenizer = pipeline.get_tokenizer()
    settings = {"max_new_tokens": REQUEST_TOKENS, "do_sample": False, "apply_chat_template": False}
    chats = [[{"role": "user", "content": question}] for question in questions]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
    return [pipeline.generate(prompt, **settings) for prompt in prompts]


def _token_table(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> np.ndarray:
    """The token ids of texts as rows of equal length, filled with -1."""
    rows = [tokenizer(text)["input_ids"] for text in texts]
    table = np.full((len(rows), 2 * REQUEST_TOKENS), -1)
    for row, ids in zip(table, rows, strict=True):
        row[: len(ids)] = ids
    return table


def examine(answers: Sequence[str], checkpoint: Path, ir: Path, compressed: Path, device: str = "CPU") -> list[dict]:
    """The quality rows of the notebook, at INT4.

    answers: of the server to NOTEBOOK_QUESTIONS. ir: the FP16 IR folder. compressed: the INT4 IR folder.
    """
    reference, tokenizer = load_torch(checkpoint)
    expected = ask_torch(reference, tokenizer, NOTEBOOK_QUESTIONS)
    few = {"questions": NOTEBOOK_QUESTIONS, "max_fewer": NOTEBOOK_MAX_FEWER, "goal": None}
    text = tokenize(ir, "evaluation")[:, :NOTEBOOK_PERPLEXITY_TOKENS]  # [1, tokens]
    value = ir_perplexity(compressed / MODEL_XML, text, device)
    scrambled_value = ir_perplexity(scrambled(ir), text[:, :128], device)
    metric = f"perplexity of {NOTEBOOK_PERPLEXITY_TOKENS} tokens"
    rows = perplexity_rows({SERVED: value}, perplexity(torch_logits(reference), text), scrambled_value, metric)
    return answer_rows({SERVED: answers}, expected, **few) + rows


def is_correct(answer: str, pattern: str) -> bool:
    """Whether an answer matches the pattern of its question."""
    return bool(re.search(pattern, answer, re.IGNORECASE))


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


def perplexity_rows(
    values: Mapping[str, float], reference: float, scrambled_value: float, metric: str = "perplexity"
) -> list[dict]:
    """Quality rows of perplexities by precision; reference: PyTorch's; scrambled_value: of the scrambled model."""
    limits = {precision: MAX_PERPLEXITY[precision] * reference for precision in values}
    rows = []
    for precision, value in values.items():
        rows.append(compare.quality(metric, precision, value, reference, limits[precision], "lower"))
    control = compare.control(metric, "scrambled weights", scrambled_value, max(limits.values()), "lower")
    return [*rows, control]


def table(
    reference, tokenizer, folders: Mapping[str, Path], served: Mapping[str, Sequence[str]], device: str = "CPU"
) -> list[dict]:
    """Quality rows of IR folders by precision, compared with the transformers model `reference`.

    served: answers of a server by precision. The other folders answer in this process.
    """
    answers = {name: served.get(name) or ask_ir(folder, device) for name, folder in folders.items()}
    with TemporaryDirectory() as scratch:
        scrambled_answers = ask_ir(save_scrambled(folders["FP16"], Path(scratch)), device)
    rows = answer_rows(answers, ask_torch(reference, tokenizer), scrambled_answers)

    text = tokenize(folders["FP16"], "evaluation")  # [1, tokens]
    values = {name: ir_perplexity(folders[name] / MODEL_XML, text, device) for name in MAX_PERPLEXITY}
    scrambled_value = ir_perplexity(scrambled(folders["FP16"]), text[:, :512], device)
    return rows + perplexity_rows(values, perplexity(torch_logits(reference), text), scrambled_value)


def main() -> None:
    """Ask all questions at every precision, and write the rows to results/examination."""
    model = select.model(list(convert.MODELS)).value
    folders = {name: convert.prepare(model, name) for name in convert.PRECISIONS}
    thinks = convert.MODELS[model]["thinks"]
    with our_server(model, SERVED) as target, Client(target.url, thinks=thinks) as client:
        served = {SERVED: ask_server(client)}
    reference, tokenizer = load_torch(convert.checkpoint_folder(model))
    report.save_examination("deepseek_serving", model, table(reference, tokenizer, folders, served))


if __name__ == "__main__":
    main()
