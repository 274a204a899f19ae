"""MovieLens as sequences: time order, held-out ends, histories that never look ahead, negatives never seen."""

import numpy as np
import pytest

from notebooks.dien.data import HELD_OUT, MAX_HISTORY, SAMPLINGS, MovieLens, movielens
from tests.dien.small import write_ratings


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> MovieLens:
    return movielens(write_ratings(tmp_path_factory.mktemp("ratings")))


def test_sequences_are_in_time_order_and_genres_are_the_first(small):
    assert small.users == [f"1m_{user}" for user in range(1, 7)]
    assert [small.movies[movie - 1] for movie in small.sequences[2][:3]] == ["Movie 03", "Movie 04", "Movie 05"]
    assert small.genres == ["Action", "Comedy", "Drama"]
    assert small.sizes == (7, 26, 4)
    assert [small.movie_genres[movie - 1] for movie in small.sequences[2][:3]] == ["Drama", "Comedy, Drama", "Action"]
    assert [small.genres[c - 1] for c in small.category[small.sequences[2][:3]]] == ["Drama", "Comedy", "Action"]


def test_no_training_position_is_held_out(small):
    training, test = (set(zip(*small.positions(held_out), strict=True)) for held_out in (False, True))
    assert not training & test
    assert len(test) == 6 * HELD_OUT
    assert max(place for _, place in training) == 20 - HELD_OUT - 1
    assert small.popularity.sum() == len(small.training_items) == 6 * (20 - HELD_OUT)


def test_a_history_is_what_came_before(small):
    users, places = np.array([1, 4, 6]), np.array([1, 7, 19])
    movies, lengths = small.histories(users, places)
    assert movies.shape == (3, MAX_HISTORY)
    for row, (user, place) in enumerate(zip(users, places, strict=True)):
        assert movies[row, : lengths[row]].tolist() == small.sequences[user - 1][:place].tolist()
        assert (movies[row, lengths[row] :] == 0).all()


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_negative_was_never_rated_by_its_user(small, sampling):
    users = np.repeat(np.arange(1, 7), 200)
    drawn = small.negatives(users, sampling, np.random.default_rng(0))
    assert not small.rated[users, drawn].any()
    assert drawn.min() >= 1


def test_training_does_not_know_which_movies_are_held_out():
    real = movielens()
    users = np.repeat(np.arange(1, 6041), 5)
    drawn = real.negatives(users, "popularity", np.random.default_rng(0), training=True)
    assert real.rated[users, drawn].any() and not real.rated_before[users, drawn].any()


def test_popularity_samples_by_popularity():
    real = movielens()
    drawn = real.negatives(np.repeat(np.arange(1, 6041), 5), "popularity", np.random.default_rng(0))
    uniform = real.negatives(np.repeat(np.arange(1, 6041), 5), "uniform", np.random.default_rng(0))
    assert real.popularity[drawn].mean() > 2 * real.popularity[uniform].mean()
    with pytest.raises(ValueError, match="choose one of uniform, popularity"):
        real.negatives(np.array([1]), "random", np.random.default_rng(0))


def test_candidates_are_popular_and_new(small):
    history = small.sequences[2][:10]
    candidates = small.candidates(without=history, count=3)
    counts = small.popularity[candidates]
    assert len(candidates) == 3 and not set(candidates) & {0, *history}
    assert (np.diff(counts) <= 0).all() and counts[0] == np.delete(small.popularity, history).max()


def test_the_test_set_holds_a_negative_for_every_positive(small):
    examples = small.test_set("uniform")
    assert len(examples) == 2 * 6 * HELD_OUT and examples.clicked.mean() == 0.5
    assert (examples.mid_his[::2] == examples.mid_his[1::2]).all() and (examples.uid[::2] == examples.uid[1::2]).all()
    assert not small.rated[examples.uid[1::2], examples.mid[1::2]].any()
    first = examples.inputs(slice(0, 1))
    assert first["mask"].sum() == first["seq_len"][0] == 20 - HELD_OUT
    again = small.test_set("uniform")
    assert (again.mid == examples.mid).all()


def test_the_real_data_is_movielens_1m():
    real = movielens()
    assert real.sizes == (6041, 3707, 19)
    assert sum(map(len, real.sequences)) == 1_000_209
