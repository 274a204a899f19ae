"""Offline inference with Ray Data: a file of prompts becomes a file of answers, whatever dies on the way.

An actor of Ray Data generates the answers to a batch of prompts, and writes them as one file before it takes the next
batch. The file appears whole or not at all. A prompt is known by a hash of its text and of the settings, so a later
run finds what is finished.

The guarantee, for processes that are killed: no answer that was written is lost, or generated again. What a killed
process was generating, at most one batch for each worker, is generated again. (A machine that loses its power may also
lose files that its disk has not written yet.)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray

from utils.files import replaced
from utils.locks import alone
from utils.ray_cluster.cluster import CPUS

ANSWERS = "answers.jsonl"


class Generator:
    """Answers a list of prompts in one batch, greedily, `tokens` at most. model: an IR folder with tokenizers."""

    def __init__(self, model: Path, tokens: int, properties: Mapping[str, Any] | None = None) -> None:
        import openvino_genai

        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, openvino_genai.SchedulerConfig(), "CPU", dict(properties or {})
        )
        self._tokenizer = self._pipeline.get_tokenizer()
        self._config = self._pipeline.get_config()
        self._config.do_sample, self._config.max_new_tokens = False, tokens

    def __call__(self, prompts: Sequence[str]) -> list[str]:
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        texts = [self._tokenizer.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
        ids = [self._tokenizer.encode(text, add_special_tokens=False).input_ids for text in texts]
        results = self._pipeline.generate(ids, [self._config] * len(ids))
        return [self._tokenizer.decode(result.m_generation_ids[0]) for result in results]


class Worker:
    """What an actor of Ray Data runs. folder: of the job; make: called with `arguments`, returns a `Generator`."""

    def __init__(self, folder: Path, make: Callable, arguments: Sequence = ()) -> None:
        self.folder, self.generate = folder, make(*arguments)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Write the answers to a batch with the columns "key" and "prompt"; returns its column "key"."""
        keys, prompts = batch["key"].tolist(), batch["prompt"].tolist()
        file = _parts(self.folder) / f"{_sha256(keys)}.jsonl"
        if not file.exists():  # else a worker has died between writing and returning, and Ray tries again
            answers = self.generate(prompts)
            rows = zip(keys, prompts, answers, strict=True)
            _write(file, [{"key": key, "prompt": prompt, "answer": answer} for key, prompt, answer in rows])
        return {"key": batch["key"]}


def waiting(prompts: Sequence[str], folder: Path, settings: Mapping) -> list[dict[str, str]]:
    """The prompts without an answer in `folder`, as rows for Ray Data; equal prompts make one row.

    settings: what else the answers depend on, such as the model. Raises ValueError for an empty list of prompts, and
    for a prompt that is no text.
    """
    if not prompts or not all(isinstance(prompt, str) and prompt.strip() for prompt in prompts):
        raise ValueError("There are no prompts, or one of them is empty or no text. Give a list of texts.")
    rows = {_sha256([dict(settings), prompt]): prompt for prompt in prompts}
    done = _finished(folder)
    return [{"key": key, "prompt": prompt} for key, prompt in rows.items() if key not in done]


def collect(prompts: Sequence[str], folder: Path, settings: Mapping) -> Path:
    """Write answers.jsonl, a line {"prompt", "answer"} for each prompt in their order; returns its path.

    Raises ValueError where answers are missing.
    """
    done = _finished(folder)
    keys = [_sha256([dict(settings), prompt]) for prompt in prompts]
    if missing := sum(key not in done for key in keys):
        raise ValueError(f"{missing} of {len(keys)} prompts have no answer in {folder} yet. Run the job again.")
    _write(folder / ANSWERS, [{name: done[key][name] for name in ("prompt", "answer")} for key in keys])
    return folder / ANSWERS


def run(
    prompts: Sequence[str],
    folder: Path,
    make: Callable,
    arguments: Sequence = (),
    *,
    settings: Mapping,
    workers: int = 2,
    batch: int = 16,
) -> Path:
    """Answer all prompts on the cluster that this process is connected to; returns the path of answers.jsonl.

    Answers that `folder` has already are kept. batch: prompts that a worker generates and writes together. A second
    process with the same folder waits for the first one. Raises ValueError as `waiting` does.
    """
    _parts(folder).mkdir(parents=True, exist_ok=True)
    with alone(folder / "lock", f"Another process works in {folder}: waiting."):
        if rows := waiting(prompts, folder, settings):
            blocks = -(-len(rows) // batch)  # a block is what Ray Data gives to a worker at a time
            ray.data.from_items(rows, override_num_blocks=blocks).map_batches(
                Worker,
                fn_constructor_args=(folder, make, tuple(arguments)),
                batch_size=batch,
                compute=ray.data.ActorPoolStrategy(size=workers),
                num_cpus=CPUS,
            ).materialize()
        return collect(prompts, folder, settings)


def _parts(folder: Path) -> Path:
    return Path(folder) / "parts"


def _finished(folder: Path) -> dict[str, dict[str, str]]:
    """The stored answers by key. Of answers to the same prompt, the first file's counts."""
    found: dict[str, dict[str, str]] = {}
    for file in sorted(_parts(folder).glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:  # str.splitlines would also break at characters inside a text
            for row in map(json.loads, lines):
                found.setdefault(row["key"], row)
    return found


def _write(file: Path, rows: Sequence[Mapping]) -> None:
    with replaced(file) as partial:
        partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
