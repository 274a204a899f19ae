"""MovieLens 1M as sequences of movies in time order, with held-out ends and sampled negatives.

Numpy alone. The files come from a package at set-up (GroupLens' terms forbid passing them on, so they are never
committed). Ids begin at 1; 0 is padding.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from utils import weights

MAX_HISTORY = 30  # items; the tiny model reads that many of the latest ones
HELD_OUT = 10  # interactions at the end of every user's sequence that are never trained on
SAMPLINGS = ("uniform", "popularity")
MAX_DRAWS = 50  # random draws of a negative before it is taken from the movies that the user has not rated


@dataclass(frozen=True)
class Examples:
    """Rows to score: int [n]; histories int [n, MAX_HISTORY], padded on the right; lengths [n]; clicked bool [n]."""

    uid: np.ndarray
    mid: np.ndarray
    cat: np.ndarray
    mid_his: np.ndarray
    cat_his: np.ndarray
    seq_len: np.ndarray
    clicked: np.ndarray

    def __len__(self) -> int:
        return len(self.uid)

    def inputs(self, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        """The network's inputs for some rows, by name: [n] or [n, MAX_HISTORY] each."""
        seq_len = self.seq_len[rows]
        arrays = {name: getattr(self, name)[rows] for name in ("uid", "mid", "cat", "mid_his", "cat_his")}
        mask = (np.arange(MAX_HISTORY) < seq_len[:, None]).astype(np.float32)
        return arrays | {"mask": mask, "seq_len": seq_len}

    def with_histories(self, mid_his: np.ndarray, cat_his: np.ndarray, seq_len: np.ndarray) -> Examples:
        """The same candidates after other histories."""
        return Examples(self.uid, self.mid, self.cat, mid_his, cat_his, seq_len, self.clicked)


