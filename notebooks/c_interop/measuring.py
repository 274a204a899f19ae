"""How equal, how leak-free and how fast the C interface is. `python -m notebooks.c_interop.measuring` takes the long
measurements: 10,000 cycles, and the speed of every runtime, into results/bench/c_interop.json."""

from __future__ import annotations

import ctypes
import gc
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from notebooks.c_interop import network
from notebooks.c_interop.convert import build_folder, clients
from notebooks.c_interop.figures import OUTSIDE
from notebooks.c_interop.pipeline import LLM, LLMError, library, source
from utils import bench, compare, preflight, report
from utils.models import llm, questions
from utils.tables import number

if TYPE_CHECKING:
    from openvino_genai import Tokenizer

MAX_ANSWER_TOKENS = 12
NOTEBOOK_QUESTIONS = questions.QUESTIONS[::4]
GROWTH_LIMIT_BYTES = 1000  # per cycle
MISTAKES = {  # what each breaks in llm.c: the source text, and what stands there instead
    "a tensor is not freed": ("    if (logits) ov_tensor_free(logits);\n", ""),
    "characters are cut": ("if (!length && !last) return -1;", "(void)last;"),
    "the mask is one short": ("s->mask, s->past + count, 2", "s->mask, s->past + count - 1, 2"),
    "the past does not advance": ("    s->past += count;\n", ""),
}
STREAMED = (  # prompts that the model continues with characters of several bytes
    "🎉🎉🎉🎉",
    "你好，你好，你好，",
    "smile 🙂, rain 🌧️, smile 🙂, rain 🌧️, smile",
    "one ☀️ two ☀️ three ☀️",
)


def mistaken(mistake: str) -> Path:
    """The library with one of MISTAKES, which shows that a check can fail."""
    old, new = MISTAKES[mistake]
    text = source()
    if text.count(old) != 1:
        raise ValueError(f"The source of the mistake {mistake!r} occurs {text.count(old)} times in llm.c.")
    return library(build_folder(), text.replace(old, new))


def chat(tokenizer: Tokenizer, question: str) -> str:
    """A question in the model's chat template. C has no interpreter of templates: the program writes it."""
    return tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)


# --- Parity and quality -------------------------------------------------------------------------------------------


def torch_tokens(model, tokenizer, prompt: str, tokens: int) -> list[int]:
    """The next tokens of a transformers model, up to the end of its answer."""
    import torch

    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    options = {"attention_mask": torch.ones_like(ids), "pad_token_id": tokenizer.pad_token_id, "do_sample": False}
    with torch.inference_mode():
        made = model.generate(ids, max_new_tokens=tokens, **options)
    return made[0, ids.shape[1] :].tolist()


def parity(reference, tokenizer, model: LLM, prompts: Iterable[str], tokens: int = 12) -> list[dict]:
    """Parity rows of the tokens of answers in FP32: those that C chooses must be those of PyTorch."""
    rows = []
    for i, prompt in enumerate(prompts):
        expected = torch_tokens(reference, tokenizer, prompt, tokens)
        made = model.generate(prompt, tokens).ids
        rows.append(compare.parity(f"{len(expected)} tokens after prompt {i + 1}", made, expected, 0))
    return rows


def ask(model: LLM, prompts: Iterable[str]) -> list[str]:
    """Answers through C."""
    return [model.generate(prompt, MAX_ANSWER_TOKENS).text for prompt in prompts]


def streamed_right(model: LLM, decode: Callable[[list[int]], str], prompts: Sequence[str], tokens: int = 24) -> float:
    """The share of prompts whose streamed pieces together are the text that `decode` makes of all tokens."""
    right = 0
    for prompt in prompts:
        pieces: list[str] = []
        answer = model.generate(prompt, tokens, on_text=pieces.append)
        right += "".join(pieces) == decode(answer.ids)
    return right / len(prompts)


