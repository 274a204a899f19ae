"""How exact, how good and how fast the server is. `python -m notebooks.ollama_openvino.measuring` measures everything.

It writes results/bench/ollama_openvino.json (tokens per second) and results/examination/ollama_openvino.json (48
questions, 24 JSON replies). The notebook runs a small part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import ollama

from notebooks.ollama_openvino import convert
from notebooks.ollama_openvino.server import Server, install, serve
from utils import bench, compare, report
from utils.models import questions as asked
from utils.models.llm import FP32_PROPERTIES
from utils.serving import peers
from utils.serving.load import TORCH, Target, measure, rows

GREEDY = {"temperature": 0, "repeat_penalty": 1.0}  # Ollama's default penalty is 1.1
PARITY_TOKENS = 24
PARITY_QUESTIONS = [f"Tell me something about the number {number}." for number in range(4)]
NOTEBOOK_QUESTIONS = asked.QUESTIONS[::4]
NOTEBOOK_MAX_FEWER = 3
AT_ONCE = 16
CLIENTS = (1, 4, 16)
RUNTIME = "openvino"

# JSON replies: a schema, and questions for which it makes sense
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "legs": {"type": "integer", "minimum": 0, "maximum": 9},
        "flies": {"type": "boolean"},
    },
    "required": ["name", "legs", "flies"],
    "additionalProperties": False,
}
ANIMALS = (
    "fox owl bear whale cat horse bee lion dog eagle ant frog duck cow bat goat crab hen wolf moth deer mole crow pig"
)
JSON_QUESTIONS = [
    f"Describe a {animal} in JSON with its name, its legs and whether it flies." for animal in ANIMALS.split()
]
NOTEBOOK_JSON = 6
JSON_TOKENS = 64
VALID = "JSON replies that follow the schema"
WITHOUT = f"{VALID}, without format"


def client(host: str) -> ollama.Client:
    """A client that asks no proxy for a server on this machine."""
    return ollama.Client(host=host, trust_env=False, timeout=600)


@contextmanager
def serving(models: dict[str, Path], **options) -> Iterator[Server]:
    """A server with models of IR folders or GGUF files, by name, in a temporary store. options: those of `serve`."""
    with TemporaryDirectory() as folder, serve(Path(folder), **options) as server:
        for name, source in models.items():
            install(server.host, name, source)
        yield server


# --- parity -----------------------------------------------------------------------------------------------------


def parity(checkpoint: Path, ir: Path, gguf: Path | None = None, device: str = "CPU") -> list[dict]:
    """Parity rows in FP32: greedy tokens and their counts over /api/chat, compared with PyTorch and LLMPipeline.

    ir: the FP16 IR folder of the checkpoint. gguf: a GGUF file, compared with LLMPipeline on the same file.
    """
    models = {"ir": ir} | ({"gguf": gguf} if gguf else {})
    with serving(models, device=device, properties=FP32_PROPERTIES) as server:
        replies = {name: [_chat(server.host, name, question) for question in PARITY_QUESTIONS] for name in models}
        with ThreadPoolExecutor(len(PARITY_QUESTIONS)) as threads:
            streamed = list(threads.map(lambda text: _stream(server.host, "ir", text), PARITY_QUESTIONS))
    expected = {
        name: asked.generate(source, PARITY_QUESTIONS, PARITY_TOKENS, device) for name, source in models.items()
    }
    torch_texts, torch_counts = _generate_torch(checkpoint)
    table = partial(asked.token_table, _tokenizer(checkpoint), width=2 * PARITY_TOKENS)
    ours = [reply.message.content for reply in replies["ir"]]
    counts = [[reply.prompt_eval_count, reply.eval_count] for reply in replies["ir"]]
    stages = [
        ("greedy tokens over /api/chat", table(ours), table(torch_texts)),
        ("the same, all at once and streamed", table(streamed), table(torch_texts)),
        ("greedy tokens, with LLMPipeline", table(ours), table(expected["ir"])),
        ("counts of prompt and answer tokens", np.array(counts), np.array(torch_counts)),
    ]
    if gguf:
        found = [reply.message.content for reply in replies["gguf"]]
        stages.append(("GGUF, with LLMPipeline", table(found), table(expected["gguf"])))
    return [compare.parity(stage, found, reference, 0) for stage, found, reference in stages]


def _chat(host: str, model: str, question: str):
    options = GREEDY | {"num_predict": PARITY_TOKENS}
    return client(host).chat(model, [{"role": "user", "content": question}], options=options)


def _stream(host: str, model: str, question: str) -> str:
    options = GREEDY | {"num_predict": PARITY_TOKENS}
    pieces = client(host).chat(model, [{"role": "user", "content": question}], options=options, stream=True)
    return "".join(piece.message.content for piece in pieces)


def _generate_torch(checkpoint: Path) -> tuple[list[str], list[list[int]]]:
    """(answers, [tokens of the prompt, tokens of the answer]) of transformers in FP32."""
    import torch

    model, tokenizer = asked.load_torch(checkpoint)
    texts, counts = [], []
    for question in PARITY_QUESTIONS:
        chat, kind = [{"role": "user", "content": question}], {"return_tensors": "pt", "return_dict": True}
        inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, **kind)
        length = inputs["input_ids"].shape[1]
        options = {"do_sample": False, "max_new_tokens": PARITY_TOKENS, "pad_token_id": tokenizer.pad_token_id}
        with torch.inference_mode():
            ids = model.generate(**inputs, **options)[0, length:]
        counts.append([length, len(ids)])
        texts.append(tokenizer.decode(ids, skip_special_tokens=True))
    return texts, counts


def _tokenizer(checkpoint: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint)


# --- quality ----------------------------------------------------------------------------------------------------


def ask(host: str, model: str, questions: Sequence[tuple[str, str]] = asked.QUESTIONS) -> list[str]:
    """The greedy answers of a model to questions, AT_ONCE at a time."""
    options = GREEDY | {"num_predict": asked.MAX_ANSWER_TOKENS}

    def one(question: str) -> str:
        return client(host).chat(model, [{"role": "user", "content": question}], options=options).message.content

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(one, [question for question, _ in questions]))


def json_replies(host: str, model: str, questions: Sequence[str], schema: dict | None) -> list[str]:
    """The greedy answers to questions for JSON; schema: what `format` demands."""
    options = GREEDY | {"num_predict": JSON_TOKENS}

    def one(question: str) -> str:
        chat = [{"role": "user", "content": question}]
        return client(host).chat(model, chat, options=options, format=schema).message.content

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(one, questions))


def is_valid(text: str, schema: dict = SCHEMA) -> bool:
    """Whether a text is JSON that follows the schema."""
    import jsonschema

    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def json_rows(host: str, models: dict[str, str], questions: Sequence[str]) -> list[dict]:
    """Quality rows of JSON replies with and without `format`, by precision. PyTorch has no such option.

    Raises AssertionError where a reply with `format` does not follow the schema, or all without it do.
    """
    count, table = len(questions), []
    for metric, schema in ((VALID, SCHEMA), (WITHOUT, None)):
        for precision, model in models.items():
            valid = sum(map(is_valid, json_replies(host, model, questions, schema)))
            if (valid == count) != (schema is not None):
                raise AssertionError(f"{valid} of {count}: {metric} at {precision}.")
            table.append(compare.quality(f"{metric}, of {count}", precision, valid, None, None, "higher", of=count))
    return table


def quality(host: str, checkpoint: Path, models: dict[str, str]) -> list[dict]:
    """The quality rows of the notebook. models: names on the server by precision."""
    reference, tokenizer = asked.load_torch(checkpoint)
    expected = asked.ask_torch(reference, tokenizer, NOTEBOOK_QUESTIONS)
    answers = {precision: ask(host, model, NOTEBOOK_QUESTIONS) for precision, model in models.items()}
    few = {"questions": NOTEBOOK_QUESTIONS, "max_fewer": NOTEBOOK_MAX_FEWER, "goal": None}
    return asked.answer_rows(answers, expected, **few) + json_rows(host, models, JSON_QUESTIONS[:NOTEBOOK_JSON])


def examine(model: str = "tiny") -> list[dict]:
    """The quality rows of all questions and all JSON replies at every precision."""
    folders = {precision: convert.prepare(model, precision) for precision in convert.PRECISIONS}
    names = {precision: f"model:{precision.lower()}" for precision in folders}
    reference, tokenizer = asked.load_torch(convert.checkpoint_folder(model))
    expected = asked.ask_torch(reference, tokenizer)
    with serving({names[precision]: folder for precision, folder in folders.items()}) as server:
        answers = {precision: ask(server.host, name) for precision, name in names.items()}
        table = asked.answer_rows(answers, expected)
        return table + json_rows(server.host, names, JSON_QUESTIONS)


# --- speed ------------------------------------------------------------------------------------------------------


@bench.live
def live(host: str, name: str, precision: str = "INT4", model: str = "tiny", rounds: int = 1) -> list[dict]:
    """Speed rows for the notebook: its running server at 1, 4 and 16 clients, and `transformers serve` at one."""
    return _speed({(RUNTIME, precision, ""): Target(host, name, ollama=True)}, model, rounds, 2, 32, most_torch=1)


def everything(model: str = "tiny", rounds: int = 2) -> list[dict]:
    """Speed rows of all precisions and of `transformers serve`."""
    folders = {precision: convert.prepare(model, precision) for precision in convert.PRECISIONS}
    names = {precision: f"model:{precision.lower()}" for precision in folders}
    with serving({names[precision]: folder for precision, folder in folders.items()}) as server:
        ours = {(RUNTIME, precision, ""): Target(server.host, name, ollama=True) for precision, name in names.items()}
        return _speed(ours, model, rounds, 8, 64, most_torch=max(CLIENTS))


def _speed(ours: dict, model: str, rounds: int, requests: int, answer: int, most_torch: int) -> list[dict]:
    table, folder = [], convert.checkpoint_folder(model)
    with peers.transformers_serve(folder) as peer:
        theirs = {(TORCH, bench.torch_precision(), ""): Target(f"{peer}/v1", str(folder), False)}
        for clients in CLIENTS:
            servers = ours | (theirs if clients <= most_torch else {})
            table += rows(measure(servers, clients, rounds, requests=requests, answer=answer), answer=answer)
    return table


def main() -> None:
    with bench.exclusive() as load:
        table = everything()
    notes = {"left out": "llama.cpp: the notebook deepseek_serving compares with it"}
    report.save_bench("ollama_openvino", table, notes | load)
    report.save_examination("ollama_openvino", "tiny", examine())


if __name__ == "__main__":
    main()
