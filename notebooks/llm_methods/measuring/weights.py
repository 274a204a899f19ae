"""Weight methods: perplexity, right answers, size, memory and speed of one compressed model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import openvino as ov

from utils import bench
from utils.models import llm_speed
from utils.models.llm import FP32_PROPERTIES, MODEL_XML, Session, perplexity, tokenize
from utils.models.questions import MAX_ANSWER_TOKENS, QUESTIONS, count_correct


def perplexity_of(model: ov.Model | Path, text: np.ndarray, properties: Mapping = FP32_PROPERTIES) -> float:
    """Perplexity of a model, or of the IR in a folder, on token ids [1, tokens] in windows of 512."""
    model = model / MODEL_XML if isinstance(model, Path) else model
    return perplexity(Session(model, **properties).prefill, text)


def quality(folder: Path) -> dict:
    """Perplexity on the evaluation text in FP32 arithmetic, and right answers of 48 at the device's own precision."""
    answers = answer([question for question, _ in QUESTIONS], folder)
    text = tokenize(folder, "evaluation")
    return {"perplexity": round(perplexity_of(folder, text), 2), "right": count_correct(answers)}


def with_properties(folder: Path, properties: Mapping) -> dict:
    """Perplexity on the evaluation text in FP32 arithmetic, with further properties of the device."""
    properties = {"INFERENCE_PRECISION_HINT": "f32", **properties}
    return {"perplexity": round(perplexity_of(folder, tokenize(folder, "evaluation"), properties), 2)}


def answer(questions: list[str], folder: Path) -> list[str]:
    """Greedy answers at the device's own precision, all questions at once."""
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1  # GB
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", {})
    settings = genai.GenerationConfig(max_new_tokens=MAX_ANSWER_TOKENS, do_sample=False)
    settings.set_eos_token_id(pipeline.get_tokenizer().get_eos_token_id())
    results = pipeline.generate([*map(genai_history, questions)], [settings] * len(questions))
    return [result.get_generation_ids()[0] for result in results]


def genai_history(question: str):
    """A chat that holds one question."""
    import openvino_genai as genai

    return genai.ChatHistory([{"role": "user", "content": question}])


def speed(name: str, folder: Path, properties: Mapping | None = None) -> dict:
    """The speed and the peak memory of an IR folder with openvino_genai, at the device's own precision.

    properties: of the device.
    """
    return timed(llm_speed.genai_setting(name, folder, properties=properties))


def timed(setting: bench.Setting, rounds: int = 3) -> dict:
    """First token of a 512-token prompt, tokens per second, and the peak memory, in a process of its own."""
    rows = bench.compare([setting], llm_speed.WORKLOADS, rounds, together=False)
    first, decode = (next(row for row in rows if row["workload"] == work.name) for work in llm_speed.WORKLOADS)
    return {
        "first_ms": round(first["median_ms"], 1),
        "first_p90_ms": round(first["p90_ms"], 1),
        "decode_ms": round(decode["median_ms"], 1),
        "decode_p90_ms": round(decode["p90_ms"], 1),
        "tokens_per_s": round(decode["throughput"], 1),
        "running_mb": round(decode["peak_rss_mb"]),
    }


def permute_scales(model: ov.Model, seed: int = 0) -> int:
    """Exchange the scales of the output channels in every layer, which leaves size and speed as they are.

    Returns the number of layers that were changed. A negative control: perplexity has to notice.
    """
    rng, changed = np.random.default_rng(seed), 0
    for node in model.get_ops():
        if node.get_type_name() != "Multiply" or not _from_integers(node.input_value(0).get_node()):
            continue
        scale = node.input_value(1).get_node()
        while scale.get_type_name() == "Convert":
            scale = scale.input_value(0).get_node()
        if scale.get_type_name() == "Constant" and len(scale.data) > 1:
            shuffled = ov.op.Constant(scale.data[rng.permutation(len(scale.data))])
            scale.output(0).replace(shuffled.output(0))
            changed += 1
    return changed


def _from_integers(node: ov.Node) -> bool:
    """Whether a node is a constant of at most 8 bits, perhaps converted and less its zero point."""
    while node.get_type_name() in ("Convert", "Subtract"):
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Constant" and node.get_element_type().bitwidth <= 8


def memory(folder: Path) -> dict:
    """The most memory of a process that reads a prompt of 512 tokens with openvino_genai and answers it."""
    calls = llm_speed.start_genai(folder)
    for work in llm_speed.WORKLOADS:
        calls[work.name]()
    return {"running_mb": round(bench.peak_bytes() / 1e6)}


def size_mb(folder: Path) -> float:
    """The size of the weights of an IR."""
    return round(llm_speed.weights_mb(folder), 1)
