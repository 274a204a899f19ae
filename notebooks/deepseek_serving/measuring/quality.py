"""Parity and quality of the served model: tokens in FP32; questions with checkable answers, and perplexity.

Answers are generated greedily, and count as correct when they contain the right word. There are two negative controls:
the same network with the rows of its matrices in random order, and answers compared with the next question.
The notebook asks NOTEBOOK_QUESTIONS. `python -m notebooks.deepseek_serving.measuring.quality` asks all of them, and
writes results/examination/deepseek_serving.json.
"""

from __future__ import annotations

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
from utils.models.questions import (
    MAX_ANSWER_TOKENS,
    QUESTIONS,
    answer_rows,
    ask_torch,
    generate,
    generate_together,
    load_torch,
    token_table,
)
from utils.models.questions import count_correct as count_correct
from utils.models.questions import is_correct as is_correct  # the notebook shows it

if TYPE_CHECKING:
    import openvino as ov

MAX_PERPLEXITY = {"FP16": 1.01, "INT8": 1.03, "INT4": 1.2}  # times that of PyTorch
SERVED = "INT4"  # the precision that answers through a server in the examination

NOTEBOOK_QUESTIONS = QUESTIONS[::4]
NOTEBOOK_MAX_FEWER = 3
NOTEBOOK_PERPLEXITY_TOKENS = 256
PARITY_TOKENS = 64
PARITY_REQUESTS, REQUEST_TOKENS = 8, 12  # over HTTP


def ask_server(client: Client, questions: Sequence[tuple[str, str]] = QUESTIONS, at_once: int = 16) -> list[str]:
    """The answers of a server with greedy decoding; at_once: concurrent questions."""
    with ThreadPoolExecutor(at_once) as threads:
        ask = partial(client.chat, max_tokens=MAX_ANSWER_TOKENS, temperature=0)
        return [reply.answer for reply in threads.map(ask, [question for question, _ in questions])]


def ask_ir(folder: Path, device: str = "CPU", **properties) -> list[str]:
    """The answers of an IR folder by openvino_genai in this process, with greedy decoding in one batch."""
    return generate_together(folder, [question for question, _ in QUESTIONS], MAX_ANSWER_TOKENS, device, **properties)


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
    table = partial(token_table, tokenizer, width=2 * REQUEST_TOKENS)
    expected = table(generate(ir, questions, REQUEST_TOKENS, device))
    for how, answers in (("one by one", alone), ("eight at once", together)):
        rows.append(compare.parity(f"over HTTP, {how}: greedy tokens", table(answers), expected, 0))
    return rows


def _replies(client: Client, questions: Sequence[str], at_once: int) -> list[str]:
    ask = partial(client.chat, max_tokens=REQUEST_TOKENS, temperature=0)
    with ThreadPoolExecutor(at_once) as threads:
        return [reply.answer for reply in threads.map(ask, questions)]


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
