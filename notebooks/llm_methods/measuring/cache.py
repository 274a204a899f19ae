"""Methods of the cache and of long prompts: perplexity through the cache, recall of a number, memory and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import openvino as ov
import openvino_genai as genai

from utils import bench
from utils.models.llm import MODEL_XML, Session, perplexity, tokenize

TEXT_TOKENS = 1024  # of the evaluation text
WINDOW = 512  # tokens
PIECE = 64  # tokens that the stateful model takes at once
CHUNK = 128  # tokens that the paged cache takes at once
BLOCK = 32  # tokens in a block of the CPU's paged cache
LENGTHS = (1024, 2048, 4096, 8000)  # tokens of the long prompts
PROMPTS_OF_A_LENGTH = 8
TIMED_AFTER = 4096  # tokens in the cache when a token is timed
ROUNDS = 12  # of timing; each takes two tokens, because the first one only wakes the threads
READ_AT_ONCE = 512  # tokens of that prompt
QUESTION = "What is the secret number of the lighthouse? Answer with the number only."


def stateful(folder: Path, properties: Mapping) -> dict:
    """Perplexity when tokens are fed in pieces of PIECE, so that all earlier ones come from the cache."""
    text = tokenize(folder, "evaluation")[:, :TEXT_TOKENS]
    session = Session(folder / MODEL_XML, **{"INFERENCE_PRECISION_HINT": "f32", **properties})

    def logits_of(ids: np.ndarray) -> np.ndarray:
        rows = [session.prefill(ids[:, :PIECE]).copy()]
        rows += [session.extend(ids[:, i : i + PIECE]).copy() for i in range(PIECE, ids.shape[1], PIECE)]
        return np.concatenate(rows, 1)  # [1, n, vocabulary]

    return {"perplexity": round(perplexity(logits_of, text, WINDOW), 2)}


def stateful_token(folder: Path, properties: Mapping) -> dict:
    """Milliseconds of a token after TIMED_AFTER others, in the stateful model at the device's own precision."""
    ids = np.random.default_rng(0).integers(100, 40_000, (1, TIMED_AFTER))
    session = Session(folder / MODEL_XML, **properties)
    for begin in range(0, TIMED_AFTER, READ_AT_ONCE):
        session.extend(ids[:, begin : begin + READ_AT_ONCE])
    return {"token_ms": _median_ms(lambda: session.extend(ids[:, :1]))}