def torch_answers(model, tokenizer, prompts: Sequence[str]) -> list[str]:
    """Answers of a transformers model with greedy decoding, in one batch padded on the left."""
    import torch

    tokenizer.padding_side = "left"
    inputs = tokenizer(list(prompts), return_tensors="pt", padding=True)
    options = {"do_sample": False, "max_new_tokens": MAX_ANSWER_TOKENS, "pad_token_id": tokenizer.pad_token_id}
    with torch.inference_mode():
        ids = model.generate(**inputs, **options)  # [prompts, prompt + answer]
    return tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def quality(folder: Path, reference, tokenizer, prompts: Sequence[str], device: str = "CPU") -> list[dict]:
    """Right answers of C at two precisions, PyTorch's, and those of a library with a mistake; and the share of texts
    that are streamed as Python decodes them.

    prompts: NOTEBOOK_QUESTIONS in the chat template.
    """
    metric = f"right answers of {len(prompts)}"
    score = partial(questions.count_correct, questions=NOTEBOOK_QUESTIONS)
    expected = score(torch_answers(reference, tokenizer, prompts))
    limit, rows = expected - 2, []
    streamed, built = "texts streamed as Python decodes them", library(build_folder())
    decode = partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    for precision, properties in {"FP32": llm.FP32_PROPERTIES, bench.arithmetic("FP16"): {}}.items():
        with LLM(folder, device, properties, built=built) as model:
            right, share = score(ask(model, prompts)), streamed_right(model, decode, STREAMED)
        rows.append(compare.quality(metric, precision, right, expected, limit, "higher", of=len(prompts)))
        rows.append(compare.quality(streamed, precision, share, 1, 1, "higher", of=len(STREAMED)))
    mistake = "the past does not advance"
    with LLM(folder, device, llm.FP32_PROPERTIES, built=mistaken(mistake)) as model:
        rows.append(compare.control(metric, mistake, score(ask(model, prompts)), limit, "higher"))
    mistake = "characters are cut"
    with LLM(folder, device, llm.FP32_PROPERTIES, built=mistaken(mistake)) as model:
        rows.append(compare.control(streamed, mistake, streamed_right(model, decode, STREAMED), 1, "higher"))
    return rows


def languages(folder: Path, prompt: str, tokens: int, expected: Sequence[int]) -> tuple[list[list[str]], dict]:
    """Rows of a table (language, tokens, text, µs per token outside the model), and notes with the last column.

    expected: the tokens that Python chooses. A language whose tools are missing has a row that says so.
    """
    rows, notes = [], {}
    for language in clients.CLIENTS:
        if sentence := clients.missing(language):
            rows.append([language, sentence])
            continue
        outcome = clients.run(language, folder, prompt, tokens)
        equal = sum(a == b for a, b in zip(outcome.ids, expected, strict=False))
        rows.append([language, f"{equal} of {len(expected)} equal", outcome.text, number(outcome.overhead_us)])
        notes[f"{OUTSIDE}{language}"] = round(outcome.overhead_us, 1)
    return rows, notes


# --- Leaks --------------------------------------------------------------------------------------------------------


