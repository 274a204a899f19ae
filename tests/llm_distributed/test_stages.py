"""Stages answer like PyTorch, with several sequences in flight; a stage that dies is named."""

import os
import signal
import threading
from time import sleep

import pytest

from notebooks.llm_distributed.convert import staging
from notebooks.llm_distributed.measuring import speed
from notebooks.llm_distributed.pipeline.ranks import RankFailed
from notebooks.llm_distributed.pipeline.stages import Stages
from tests.llm_distributed import small

PROMPTS = [small.PROMPT, [7, 7, 99], [3]]


@pytest.fixture(scope="module")
def stages(llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages")
    staging.convert(llama, {"stages": 2, "source": "a test"}, folder)
    return [folder / "stage-0", folder / "stage-1"]


def test_sequences_in_flight_get_their_own_tokens(stages, llama):
    with Stages(stages, **small.FP32) as running:
        run = running.run(PROMPTS, 8)
        again = running.run(PROMPTS[:1], 8)
    assert run.tokens == [small.tokens(llama, ids, 8) for ids in PROMPTS]
    assert again.tokens == run.tokens[:1] and run.ms > 0
    for calls in run.timeline:
        assert [call[0] for call in calls] == [0, 1, 2] * 8
        assert all(0 <= begin <= end for _, begin, end in calls)


def test_a_stage_says_which_layers_it_has(stages):
    with Stages(stages, **small.FP32) as running:
        assert [stage["layers"] for stage in running.held] == [[0, 1], [1, 2]]


def test_measuring_runs_all_prompts_in_flight(stages, llama):
    run = speed.in_flight(stages, PROMPTS[:2], 3)
    assert run.tokens == [small.tokens(llama, ids, 3) for ids in PROMPTS[:2]]


def test_stages_in_the_wrong_order_are_refused(stages):
    with pytest.raises(ValueError, match="Rank 0 holds stage 1 of 2"):
        Stages(stages[::-1])


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_stage_that_dies_is_named(stages):
    with Stages(stages, timeout_s=30, **small.FP32) as running:
        threading.Thread(target=lambda: (sleep(0.5), os.kill(running.pids[1], signal.SIGKILL))).start()
        with pytest.raises(RankFailed, match=r"Rank 1 \(process \d+\) was killed by signal 9"):
            running.run(PROMPTS, 100_000)


def test_bad_input_is_an_error(llama, tmp_path, stages):
    with pytest.raises(ValueError, match="3 stages cannot share 2 layers. Take 1 to 2 stages"):
        staging.convert(llama, {"stages": 3, "source": "a test"}, tmp_path)
    with Stages(stages) as running, pytest.raises(ValueError, match="A prompt has no token"):
        running.run([[1], []], 3)
    for prompts, count in (([], 3), ([[1]], 0)):
        with Stages(stages) as running, pytest.raises(ValueError, match="There is nothing to generate"):
            running.run(prompts, count)
