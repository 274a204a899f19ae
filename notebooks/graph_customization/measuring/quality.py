"""Parity and quality of customized graphs: the same logits and tokens as PyTorch, and perplexity at every precision.

The notebook measures perplexity on the first NOTEBOOK_TOKENS of the evaluation text.
`python -m notebooks.graph_customization.measuring` measures it on the whole text, and writes
results/examination/graph_customization.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import openvino as ov

from notebooks.graph_customization import convert
from notebooks.graph_customization.pipeline import (
    ExposeHiddenState,
    InsertSlice,
    InsertWeights,
    Int4Weight,
    SelectGreedy,
    customize,
)
from utils import compare, report, select
from utils.models.llm import FP32_PROPERTIES, MODEL_XML, Session, perplexity, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedModel

QUESTION = "Explain in two sentences why the sky is blue."
ANSWER_TOKENS = 64
NOTEBOOK_TOKENS = 256  # of the evaluation text, in the notebook
MAX_PERPLEXITY = {"FP16": 1.01, "INT8": 1.03, "INT4": 1.35}  # times that of PyTorch
MAX_PERPLEXITY_BF16 = 1.03  # the least limit where the arithmetic is BF16 and the KV cache has 8 bits
MAX_AFTER_INSERTION = 1.002  # times that of the model which the weights come from


def load_torch(checkpoint: Path) -> PreTrainedModel:
    """The transformers model of a folder, in FP32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


# --- Parity -----------------------------------------------------------------------------------------------------


def parity(reference: PreTrainedModel, folders: Mapping[str, Path], device: str = "CPU") -> list[dict]:
    """Parity rows of the exported model and of customized ones, all in FP32 arithmetic.

    The exported model is compared with PyTorch: the logits of every token of a prompt, and the next ANSWER_TOKENS
    tokens under greedy decoding. At every precision the sliced model is compared with the model before the slice.
    reference: of `load_torch`. folders: IR folders by precision.
    """
    import torch

    prompt = chat_prompt(folders["FP16"], QUESTION)  # [1, tokens]
    ids = torch.from_numpy(prompt)
    length = {"min_new_tokens": ANSWER_TOKENS, "max_new_tokens": ANSWER_TOKENS}
    with torch.inference_mode():
        output = reference(ids, output_hidden_states=True)
        torch_tokens = reference.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **length)

    rows = []
    for precision, folder in folders.items():
        model = ov.Core().read_model(folder / MODEL_XML)
        exported = Session(model, device, **FP32_PROPERTIES)
        logits = exported.prefill(prompt).copy()  # [1, tokens, vocabulary]
        tokens = exported.generate(prompt, ANSWER_TOKENS)  # [1, ANSWER_TOKENS]
        if precision == "FP16":
            rows.append(compare.parity("logits of every prompt token", logits, output.logits, 1e-2))
            rows.append(compare.parity(f"{ANSWER_TOKENS} greedy tokens", tokens, torch_tokens[:, prompt.shape[1] :], 0))
            rows += _pass_rows(model.clone(), prompt, tokens, output.hidden_states[-1], device)
        customize(model, [InsertSlice()])
        sliced = Session(model, device, **FP32_PROPERTIES)
        stage = f"{precision}: last logits, sliced"
        rows.append(compare.parity(stage, sliced.prefill(prompt), logits[:, -1:], _rounding(precision)))
        stage = f"{precision}: {ANSWER_TOKENS} greedy tokens, sliced"
        rows.append(compare.parity(stage, sliced.generate(prompt, ANSWER_TOKENS), tokens, 0))
    return rows


def _pass_rows(model: ov.Model, prompt: np.ndarray, tokens: np.ndarray, hidden, device: str) -> list[dict]:
    """Parity rows of a model with all passes that add or change an output.

    tokens: those of the model without them. hidden: PyTorch's last hidden state.
    """
    customize(model, [InsertSlice(), ExposeHiddenState(), SelectGreedy()])
    session = Session(model, device, **FP32_PROPERTIES)
    row = compare.parity(f"SelectGreedy: {ANSWER_TOKENS} tokens", session.generate(prompt, ANSWER_TOKENS), tokens, 0)
    session.prefill(prompt)
    ours = session.request.get_tensor("last_hidden_state").data  # [1, tokens, hidden]
    # Its values reach 50: the tolerance is a thousandth of that. In BF16 they would be ten times as far off.
    return [row, compare.parity("last hidden state", ours, hidden, 5e-2)]


def _rounding(precision: str) -> float:
    """How far the logits of one row may be from those of many rows: nothing, where they are computed alike.

    Without AVX-512, integer kernels add the products of one row in another order than those of many rows.
    """
    import torch

    return 0 if precision == "FP16" or torch.cpu.get_capabilities().get("avx512_f") else 1e-3


