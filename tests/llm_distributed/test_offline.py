"""The offline job without Ray: what is stored, what a later run finds, and what is an error."""

import json

import numpy as np
import pytest

from notebooks.llm_distributed.measuring.scaling import Counted, begun
from notebooks.llm_distributed.server import offline

SETTINGS = {"model": "upper", "tokens": 8}
PROMPTS = ["one", "two\u2028three\n", "one", "vier"]


class Upper:
    """Answers with the prompt in capitals, and fails at `broken`."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def __call__(self, prompts):
        if self.broken in prompts:
            raise RuntimeError("the generator failed")
        return [prompt.upper() for prompt in prompts]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "parts").mkdir()
    return tmp_path


def batch(rows: list[dict]) -> dict[str, np.ndarray]:
    return {name: np.array([row[name] for row in rows], object) for name in ("key", "prompt")}


def test_every_prompt_has_its_answer_and_equal_prompts_are_generated_once(folder):
    rows = offline.waiting(PROMPTS, folder, SETTINGS)
    assert [row["prompt"] for row in rows] == ["one", "two\u2028three\n", "vier"]
    offline.Worker(folder, Upper)(batch(rows))
    assert offline.waiting(PROMPTS, folder, SETTINGS) == []
    with offline.collect(PROMPTS, folder, SETTINGS).open(encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    assert found == [{"prompt": prompt, "answer": prompt.upper()} for prompt in PROMPTS]


def test_a_batch_that_was_written_is_not_generated_again(folder):
    rows, log = offline.waiting(PROMPTS, folder, SETTINGS), folder / "log"
    for _ in range(2):  # the second time as Ray tries again after a worker that died before it returned
        worker = offline.Worker(folder, Counted, (log, Upper))
        assert worker(batch(rows))["key"].tolist() == [row["key"] for row in rows]
    assert [count for _, count in begun(log)] == [3]


def test_a_generator_that_fails_leaves_nothing(folder):
    rows = offline.waiting(PROMPTS, folder, SETTINGS)
    with pytest.raises(RuntimeError, match="the generator failed"):
        offline.Worker(folder, Upper, ("vier",))(batch(rows))
    assert list((folder / "parts").iterdir()) == []
    with pytest.raises(ValueError, match="4 of 4 prompts have no answer in .* Run the job again"):
        offline.collect(PROMPTS, folder, SETTINGS)


def test_answers_of_other_settings_do_not_count(folder):
    offline.Worker(folder, Upper)(batch(offline.waiting(PROMPTS, folder, SETTINGS)))
    assert len(offline.waiting(PROMPTS, folder, SETTINGS | {"tokens": 9})) == 3


@pytest.mark.parametrize("prompts", [[], ["one", " "], ["one", None]])
def test_bad_prompts_are_an_error(prompts, folder):
    with pytest.raises(ValueError, match="There are no prompts, or one of them is empty or no text"):
        offline.waiting(prompts, folder, SETTINGS)
