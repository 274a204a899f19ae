"""Methods that choose tokens, and ways to read a model: speed beside greedy decoding, equal tokens, their promises."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import openvino_genai as genai

from notebooks.llm_methods.pipeline import Method
from notebooks.llm_methods.pipeline.methods import SCHEMA
from utils import bench
from utils.models import llm, llm_speed
from utils.models.llm import FP32_PROPERTIES, TEXT

NEW_TOKENS = 32
# In FP32, and inputs of products are not rounded: by default the CPU rounds them to 8 bits where weights have 4 or 8
# bits, and a token may then depend on how many tokens are computed at once.
EXACT = FP32_PROPERTIES | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
FREE = ("Why is the sky blue?", "How do I make a cup of tea?")
COPIED = "Repeat this text word for word:\n\n{}"
CITY = "Name the capital of France and its country as JSON."
COLOUR = "What is the colour of grass?"
YES_NO = "Is Paris in France? Answer yes or no."
ASKED = {"JSON schema": (CITY,), "regular expression": (YES_NO,), "grammar": (COLOUR,)}  # all others: prompts()


class Answer(NamedTuple):
    """A generated text, its tokens, and the share of a draft's tokens that were accepted, if there is a draft."""

    text: str
    tokens: list[int]
    accepted: float | None = None


def prompts() -> list[str]:
    """Two questions with free answers, and two texts to copy."""
    lines = (TEXT / "evaluation.txt").read_text(encoding="utf-8").split("\n")
    long = [line for line in lines if len(line) > 200][:2]
    return [*FREE, *(COPIED.format(line[:300]) for line in long)]


def measure(method: Method, folder: Path, places: Mapping[str, Path]) -> dict:
    """A row of decoding, in FP32 arithmetic: speed beside greedy decoding, and whether it keeps its promise.

    places: "draft" and "INT4" (IR folders), "adapter" (a file). Fields: "tokens_per_s", "ratio" (to greedy), "same" of
    "of" answers with greedy's tokens, "accepted" (share of a draft's tokens), "promise" (whether what the method
    promises held), "example".
    """
    if method.where == "ContinuousBatchingPipeline":
        return together(folder, int(method.name.split()[0]))
    if method.where == "ChatHistory":
        return chat(folder)
    asked = ASKED.get(method.name, tuple(prompts()))
    greedy, plain_s = plain_answers(folder, asked)
    pipeline = pipeline_of(method, folder, places, EXACT)
    ours, own_s = timed(pipeline, asked, options_of(method, places))
    rates = [sum(len(a.tokens) for a in answers) / s for answers, s in ((greedy, plain_s), (ours, own_s))]
    shares = [answer.accepted for answer in ours if answer.accepted is not None]
    return {
        "tokens_per_s": round(rates[1], 1),
        "ratio": round(rates[1] / rates[0], 2),
        "same": sum(a.tokens == b.tokens for a, b in zip(greedy, ours, strict=True)),
        "of": len(asked),
        **({"accepted": round(sum(shares) / len(shares), 2)} if shares else {}),
        "promise": PROMISES[method.name](greedy, ours, pipeline),
        "example": short(ours[0].text),
    }


@cache
def plain_answers(folder: Path, asked: tuple[str, ...]) -> tuple[list[Answer], float]:
    """Greedy answers, and the seconds that they took."""
    return timed(genai.LLMPipeline(str(folder), "CPU", **EXACT), asked, {"do_sample": False})


def pipeline_of(method: Method, folder: Path, places: Mapping[str, Path], properties: Mapping) -> genai.LLMPipeline:
    """The pipeline with what `where` adds to it."""
    added: dict = {}
    if method.where == "prompt_lookup=True":
        added = {"prompt_lookup": True}
    elif method.where == "draft_model":
        place = places["INT4" if "INT4" in method.name else "draft"]
        added = {"draft_model": genai.draft_model(str(place), "CPU", **properties)}
    elif method.where == "adapters":
        added = {"adapters": genai.AdapterConfig(genai.Adapter(str(places["adapter"]))), "scheduler_config": uncached()}
    return genai.LLMPipeline(str(folder), "CPU", **properties, **added)


def uncached() -> genai.SchedulerConfig:
    """A scheduler that keeps no prompt: what was read with an adapter would be taken for requests without it, too."""
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.enable_prefix_caching = 1, False
    return scheduler


