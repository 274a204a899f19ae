"""The other way to divide a model: by layers. Each stage is a process with some of the layers and their cache.

Hidden states go from stage to stage, and the last one sends the chosen token back to the first. With one sequence, one
stage works while the others wait. With several in flight, all stages work.

`Stages` starts the processes; `python -m pipeline.stages` is what a process runs. It talks to `Stages` as `worker` does
to `Ranks`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, time

import numpy as np

from . import worker
from .group import Group
from .ranks import Ranks

STAGE_JSON, MODEL_XML = "stage.json", "openvino_model.xml"


@dataclass(frozen=True)
class Run:
    """What stages answered. tokens: of each sequence; ms: for all. timeline: for each stage (sequence, begin, end), in
    seconds after the first call."""

    tokens: list[list[int]]
    ms: float
    timeline: list[list[tuple[int, float, float]]]


class Stages(Ranks):
    """A language model cut between layers, on several processes; arguments as of `Ranks`."""

    def __init__(self, folders: Sequence[str | Path], cores: Sequence[Sequence[int]] | None = None, **options) -> None:
        super().__init__(folders, cores, module=__name__, **options)

    def run(self, prompts: Sequence[Sequence[int]], count: int) -> Run:
        """Greedy decoding of `count` tokens after each prompt; all prompts are in flight at once.

        Raises RankFailed when a stage is gone or stuck, ValueError for an empty prompt, and where nothing is asked for.
        """
        prompts = [[int(token) for token in ids] for ids in prompts]
        if not prompts or count < 1:
            raise ValueError("There is nothing to generate. Give at least one prompt, and a count of 1 or more.")
        if not all(prompts):
            raise ValueError("A prompt has no token. Give at least one to each.")
        begin = perf_counter()
        self.ask(do="run", prompts=prompts, count=count)
        answers = self.answers(self.timeout_s)
        ms = 1e3 * (perf_counter() - begin)
        first = min(call[1] for answer in answers for call in answer["timeline"])
        lines = [[(int(s), a - first, b - first) for s, a, b in answer["timeline"]] for answer in answers]
        return Run(answers[-1]["tokens"], ms, lines)


class Stage:
    """The layers of one process, with a cache for each sequence."""

    def __init__(self, folder: str | Path, group: Group, device: str = "CPU", **properties) -> None:
        import openvino as ov

        self.group, self.about = group, json.loads((Path(folder) / STAGE_JSON).read_text(encoding="utf-8"))
        for rank, sent in enumerate(group.all_gather(_padded(self.about))):
            other = json.loads(sent.tobytes())
            if (other["source"], other["stages"]) != (self.about["source"], group.size) or other["stage"] != rank:
                raise ValueError(f"Rank {rank} holds stage {other['stage']} of {other['stages']}, or another model.")
        self._compiled = ov.Core().compile_model(Path(folder) / MODEL_XML, device, properties)
        self.first, self.last = group.rank == 0, group.rank == group.size - 1

    def run(self, prompts: list[list[int]], count: int) -> tuple[list[list[int]], list[tuple[int, float, float]]]:
        """The tokens of each prompt (at the last stage), and when this stage computed what."""
        requests = [self._compiled.create_infer_request() for _ in prompts]
        tokens: list[list[int]] = [[] for _ in prompts]
        timeline, past = [], [0] * len(prompts)
        for step in range(count):
            for place, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
                new = len(prompt) if step == 0 else 1
                inputs = self._inputs(prompt if step == 0 else None, new)
                inputs |= {
                    "attention_mask": np.ones((1, past[place] + new), np.int64),
                    "position_ids": np.arange(past[place], past[place] + new)[None],
                    "beam_idx": np.zeros(1, np.int32),
                }
                begin = time()
                request.infer(inputs)
                timeline.append((place, begin, time()))
                past[place] += new
                output = request.get_output_tensor(0).data  # [1, new, hidden], of the last stage [1, new, vocabulary]
                if not self.last:
                    self.group.send(output, self.group.rank + 1)
                    continue
                tokens[place].append(int(output[0, -1].argmax()))
                if step < count - 1 and not self.first:
                    self.group.send(np.array(tokens[place][-1:], np.int64), 0)
        return tokens, timeline

    def _inputs(self, prompt: list[int] | None, new: int) -> dict[str, np.ndarray]:
        """The token ids [1, new] of the first stage, or the hidden states [1, new, hidden] of the stage before."""
        if not self.first:
            shape = (1, new, self.about["hidden_size"])
            return {"hidden": self.group.receive(shape, np.float32, self.group.rank - 1)}
        if prompt is None:
            return {"input_ids": self.group.receive((1, 1), np.int64, self.group.size - 1)}
        return {"input_ids": np.array([prompt])}


def _padded(about: dict) -> np.ndarray:
    return np.frombuffer(json.dumps(about).encode().ljust(1024), np.uint8)


def _serve(stage: Stage, request: dict, answer) -> None:
    tokens, timeline = stage.run(request["prompts"], request["count"])
    answer(done=True, tokens=tokens, timeline=timeline)


if __name__ == "__main__":
    sys.exit(worker.main(make=Stage, serve=_serve, describe=lambda stage: stage.about))
