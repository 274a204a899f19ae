"""What the notebook checks live: parity with PyTorch, equal tokens where a method promises them, and perplexity."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai

from notebooks.llm_methods.measuring.decoding import EXACT, FREE, prompts
from notebooks.llm_methods.measuring.store import Rows
from notebooks.llm_methods.measuring.weights import permute_scales
from utils import compare
from utils.bench import BUSY_PERCENT
from utils.models.llm import FP32_PROPERTIES, MODEL_XML, Session, perplexity, tokenize
from utils.models.llm_speed import WORKLOADS

METRIC = "perplexity of 512 tokens"
MOST = {"FP16": 1.01, "INT8": 1.03}  # times PyTorch's perplexity; all methods with 4 bits have the next
MOST_AT_4_BITS = 1.4
CONTROL = "scales of the channels exchanged"
NEW_TOKENS = 32


def parity(folder: Path, reference, device: str = "CPU") -> list[dict]:
    """The FP16 IR and PyTorch, in FP32: logits of 64 tokens, and 32 tokens chosen after them."""
    import torch

    ids = tokenize(folder, "evaluation")[:, :64]
    session = Session(folder / MODEL_XML, device, **FP32_PROPERTIES)
    with torch.no_grad():
        logits = reference(torch.from_numpy(ids)).logits.numpy()
        length = {"min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS}
        mask = torch.ones(ids.shape, dtype=torch.int64)
        tokens = reference.generate(torch.from_numpy(ids), attention_mask=mask, do_sample=False, **length)
    rows = [compare.parity("FP16: logits of 64 tokens", session.prefill(ids), logits, 1e-2)]
    return [*rows, compare.parity("FP16: 32 greedy tokens", session.generate(ids, NEW_TOKENS), tokens[:, 64:], 0)]


def same_tokens(folder: Path, draft: Path, device: str = "CPU") -> list[dict]:
    """Tokens of two answers by ways of decoding that promise those of greedy decoding, in FP32."""
    questions = [FREE[0], prompts()[-1]]
    added = {"draft_model": genai.draft_model(str(draft), device, **EXACT)}
    ways = {
        "greedy": ({}, {}),
        "prompt lookup": ({"prompt_lookup": True}, {"max_ngram_size": 3, "num_assistant_tokens": 5}),
        "draft model": (added, {"num_assistant_tokens": 3}),
    }
    tokens = {}
    for name, (options, settings) in ways.items():
        pipeline = genai.LLMPipeline(str(folder), device, **EXACT, **options)
        tokens[name] = [_answer(pipeline, question, settings) for question in questions]
    return [
        compare.parity(f"{name}: greedy tokens, {kind}", ours, plain, 0)
        for name in ("prompt lookup", "draft model")
        for kind, ours, plain in zip(("question", "copy"), tokens[name], tokens["greedy"], strict=True)
    ]


def _answer(pipeline: genai.LLMPipeline, question: str, options: Mapping) -> np.ndarray:
    tokenizer = pipeline.get_tokenizer()
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    ids = tokenizer.encode(prompt, add_special_tokens=False).input_ids
    settings = genai.GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, ignore_eos=True, **options)
    return np.array(pipeline.generate(ids, settings).tokens[0])


def quality(folders: Mapping[str, Path], reference, device: str = "CPU") -> list[dict]:
    """Perplexity of the models in FP32 arithmetic, and of the INT4 model with exchanged scales."""
    import torch

    text = tokenize(folders["FP16"], "evaluation")[:, :512]
    with torch.no_grad():
        expected = perplexity(lambda ids: reference(torch.from_numpy(ids)).logits.numpy(), text)
    rows = []
    for name, folder in folders.items():
        value = perplexity(Session(folder / MODEL_XML, device, **FP32_PROPERTIES).prefill, text)
        limit = MOST.get(name, MOST_AT_4_BITS) * expected
        rows.append(compare.quality(METRIC, name, value, expected, limit, "lower"))
    broken = ov.Core().read_model(folders["INT4"] / MODEL_XML)
    permute_scales(broken)
    value = perplexity(Session(broken, device, **FP32_PROPERTIES).prefill, text)
    return [*rows, compare.control(METRIC, CONTROL, value, MOST_AT_4_BITS * expected, "lower")]


def speed_rows(rows: Rows) -> list[dict]:
    """Stored speed of OpenVINO and the peers, as rows of a speed table with ratios to PyTorch."""
    first, decode = WORKLOADS
    found = [(*row["name"].rsplit(" ", 1), row) for row in rows.of("peers")]
    made = []
    for work, field in ((first, "first"), (decode, "decode")):
        timed = [one for one in found if f"{field}_ms" in one[2]]
        torch = [row[f"{field}_ms"] for runtime, _, row in timed if compare.is_pytorch({"runtime": runtime})]
        for runtime, precision, row in timed:
            ms, busy = row[f"{field}_ms"], row.get("busy_percent", 0)
            label = {"label": f"{busy} % of the cores were busy"} if busy > BUSY_PERCENT else {}
            made.append({
                "runtime": runtime, "precision": precision, "workload": work.name, "median_ms": ms,
                "p90_ms": row[f"{field}_p90_ms"], "throughput": work.amount * 1e3 / ms, "unit": work.unit,
                "ratio_to_torch": min(torch) / ms if torch else None, "peak_rss_mb": row.get("running_mb"),
                "model_mb": row["model_mb"], **label,
            })  # fmt: skip
    return made