def paged_token(folder: Path, properties: Mapping) -> dict:
    """The same in the paged cache of continuous batching, whose step also chooses the token; and of reading the others.

    Fields: "paged_token_ms", "paged_read_ms".
    """
    prompt = ov.Tensor(np.random.default_rng(0).integers(100, 40_000, (1, TIMED_AFTER)))
    scheduler = scheduler_of("dict()", TIMED_AFTER // BLOCK + 8)
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", dict(properties))
    one, many = (
        genai.GenerationConfig(max_new_tokens=count, do_sample=False, ignore_eos=True) for count in (1, 2 * ROUNDS + 8)
    )
    read_ms = _median_ms(lambda: pipeline.generate([prompt], [one]), 3)
    handle = pipeline.add_request(0, prompt, many)
    while not handle.can_read():  # until the first token
        pipeline.step()
    token_ms = _median_ms(pipeline.step)
    while pipeline.has_non_finished_requests():  # else it complains of lost blocks
        pipeline.step()
    return {"paged_token_ms": token_ms, "paged_read_ms": round(read_ms)}


def _median_ms(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    return round(bench.interleave({"call": call}, rounds)["call"].median_ms, 2)


def scheduler_of(call: str, blocks: int) -> genai.SchedulerConfig:
    """The scheduler that a prompt method's call describes, with room for so many blocks of tokens."""
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = blocks
    scheduler.enable_prefix_caching = False
    for option, value in eval(call, {"genai": genai}).items():
        setattr(scheduler, option, value)
    return scheduler


def paged(folder: Path, properties: Mapping, call: str = "dict()") -> dict:
    """Perplexity of the evaluation text in the paged cache of continuous batching, and the bytes of a token in it."""
    ids = tokenize(folder, "evaluation")  # [1, tokens]
    blocks = ids.shape[1] // BLOCK + 4
    scheduler = scheduler_of(call, blocks)
    if "max_num_batched_tokens" not in call:
        scheduler.max_num_batched_tokens = CHUNK  # tokens of earlier steps come from the cache
    options = {"INFERENCE_PRECISION_HINT": "f32", **properties}
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", options)
    settings = genai.GenerationConfig(max_new_tokens=1, do_sample=False, echo=True, logprobs=1, ignore_eos=True)
    handle = pipeline.add_request(0, ov.Tensor(ids), settings)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    losses = [-one for output in handle.read_all() for one in output.generated_log_probs][: ids.shape[1]]
    size = pipeline.get_metrics().kv_cache_size_in_bytes / blocks / BLOCK
    return {"paged_perplexity": round(float(np.exp(np.mean(losses[1:]))), 2), "bytes_per_token": round(size)}


def recall(folder: Path, call: str, properties: Mapping | None = None, lengths: Sequence[int] = LENGTHS,
           count: int = PROMPTS_OF_A_LENGTH) -> dict:  # fmt: skip
    """How often the model repeats a number from long prompts, the work of each prompt, and the use of the cache.

    Fields: "recall_<length>", "cpu_s_<length>" (processor seconds of all cores for a prompt and its answer, which other
    programs hardly change), and "cache_percent" (average use of blocks that suffice for the longest prompt).
    """
    scheduler = scheduler_of(call, max(lengths) // BLOCK + 16)
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", dict(properties or {}))
    settings = genai.GenerationConfig(max_new_tokens=24, do_sample=False)
    result: dict = {}
    for length in lengths:
        asked, hits, begin = needles(folder, length, count), 0, process_time()
        for prompt, number in asked:
            text = pipeline.generate([prompt], [settings])[0].get_generation_ids()[0]
            hits += number in text.replace(",", "")
        result |= {f"recall_{length}": hits, f"cpu_s_{length}": round((process_time() - begin) / count, 2)}
        print(f"  {length} tokens: {hits} of {count}", flush=True)
    result["cache_percent"] = round(pipeline.get_metrics().avg_cache_usage, 1)
    return result


def needles(folder: Path, length: int, count: int) -> list[tuple[str, str]]:
    """Prompts of about `length` tokens with a number at a random depth, and that number."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = np.concatenate([tokenize(folder, name) for name in ("calibration", "evaluation")], 1)[0]
    rng = np.random.default_rng(length)
    made = []
    for _ in range(count):
        number = str(rng.integers(10_000, 99_999))
        filler = np.resize(np.roll(text, -rng.integers(len(text))), length - 80)
        depth = rng.integers(len(filler))
        before, after = tokenizer.decode(filler[:depth]), tokenizer.decode(filler[depth:])
        needle = f"\n\nThe secret number of the lighthouse is {number}.\n\n"
        made.append((f"Read this text.\n\n{before}{needle}{after}\n\n{QUESTION}", number))
    return made


def prefix(folder: Path, call: str, length: int = 2048) -> dict:
    """Milliseconds to the first token of a prompt, and of the same prompt again."""
    prompt = needles(folder, length, 1)[0][0]
    scheduler = scheduler_of(call, 2 * length // BLOCK)
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", {})
    settings = genai.GenerationConfig(max_new_tokens=1, do_sample=False)
    times = []
    for _ in range(3):  # the first one wakes the threads; the second and third ask differently
        begin = perf_counter()
        pipeline.generate([prompt], [settings])
        times.append((perf_counter() - begin) * 1e3)
        prompt = prompt if len(times) > 1 else prompt.replace("Read this text.", "Study this text.", 1)
    return {"first_ms": round(times[1]), "again_ms": round(times[2])}