def options_of(method: Method, places: Mapping[str, Path]) -> dict:
    """Options of `generate` that the call of a method describes."""
    names: dict = {"genai": genai, "SCHEMA": SCHEMA}
    if "adapter" in method.needs:
        names["adapter"] = genai.Adapter(str(places["adapter"]))
    return eval(method.call, names)


def ask(pipeline: genai.LLMPipeline, question: str, options: Mapping, times: list[float] | None = None) -> Answer:
    """The answer to a question, with the chat template. times: gets the begin, then the time of each piece."""
    tokenizer = pipeline.get_tokenizer()
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    ids = tokenizer.encode(prompt, add_special_tokens=False).input_ids
    settings = genai.GenerationConfig(**{"max_new_tokens": NEW_TOKENS, **options})
    settings.set_eos_token_id(tokenizer.get_eos_token_id())
    if times is None:
        result = pipeline.generate(ids, settings)
    else:
        times.append(perf_counter())
        result = pipeline.generate(ids, settings, lambda _: times.append(perf_counter()))
        times.append(perf_counter())
    extended = getattr(result, "extended_perf_metrics", None)
    accepted = extended.get_draft_acceptance_rate() if hasattr(extended, "get_draft_acceptance_rate") else None
    return Answer(tokenizer.decode(result.tokens[0]), list(result.tokens[0]), accepted)


def timed(pipeline: genai.LLMPipeline, questions: Sequence[str], options: Mapping) -> tuple[list[Answer], float]:
    """The answers, and the seconds that they took after one that is not timed."""
    ask(pipeline, "Hello.", options)
    begin = perf_counter()
    answers = [ask(pipeline, question, options) for question in questions]
    return answers, perf_counter() - begin


def short(text: str) -> str:
    return " ".join(text.split())[:120]


def side(method: Method, folder: Path, places: Mapping[str, Path], question: str) -> dict:
    """One answer for the demo, with what it took: milliseconds, tokens per second, and the memory of this process."""
    pipeline = pipeline_of(method, folder, places, {})
    options = options_of(method, places)
    ask(pipeline, "Hello.", options)
    times: list[float] = []
    given = ask(pipeline, question, options | {"max_new_tokens": 96}, times)
    after = len(given.tokens) - 1
    rate = after / (times[-1] - times[1]) if after and len(times) > 2 else None
    row = {"text": given.text, "model_mb": llm_speed.weights_mb(folder), "running_mb": bench.peak_bytes() / 1e6}
    return row | {"first_ms": 1e3 * (times[1] - times[0]), "tokens_per_s": rate, "accepted": given.accepted}


# --- What each method promises ------------------------------------------------------------------------------------


def equal(greedy: list[Answer], ours: list[Answer], _) -> bool:
    """Whether all tokens are greedy's."""
    return [answer.tokens for answer in greedy] == [answer.tokens for answer in ours]


def other(greedy: list[Answer], ours: list[Answer], _) -> bool:
    """Whether some tokens differ from greedy's."""
    return not equal(greedy, ours, _)


def matches(pattern: str) -> Callable[..., bool]:
    return lambda greedy, ours, _: all(re.fullmatch(pattern, answer.text.strip(), re.DOTALL) for answer in ours)


def fewer_repeats(greedy: list[Answer], ours: list[Answer], _) -> bool:
    """Whether fewer tokens occur twice than with greedy decoding."""
    repeats = [sum(len(a.tokens) - len(set(a.tokens)) for a in answers) for answers in (greedy, ours)]
    return repeats[1] < repeats[0]


def follows_schema(greedy: list[Answer], ours: list[Answer], _) -> bool:
    import jsonschema

    try:
        return [jsonschema.validate(json.loads(a.text), json.loads(SCHEMA)) for a in ours] == [None] * len(ours)
    except (ValueError, jsonschema.ValidationError):
        return False


def switches(greedy: list[Answer], ours: list[Answer], pipeline: genai.LLMPipeline) -> bool:
    """Whether the adapter changes answers, and gives the model's own when a request switches it off."""
    off = [ask(pipeline, q, {"do_sample": False, "adapters": genai.AdapterConfig()}) for q in prompts()[:2]]
    return other(greedy, ours, pipeline) and equal(greedy[:2], off, pipeline)