@dataclass(frozen=True)
class MovieLens:
    """The data set as lists and arrays.

    users, movies, genres: names, at the index id - 1. movie_genres: all genres of each movie, at the same index.
    category: the id of each movie's first genre, int [movies + 1]. sequences: movie ids of each user in time order, at
    the index user id - 1.
    """

    users: list[str]
    movies: list[str]
    movie_genres: list[str]
    genres: list[str]
    category: np.ndarray
    sequences: list[np.ndarray]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows of the embedding tables of users, movies and genres, padding included."""
        return len(self.users) + 1, len(self.movies) + 1, len(self.genres) + 1

    @cached_property
    def rated(self) -> np.ndarray:
        """bool [users + 1, movies + 1]: the movies that a user ever rated, and padding."""
        return self._table(self.sequences)

    @cached_property
    def rated_before(self) -> np.ndarray:
        """The same without the held-out ends: what training may know."""
        return self._table([sequence[:-HELD_OUT] for sequence in self.sequences])

    def _table(self, sequences: list[np.ndarray]) -> np.ndarray:
        rated = np.zeros(self.sizes[:2], bool)
        for user, sequence in enumerate(sequences, 1):
            rated[user, sequence] = True
        rated[:, 0] = True
        return rated

    @cached_property
    def training_items(self) -> np.ndarray:
        """The movie id of every interaction that is not held out; a uniform draw from it samples by popularity."""
        return np.concatenate([sequence[:-HELD_OUT] for sequence in self.sequences])

    @cached_property
    def popularity(self) -> np.ndarray:
        """int [movies + 1]: how often each movie occurs before the held-out ends."""
        return np.bincount(self.training_items, minlength=self.sizes[1])

    def candidates(self, without: np.ndarray, count: int) -> np.ndarray:
        """The ids of the most popular movies other than these, at most `count`, the most popular first."""
        order = np.argsort(-self.popularity)
        return order[(self.popularity[order] > 0) & ~np.isin(order, without)][:count]

    def positions(self, held_out: bool) -> tuple[np.ndarray, np.ndarray]:
        """User ids and positions in their sequences [n] of the items to predict: the held-out ends, or all before."""
        users, positions = [], []
        for user, sequence in enumerate(self.sequences, 1):
            end = len(sequence) - HELD_OUT
            targets = np.arange(end, len(sequence)) if held_out else np.arange(2, end)
            users.append(np.full(len(targets), user))
            positions.append(targets)
        return np.concatenate(users), np.concatenate(positions)

    def negatives(
        self, users: np.ndarray, sampling: str, rng: np.random.Generator, *, training: bool = False
    ) -> np.ndarray:
        """A movie for each user [n] that the user never rated, drawn uniformly or by its popularity in training.

        training: the draw does not know the held-out end, so it may be a movie that the user rates there.
        """
        if sampling not in SAMPLINGS:
            raise ValueError(f"sampling is {sampling!r}: choose one of {', '.join(SAMPLINGS)}.")
        rated = self.rated_before if training else self.rated
        drawn = np.zeros(len(users), np.int64)
        pending = np.arange(len(users))  # rows without a valid draw so far
        for _ in range(MAX_DRAWS):
            if sampling == "uniform":
                drawn[pending] = rng.integers(1, self.sizes[1], len(pending))
            else:
                drawn[pending] = rng.choice(self.training_items, len(pending))
            pending = pending[rated[users[pending], drawn[pending]]]
        for row in pending:  # of users who rated nearly all that could be drawn
            drawn[row] = rng.choice(np.flatnonzero(~rated[users[row]]))
        return drawn

    def items_at(self, users: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Movie ids [n] at positions [n] in the sequences of users [n]."""
        return np.array([self.sequences[user - 1][place] for user, place in zip(users, positions, strict=True)])

    def histories(self, users: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The latest items before positions [n], and their number [n].

        The items are movie ids [n, MAX_HISTORY] in time order, padded on the right.
        """
        movies, lengths = np.zeros((len(users), MAX_HISTORY), np.int64), np.minimum(positions, MAX_HISTORY)
        for row, (user, place, length) in enumerate(zip(users, positions, lengths, strict=True)):
            movies[row, :length] = self.sequences[user - 1][place - length : place]
        return movies, lengths

    def test_set(self, sampling: str, seed: int = 1, every: int = 1) -> Examples:
        """The held-out interactions of users whose id `every` divides, a negative of the same history after each."""
        users, positions = self.positions(held_out=True)
        chosen = users % every == 0
        users, positions = users[chosen], positions[chosen]
        positives = self.items_at(users, positions)
        negatives = self.negatives(users, sampling, np.random.default_rng(seed))
        movies, lengths = (x.repeat(2, 0) for x in self.histories(users, positions))
        candidates = np.stack([positives, negatives], 1).reshape(-1)
        clicked = np.tile([True, False], len(users))
        return Examples(
            users.repeat(2), candidates, self.category[candidates], movies, self.category[movies], lengths, clicked
        )


@cache
def movielens(folder: Path | None = None) -> MovieLens:
    """Read the data set, and fetch it first if needed. A rating counts as an interaction, whatever its value."""
    folder = folder or weights.fetch("movielens_1m")
    genres_of = {row["item_id:token"]: row["genre:token"].split() for row in _rows(folder / "ml-1m.item")}
    ratings = [
        (row["user_id:token"], row["item_id:token"], float(row["timestamp:float"]))
        for row in _rows(folder / "ml-1m.inter")
    ]
    users = sorted({user for user, _, _ in ratings}, key=lambda name: int(name.rpartition("_")[2]))
    movies = sorted({movie for _, movie, _ in ratings})
    genres = sorted({genres_of[movie][0] for movie in movies})
    user_id, movie_id = ({name: i for i, name in enumerate(names, 1)} for names in (users, movies))
    genre_id = {name: i for i, name in enumerate(genres, 1)}
    rating_users = np.array([user_id[user] for user, _, _ in ratings])
    rating_movies = np.array([movie_id[movie] for _, movie, _ in ratings])
    times = [time for _, _, time in ratings]
    order = np.lexsort((np.arange(len(ratings)), times, rating_users))  # ties stay in the order of the file
    sequences = np.split(rating_movies[order], np.cumsum(np.bincount(rating_users)[1:])[:-1])
    category = np.array([0, *(genre_id[genres_of[movie][0]] for movie in movies)])
    movie_genres = [", ".join(genres_of[movie]) for movie in movies]
    return MovieLens(users, movies, movie_genres, genres, category, sequences)


def _rows(path: Path):
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
