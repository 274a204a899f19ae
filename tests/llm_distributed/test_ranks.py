"""Ranks answer like PyTorch; a rank that dies, stops or does not fit ends all of them with a message that names it."""

import os
import shutil
import signal
import sys
from time import monotonic

import numpy as np
import pytest

from notebooks.llm_distributed.pipeline import ranks as launcher
from notebooks.llm_distributed.pipeline.ranks import RankFailed, Ranks
from notebooks.llm_distributed.pipeline.shares import Share
from tests.llm_distributed import small

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_ranks_answer_like_pytorch(count, shares, llama):
    """With four ranks, two hold the same keys and values."""
    with Ranks(shares(count), **small.FP32) as ranks:
        logits = ranks.logits(small.PROMPT)
        steps = list(ranks.generate(small.PROMPT, 12))
        likelihoods = ranks.log_likelihoods(small.PROMPT)
    expected = small.logits(llama, tuple(small.PROMPT))
    assert logits == pytest.approx(expected, abs=5e-3)
    assert [step.token for step in steps] == small.tokens(llama, small.PROMPT, 12)
    shifted = expected[0, :-1].astype(np.float64)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    assert likelihoods == pytest.approx(logs[np.arange(4), small.PROMPT[1:]], abs=5e-3)


def test_a_qwen2_with_biases_and_a_head_of_its_own_is_cut_too(tmp_path):
    source = small.checkpoint(tmp_path / "qwen2", "qwen2")
    with Ranks(small.shares(source, 2, tmp_path / "shares"), **small.FP32) as ranks:
        assert ranks.logits(small.PROMPT) == pytest.approx(small.logits(source, tuple(small.PROMPT)), abs=5e-3)


def test_what_a_token_costs_is_counted(shares):
    with Ranks(shares(2), **small.FP32) as ranks:
        step = list(ranks.generate(small.PROMPT, 3))[-1]
        held = ranks.held
    assert step.calls == [6, 6]  # two layers twice, the embedding, the choice of the token
    assert step.bytes_sent == [5 * 4 * 48 + 16] * 2
    assert all(0 < group < ms for group, ms in zip(step.group_ms, step.ms, strict=True))
    assert step.cache_mb == pytest.approx([2 * 2 * kv * 16 * 7 * 4 / 1e6 for kv in (2, 1)])  # 7 tokens in FP32
    assert [rank["vocabulary"] for rank in held] == [[0, 51], [51, 101]]
    if len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else False:
        assert held[0]["cores"] and not set(held[0]["cores"]) & set(held[1]["cores"])


def test_an_answer_ends_with_an_end_token_or_with_the_reader(shares, llama):
    expected = small.tokens(llama, small.PROMPT, 8)
    with Ranks(shares(2), **small.FP32) as ranks:
        ended = [step.token for step in ranks.generate(small.PROMPT, 8, [expected[2]])]
        assert ended == expected[: expected.index(expected[2]) + 1]
        for _ in ranks.generate(small.PROMPT, 50):
            break  # the reader has enough
        assert [step.token for step in ranks.generate(small.PROMPT, 8)] == expected
        with pytest.raises(ValueError, match="The prompt has no token. Give at least one"):
            next(ranks.generate([], 8))
        vocabulary = max(held["vocabulary"][1] for held in ranks.held)
        with pytest.raises(ValueError, match=f"has the token {vocabulary}, and the model 0 to {vocabulary - 1}"):
            next(ranks.generate([1, vocabulary], 8))
    with pytest.raises(ValueError, match="There is no folder of a share"):
        Ranks([])


@posix
def test_a_killed_rank_is_named_and_the_answer_goes_on_with_new_ranks(shares, llama):
    expected, said = small.tokens(llama, small.PROMPT, 10), []
    ranks = Ranks(shares(2), **small.FP32)
    pids = ranks.pids
    begin = monotonic()
    with pytest.raises(RankFailed, match=rf"Rank 1 \(process {pids[1]}\) was killed by signal 9. All ranks have been"):
        for step in ranks.generate(small.PROMPT, 10_000):
            said.append(step.token)
            if len(said) == 4:
                os.kill(pids[1], signal.SIGKILL)
    assert monotonic() - begin < 30 and len(said) < 10_000
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(RankFailed, match="The ranks have ended. Start new ones"):
        next(ranks.generate(small.PROMPT, 1))
    with Ranks(shares(2), **small.FP32) as new:
        rest = [step.token for step in new.generate(small.PROMPT + said[:4], 6)]
    assert said[:4] + rest == expected


@posix
def test_a_rank_that_stands_still_is_named_within_the_time(shares):
    with Ranks(shares(3), timeout_s=1, **small.FP32) as ranks:
        os.kill(ranks.pids[1], signal.SIGSTOP)
        begin = monotonic()
        with pytest.raises(RankFailed, match=r"Rank 0 reports: Rank 1 did not answer rank 0 within 1 s. All ranks"):
            list(ranks.generate(small.PROMPT, 5))
        assert monotonic() - begin < 10


def test_shares_in_the_wrong_order_are_refused(shares):
    with pytest.raises(ValueError, match="The shares do not fit: rank 0 of 2 holds share 1 of 2"):
        Ranks(shares(2)[::-1])


def test_shares_of_different_cuts_are_refused(shares):
    with pytest.raises(ValueError, match="rank 1 holds a share of another model or of another cut"):
        Ranks([shares(2)[0], shares(3)[1]])


def test_damaged_weights_are_refused(shares, tmp_path):
    folders = [shutil.copytree(folder, tmp_path / folder.name) for folder in shares(2)]
    weights = folders[1] / "openvino_model.bin"
    weights.write_bytes(b"\xff" + weights.read_bytes()[1:])
    with pytest.raises(ValueError, match="The weights of rank 1 are not those that were cut"):
        Ranks(folders)


def test_a_folder_without_a_share_is_refused(shares, tmp_path):
    with pytest.raises(ValueError, match="holds no share of a model"):
        Ranks([shares(2)[0], tmp_path])


@pytest.mark.skipif(sys.platform != "linux", reason="processes choose cores on Linux")
def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5, 6})
    assert launcher.share_out(2) == [[0, 1, 2], [5, 6]]
    assert launcher.share_out(6) == [[0], [1], [2], [5], [6], [0]]
    monkeypatch.delattr(os, "sched_getaffinity")
    assert launcher.share_out(2) == [[], []]


def test_a_share_says_what_it_holds(shares):
    share = Share.read(shares(3)[2])
    assert (share.heads, share.kv_heads, share.vocabulary) == ((4, 6), (2, 3), (67, 101))
