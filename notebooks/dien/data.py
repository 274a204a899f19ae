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

LONGEST = 30  # items of history that the tiny model looks back on
HELD_OUT = 10  # the last interactions of every user, never trained on
SAMPLINGS = ("uniform", "popularity")
TRIES = 50  # draws before a negative is taken from what the user has left


@dataclass(frozen=True)
class Examples:
    """Rows to score: int arrays [n], histories int [n, LONGEST] padded on the right, lengths [n], clicked bool [n]."""

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
        """The network's inputs for some rows, by name."""
        seq_len = self.seq_len[rows]
        arrays = {name: getattr(self, name)[rows] for name in ("uid", "mid", "cat", "mid_his", "cat_his")}
        mask = (np.arange(LONGEST) < seq_len[:, None]).astype(np.float32)
        return arrays | {"mask": mask, "seq_len": seq_len}

    def with_histories(self, mid_his: np.ndarray, cat_his: np.ndarray, seq_len: np.ndarray) -> Examples:
        """The same candidates after other histories."""
        return Examples(self.uid, self.mid, self.cat, mid_his, cat_his, seq_len, self.clicked)


@dataclass(frozen=True)
class MovieLens:
    """users, movies: names, by id - 1; genres by category - 1; category int [n_movies + 1]; sequences by user."""

    users: list[str]
    movies: list[str]
    genres: list[str]
    category: np.ndarray
    sequences: list[np.ndarray]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows of the embedding tables of users, movies and genres, padding included."""
        return len(self.users) + 1, len(self.movies) + 1, len(self.genres) + 1

    @cached_property
    def seen(self) -> np.ndarray:
        """bool [users + 1, movies + 1]: what each user ever rated, which no negative may be."""
        seen = np.zeros(self.sizes[:2], bool)
        for user, sequence in enumerate(self.sequences, 1):
            seen[user, sequence] = True
        seen[:, 0] = True
        return seen

    @cached_property
    def trained(self) -> np.ndarray:
        """Every interaction that is not held out, as movie ids: a draw from it is one by popularity."""
        return np.concatenate([sequence[:-HELD_OUT] for sequence in self.sequences])

    @cached_property
    def popularity(self) -> np.ndarray:
        """int [movies + 1]: how often each movie occurs before the held-out ends."""
        return np.bincount(self.trained, minlength=self.sizes[1])

    def positions(self, held_out: bool) -> tuple[np.ndarray, np.ndarray]:
        """(user, place in the user's sequence) of what is to be predicted: the held-out ends, or all before."""
        users, places = [], []
        for user, sequence in enumerate(self.sequences, 1):
            end = len(sequence) - HELD_OUT
            found = np.arange(end, len(sequence)) if held_out else np.arange(2, end)
            users.append(np.full(len(found), user))
            places.append(found)
        return np.concatenate(users), np.concatenate(places)

    def negatives(self, users: np.ndarray, sampling: str, rng: np.random.Generator) -> np.ndarray:
        """A movie for each user [n] that the user never rated, drawn uniformly or by popularity (before the ends)."""
        if sampling not in SAMPLINGS:
            raise ValueError(f"sampling is {sampling!r}: choose one of {', '.join(SAMPLINGS)}.")
        drawn, again = np.zeros(len(users), np.int64), np.arange(len(users))
        for _ in range(TRIES):
            if sampling == "uniform":
                drawn[again] = rng.integers(1, self.sizes[1], len(again))
            else:
                drawn[again] = rng.choice(self.trained, len(again))
            again = again[self.seen[users[again], drawn[again]]]
        for row in again:  # of users who rated nearly all that could be drawn
            drawn[row] = rng.choice(np.flatnonzero(~self.seen[users[row]]))
        return drawn

    def histories(self, users: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What came before: movie ids [n, LONGEST], the latest ones in time order, padded on the right; lengths."""
        movies, lengths = np.zeros((len(users), LONGEST), np.int64), np.minimum(places, LONGEST)
        for row, (user, place, length) in enumerate(zip(users, places, lengths, strict=True)):
            movies[row, :length] = self.sequences[user - 1][place - length : place]
        return movies, lengths

    def test(self, sampling: str, seed: int = 1, every: int = 1) -> Examples:
        """The held-out interactions of `every` so-manieth user, each followed by a negative for the same history."""
        users, places = self.positions(held_out=True)
        users, places = users[users % every == 0], places[users % every == 0]
        positives = np.array([self.sequences[u - 1][p] for u, p in zip(users, places, strict=True)])
        negatives = self.negatives(users, sampling, np.random.default_rng(seed))
        movies, lengths = (x.repeat(2, 0) for x in self.histories(users, places))
        candidates = np.stack([positives, negatives], 1).reshape(-1)
        clicked = np.tile([True, False], len(users))
        return Examples(
            users.repeat(2), candidates, self.category[candidates], movies, self.category[movies], lengths, clicked
        )


@cache
def movielens(folder: Path | None = None) -> MovieLens:
    """Read the data set, fetched first where it is not there. Ratings count as interactions, whatever their value."""
    folder = folder or weights.fetch("movielens_1m")
    genres_of = {row["item_id:token"]: row["genre:token"].split()[0] for row in _rows(folder / "ml-1m.item")}
    ratings = [
        (row["user_id:token"], row["item_id:token"], float(row["timestamp:float"]))
        for row in _rows(folder / "ml-1m.inter")
    ]
    users = sorted({user for user, _, _ in ratings}, key=lambda name: int(name.rpartition("_")[2]))
    movies = sorted({movie for _, movie, _ in ratings})
    genres = sorted({genres_of[movie] for movie in movies})
    user_id, movie_id = ({name: i for i, name in enumerate(names, 1)} for names in (users, movies))
    genre_id = {name: i for i, name in enumerate(genres, 1)}
    who = np.array([user_id[user] for user, _, _ in ratings])
    what = np.array([movie_id[movie] for _, movie, _ in ratings])
    order = np.lexsort((np.arange(len(ratings)), [time for _, _, time in ratings], who))  # ties as in the file
    sequences = np.split(what[order], np.cumsum(np.bincount(who)[1:])[:-1])
    category = np.array([0, *(genre_id[genres_of[movie]] for movie in movies)])
    return MovieLens(users, movies, genres, category, sequences)


def _rows(path: Path):
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