PROMISES: dict[str, Callable[..., bool]] = {
    "greedy": equal,
    "sampling": other,
    "min-p sampling": other,
    "beam search": other,
    "diverse beam search": other,
    "repetition penalty": fewer_repeats,
    "frequency and presence penalty": fewer_repeats,
    "stop string": matches(r"[^.]*\.?"),  # or it ran out of tokens
    "prompt lookup": equal,
    "speculation, fewer layers": equal,
    "speculation, INT4 copy": equal,
    "speculation, trained draft": equal,
    "EAGLE-3": equal,
    "JSON schema": follows_schema,
    "regular expression": matches(r"(yes|no)\."),
    "grammar": matches("red|green|blue"),
    "LoRA adapter": switches,
}


# --- Serving and reading --------------------------------------------------------------------------------------------


def together(folder: Path, count: int) -> dict:
    """Many requests at once: tokens per second of all, beside one at a time, and whether the tokens are equal."""
    pipeline = genai.ContinuousBatchingPipeline(str(folder), uncached(), "CPU", dict(EXACT))
    settings = genai.GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, ignore_eos=True)
    chats = [genai.ChatHistory([{"role": "user", "content": f"{FREE[i % 2]} ({i})"}]) for i in range(count)]
    pipeline.generate(chats[:1], [settings])
    begin = perf_counter()
    alone = [pipeline.generate([one], [settings])[0].get_generation_ids()[0] for one in chats[:4]]
    alone_s = (perf_counter() - begin) / 4
    begin = perf_counter()
    texts = [result.get_generation_ids()[0] for result in pipeline.generate(chats, [settings] * count)]
    seconds = perf_counter() - begin
    same = sum(a == b for a, b in zip(alone, texts[:4], strict=True))
    rate, ratio = round(count * NEW_TOKENS / seconds, 1), round(count * alone_s / seconds, 2)
    promise, example = same == len(alone), short(texts[0])
    return {"tokens_per_s": rate, "ratio": ratio, "same": same, "of": 4, "promise": promise, "example": example}


def chat(folder: Path) -> dict:
    """The second question of a chat: milliseconds to its first token with the first one's cache, and without."""
    story = prompts()[-1] + " " + " ".join(prompts()[:-1]) * 6
    settings = genai.GenerationConfig(max_new_tokens=16, do_sample=False, ignore_eos=True)

    def second(pipeline: genai.LLMPipeline, cached: bool) -> tuple[str, float]:
        history = genai.ChatHistory([{"role": "user", "content": story}])
        reply = pipeline.generate(history, settings).texts[0] if cached else first
        history.append({"role": "assistant", "content": reply})
        history.append({"role": "user", "content": "Why?"})
        result = pipeline.generate(history, settings)
        return result.texts[0], result.perf_metrics.get_ttft().mean

    pipeline = genai.LLMPipeline(str(folder), "CPU", **EXACT)
    first = pipeline.generate(genai.ChatHistory([{"role": "user", "content": story}]), settings).texts[0]
    text, cached_ms = second(pipeline, True)
    fresh = genai.LLMPipeline(str(folder), "CPU", **EXACT)
    fresh.generate("Hello.", settings)
    other_text, fresh_ms = second(fresh, False)
    ratio = round(fresh_ms / cached_ms, 2)
    same = int(text == other_text)
    return {"first_ms": round(cached_ms), "uncached_ms": round(fresh_ms), "ratio": ratio, "same": same, "of": 1,
            "promise": bool(same) and cached_ms < fresh_ms, "example": short(text)}  # fmt: skip


def read(name: str, source: Path, checkpoint: Path) -> dict:
    """Seconds from a file to the first answer in this process, and its peak memory."""
    with tempfile.TemporaryDirectory() as scratch:
        begin = perf_counter()
        if name == "safetensors":
            llm.to_ir(checkpoint, Path(scratch, "ir"))
            source = Path(scratch, "ir")
        converted = perf_counter() - begin
        properties = {"CACHE_DIR": scratch} if "CACHE_DIR" in name else {}
        if properties:
            genai.LLMPipeline(str(source), "CPU", **properties)  # fills the cache
        begin = perf_counter()
        pipeline = genai.LLMPipeline(str(source), "CPU", **properties)
        text = pipeline.generate("What is the capital of France?", max_new_tokens=8, do_sample=False)
        answered = perf_counter() - begin
        del pipeline
    return {"convert_s": round(converted, 1) if name == "safetensors" else None, "start_s": round(answered, 2),
            "running_mb": round(bench.peak_bytes() / 1e6), "example": short(str(text))}  # fmt: skip
