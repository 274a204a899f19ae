"""What a rank exchanges at the end: the best token of all ranks, in place of the logits."""

from types import SimpleNamespace

import numpy as np

from notebooks.llm_distributed.pipeline.rank import Rank
from notebooks.llm_distributed.pipeline.shares import plan
from tests.llm_distributed.test_group import together
from tests.llm_distributed.test_shares import SMOLLM2


def chosen(logits: np.ndarray) -> list[int]:
    """The token that each of two ranks chooses, given the logits [vocabulary] of both."""
    shares = plan(SMOLLM2, 2)

    def work(group) -> int:
        share = shares[group.rank]
        rank = SimpleNamespace(group=group, share=share)
        return Rank.best(rank, logits[None, None, slice(*share.vocabulary)])

    return together(2, work)


def test_all_ranks_choose_the_token_with_the_largest_logit():
    logits = np.random.default_rng(0).standard_normal(49152).astype(np.float32)
    for token in (3, 24_575, 24_576, 49_151):
        logits[token] = logits.max() + 1
        assert chosen(logits) == [token] * 2


def test_the_lowest_token_wins_where_logits_are_equal():
    logits = np.zeros(49152, np.float32)
    logits[[30_000, 40_000, 7, 9]] = 1
    assert chosen(logits) == [7, 7]
