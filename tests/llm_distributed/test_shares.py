"""The plan: every head, column and token belongs to a rank; what cannot be cut is an error."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebooks.llm_distributed.pipeline import shares
from notebooks.llm_distributed.pipeline.shares import Share, plan
from tests.llm_distributed import small

SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "intermediate_size": 1536,
    "vocab_size": 49152,
}


@given(kv=st.integers(1, 8), readers=st.integers(1, 8), groups=st.integers(8, 40), ranks=st.integers(1, 8))
def test_everything_is_held_and_nothing_twice_but_keys_and_values(kv, readers, groups, ranks):
    config = SMOLLM2 | {
        "num_attention_heads": kv * readers,
        "num_key_value_heads": kv,
        "intermediate_size": 64 * groups,
    }
    if ranks > kv * readers:
        with pytest.raises(ValueError, match=f"{ranks} ranks cannot share {kv * readers} attention heads"):
            plan(config, ranks)
        return
    found = plan(config, ranks)
    assert [share.rank for share in found] == list(range(ranks))
    for part, total in (("heads", kv * readers), ("columns", 64 * groups), ("vocabulary", 49152)):
        edges = [getattr(share, part) for share in found]
        assert edges[0][0] == 0 and edges[-1][1] == total
        assert all(first < end for first, end in edges)
        assert all(before[1] == after[0] for before, after in pairwise(edges))
    for share in found:
        assert share.columns[0] % 64 == 0
        heads = range(*share.heads)
        assert {head // readers for head in heads} == set(range(*share.kv_heads))
        assert len(heads) % len(range(*share.kv_heads)) == 0  # a Llama of its own divides its heads evenly


def test_two_ranks_of_smollm2_hold_equal_parameters():
    first, second = plan(SMOLLM2, 2, multiple=1)
    assert (first.heads, first.kv_heads, second.heads, second.kv_heads) == ((0, 6), (0, 2), (6, 9), (2, 3))
    assert (first.columns, second.columns) == ((0, 683), (683, 1536))
    per_layer = [
        2 * 576 * 64 * (shares.length(one.heads) + shares.length(one.kv_heads)) + 3 * 576 * shares.length(one.columns)
        for one in (first, second)
    ]
    assert abs(per_layer[0] - per_layer[1]) < 0.002 * per_layer[0]


def test_with_more_ranks_than_keys_and_values_two_ranks_hold_the_same():
    found = plan(SMOLLM2, 4)
    assert [share.kv_heads for share in found] == [(0, 1), (1, 2), (1, 2), (2, 3)]
    assert [shares.length(share.heads) for share in found] == [3, 2, 1, 3]


@pytest.mark.parametrize(
    ("change", "ranks", "message"),
    [
        ({"model_type": "gpt2"}, 2, "A model of the kind 'gpt2' is not cut here. Take one of: llama"),
        ({}, 10, "10 ranks cannot share 9 attention heads. Take 1 to 9 ranks"),
        ({}, 0, "0 ranks cannot share"),
        ({"intermediate_size": 64}, 2, "64 columns are too few for 2 ranks in multiples of 64"),
    ],
)
def test_what_cannot_be_cut_is_an_error(change, ranks, message):
    with pytest.raises(ValueError, match=message):
        plan(SMOLLM2 | change, ranks)


def test_a_bias_behind_a_sum_is_an_error():
    with pytest.raises(ValueError, match="o_proj.bias: a bias after a sum would be added once for each rank"):
        plan(SMOLLM2, 2)[0].cut("model.layers.0.self_attn.o_proj.bias", SMOLLM2)


def test_a_share_is_written_and_read(tmp_path):
    share = plan(small.SIZE | {"model_type": "llama"}, 2, 16)[1]
    share.write(tmp_path)
    assert Share.read(tmp_path) == share
    with pytest.raises(ValueError, match="holds no share of a model"):
        Share.read(tmp_path / "absent")


def test_shares_of_different_cuts_do_not_fit():
    two, three = plan(SMOLLM2, 2), plan(SMOLLM2, 3)
    assert shares.mismatch(two) == ""
    assert shares.mismatch([two[0], three[1]]) == "rank 1 holds a share of another model or of another cut than rank 0"
    assert shares.mismatch(two[::-1]) == "rank 0 of 2 holds share 1 of 2"
    assert shares.mismatch(three[:2]) == "rank 0 of 2 holds share 0 of 3"