class _Mallinfo2(ctypes.Structure):
    """What glibc says about the memory that malloc has handed out."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                     "fsmblks", "uordblks", "fordblks", "keepcost")]  # fmt: skip


def allocated_bytes() -> int:
    """Bytes that malloc has handed out in this process. Raises ValueError where the C library cannot tell."""
    gc.collect()
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, TypeError):
        raise ValueError("Leaks are measured with mallinfo2, which glibc 2.33 and later have (Linux).") from None
    mallinfo2.restype = _Mallinfo2
    now = mallinfo2()
    return now.uordblks + now.hblkhd


def cycle(model: LLM, built: Path, prompt: str, tokens: int) -> None:
    """An answer, a cancelled one, one whose callback fails, a prompt and a folder that are errors."""
    model.generate(prompt, tokens)
    model.generate(prompt, tokens, on_text=lambda _: model.cancel())
    with suppress(ZeroDivisionError):
        model.generate(prompt, tokens, on_text=lambda _: 1 / 0)
    with suppress(LLMError):
        model.generate("\0", tokens)
    with suppress(LLMError):
        LLM("no folder", built=built)


def growth(built: Path, folder: Path, prompt: str, cycles: int, opening: bool, tokens: int = 8) -> list[float]:
    """Bytes per cycle by which the memory of this process grows, in each of three runs of `cycles` cycles.

    opening: whether each cycle opens and closes the model, too. Call it in a process of its own.
    """
    model = None if opening else LLM(folder, built=built)

    def once() -> None:
        if model:
            cycle(model, built, prompt, tokens)
        else:
            with LLM(folder, built=built) as own:
                cycle(own, built, prompt, tokens)

    for _ in range(5):
        once()
    grown = []
    for _ in range(3):
        before = allocated_bytes()
        for _ in range(cycles):
            once()
        grown.append((allocated_bytes() - before) / cycles)
    return grown


def leaks(folder: Path, prompt: str, cycles: int, opening: bool = False) -> dict[str, float]:
    """Bytes per cycle of the library and of one that does not free a tensor: each the median of three runs, in a
    process of its own."""
    builds = {"llm.c": library(build_folder())} | {name: mistaken(name) for name in list(MISTAKES)[:1]}
    grown = {}
    for name, built in builds.items():
        runs = preflight.in_child(growth, built, folder, prompt, cycles, opening, what=f"Leaks of {name}")
        grown[name] = float(np.median(runs))
    return grown


# --- Speed --------------------------------------------------------------------------------------------------------

TOKENS = 32
WORKLOAD = f"{TOKENS} tokens after a short prompt"


def _workload(generate: Callable[[str], object]) -> dict[str, Callable]:
    """A workload whose prompt is another one in every call, because openvino_genai keeps what it has read."""
    numbers = count()
    return {WORKLOAD: lambda: generate(f"{next(numbers)} green bottles hang on the wall. Once upon a time")}


def start_c(folder: Path, properties: Mapping[str, str], streaming: bool) -> dict[str, Callable]:
    model = LLM(folder, properties=properties, cache=build_folder())
    on_text = (lambda text: None) if streaming else None
    return _workload(lambda prompt: model.generate(prompt, TOKENS, on_text=on_text, ignore_end=True))


def start_genai(folder: Path, properties: Mapping[str, str], streaming: bool) -> dict[str, Callable]:
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(str(folder), "CPU", **properties)
    settings = genai.GenerationConfig()
    settings.max_new_tokens, settings.ignore_eos, settings.apply_chat_template = TOKENS, True, False
    streamer = [lambda text: genai.StreamingStatus.RUNNING] if streaming else []
    return _workload(lambda prompt: pipeline.generate(prompt, settings, *streamer))


def start_session(folder: Path, properties: Mapping[str, str]) -> dict[str, Callable]:
    import openvino_genai as genai

    session = llm.Session(folder / llm.MODEL_XML, **properties)
    tokenizer = genai.Tokenizer(str(folder))
    return _workload(lambda prompt: session.generate(tokenizer.encode(prompt).input_ids.data, TOKENS))


def start_torch(checkpoint: Path, precision: str) -> dict[str, Callable]:
    import torch
    from transformers import AutoTokenizer

    from utils.models.llm_speed import eager, load_torch

    tokenizer, generate = AutoTokenizer.from_pretrained(checkpoint), eager(load_torch(checkpoint, precision))
    torch.set_grad_enabled(False)
    return _workload(lambda prompt: generate(np.array([tokenizer(prompt)["input_ids"]]), TOKENS))


def settings(folder: Path, checkpoint: Path) -> list[bench.Setting]:
    """C through ctypes with and without streaming, openvino_genai, a loop in Python, and PyTorch."""
    listed = []
    size = bench.size_mb(folder / llm.MODEL_XML)
    for precision, properties in {"FP32": llm.FP32_PROPERTIES, bench.arithmetic("FP16"): {}}.items():
        arguments = (folder, tuple(properties.items()))
        listed += [
            bench.Setting("openvino C, streaming", precision, _with_dict, ("start_c", *arguments, True), size),
            bench.Setting("openvino_genai, streaming", precision, _with_dict, ("start_genai", *arguments, True), size),
            bench.Setting("openvino, loop in Python", precision, _with_dict, ("start_session", *arguments), size),
        ]
    torch_mb = bench.size_mb(checkpoint)
    listed += [
        bench.Setting("torch eager", precision, start_torch, (checkpoint, precision), torch_mb)
        for precision in bench.torch_precisions()
    ]
    return listed


def _with_dict(name: str, folder: Path, properties: tuple, *options: bool) -> dict[str, Callable]:
    """A `start_...` of this module; the arguments of a setting must be hashable, which a dict is not."""
    return globals()[name](folder, dict(properties), *options)


@bench.live
def speed(folder: Path, checkpoint: Path, rounds: int = 5) -> list[dict]:
    """Speed rows of all settings, each in a process of its own."""
    work = [bench.Workload(WORKLOAD, TOKENS, "tokens/s")]
    return bench.compare(settings(folder, checkpoint), work, rounds)


def main() -> None:
    from notebooks.c_interop.convert import checkpoint_folder, prepare

    folder, checkpoint = prepare(), checkpoint_folder()
    with tempfile.TemporaryDirectory() as scratch, bench.exclusive() as load:
        rows = speed(folder, checkpoint)
        small = network.save_arithmetic(Path(scratch))
        notes = {}
        for name, grown in leaks(small, "a", 3333, opening=True).items():
            notes[f"bytes per create, generate, cancel and error cycle, {name} (10,000 cycles)"] = round(grown)
        prompt, python = "Once upon a time", [0] * TOKENS
        notes |= languages(folder, prompt, TOKENS, python)[1]
    report.save_bench("c_interop", rows, notes | load)


if __name__ == "__main__":
    main()