def chat_prompt(folder: Path, question: str) -> np.ndarray:
    """Token ids [1, tokens] of a question as the model's chat template puts it."""
    from transformers import AutoTokenizer

    chat = [{"role": "user", "content": question}]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="np", return_dict=True)
    return inputs["input_ids"]


# --- Perplexity -------------------------------------------------------------------------------------------------


def perplexity_rows(
    reference: PreTrainedModel,
    folders: Mapping[str, Path],
    better: Mapping[str, Int4Weight],
    donor: Path,
    text: np.ndarray,
    device: str = "CPU",
    metric: str = "perplexity",
) -> list[dict]:
    """Quality rows of perplexity at the precisions of `folders`, and of the INT4 model after `InsertWeights(better)`.

    reference: of `load_torch`. donor: IR folder of the model that `better` comes from. text: token ids [1, tokens]. A
    negative control ignores the zero points of the inserted weights. Another is the INT4 model without them.
    """
    torch_value = perplexity(_torch_logits(reference), text)
    plain = ov.Core().read_model(folders["INT4"] / MODEL_XML)
    values = {name: _perplexity(folder / MODEL_XML, text, device) for name, folder in folders.items()}
    limits = {name: MAX_PERPLEXITY[name] * torch_value for name in folders}
    rows = [compare.quality(metric, name, values[name], torch_value, limits[name], "lower") for name in folders]
    broken = {name: replace(w, zero_points=np.zeros_like(w.zero_points)) for name, w in better.items()}
    value = _perplexity(_inserted(plain, broken), text, device)
    rows.append(compare.control(metric, "zero points ignored", value, limits["INT4"], "lower"))

    metric = f"{metric} after InsertWeights"
    limit = MAX_AFTER_INSERTION * _perplexity(donor / MODEL_XML, text, device)
    value = _perplexity(_inserted(plain, better), text, device)
    rows.append(compare.quality(metric, "INT4", value, torch_value, limit, "lower"))
    return [*rows, compare.control(metric, "nothing inserted", values["INT4"], limit, "lower")]


def examination(model: str = "tiny", device: str = "CPU") -> Iterator[dict]:
    """Quality rows on the whole text, with BF16 arithmetic and one more control: the scales of another layer."""
    folders = {precision: convert.prepare(model, precision) for precision in MAX_PERPLEXITY}
    donor = convert.prepare(model, "FP16" if model == "released-gptq" else "INT4 scale estimation")
    plain = ov.Core().read_model(folders["INT4"] / MODEL_XML)
    better = convert.better_weights(model, plain, donor)
    text = tokenize(folders["FP16"], "evaluation")  # [1, tokens]
    rows = perplexity_rows(load_torch(convert.checkpoint_folder(model)), folders, better, donor, text, device)
    yield from rows

    metric, torch_value = "perplexity", rows[0]["reference"]
    for name, folder in folders.items():  # as they run by default, and as speed is measured
        value = _perplexity(folder / MODEL_XML, text, device, INFERENCE_PRECISION_HINT="bf16")
        limit = max(MAX_PERPLEXITY[name], MAX_PERPLEXITY_BF16) * torch_value
        yield compare.quality(metric, f"{name} in bf16", value, torch_value, limit, "lower")
    value = _perplexity(_inserted(plain, exchange_scales(better)), text, device)
    limit = MAX_PERPLEXITY["INT4"] * torch_value
    yield compare.control(metric, "scales of the next layer", value, limit, "lower")


def exchange_scales(weights: Mapping[str, Int4Weight]) -> dict[str, Int4Weight]:
    """The weights, each with the scales of the next layer of its kind, such as `down_proj`: a negative control."""
    kinds: dict[str, list[str]] = {}
    for name in weights:
        kinds.setdefault(name.rpartition(".")[2], []).append(name)
    exchanged = {}
    for names in kinds.values():
        for i, name in enumerate(names):
            following = names[(i + 1) % len(names)]
            exchanged[name] = replace(weights[name], scales=weights[following].scales)
    return exchanged


def _inserted(model: ov.Model, weights: Mapping[str, Int4Weight]) -> ov.Model:
    """A copy of a model with other 4-bit weights."""
    customized = model.clone()
    customize(customized, [InsertWeights(weights)])
    return customized


def _perplexity(model: ov.Model | Path, text: np.ndarray, device: str, **properties: str) -> float:
    return perplexity(Session(model, device, **(properties or FP32_PROPERTIES)).prefill, text)


def _torch_logits(reference: PreTrainedModel):
    import torch

    def logits(token_ids: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return reference(torch.from_numpy(token_ids)).logits.numpy()

    return logits


def main() -> None:
    """Measure perplexity on the whole text at every precision, and write the rows to results/examination."""
    model = select.model(list(convert.MODELS)).value
    report.save_examination("graph_customization", model, examination(model))
