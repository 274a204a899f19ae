"""The demo: choose a history of movies, see other movies ranked, and click one to see its attention."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import gradio as gr
import numpy as np
from matplotlib.figure import Figure

from notebooks.dien import convert
from notebooks.dien.data import HELD_OUT, MAX_HISTORY, movielens
from notebooks.dien.figures import CARTOONS, attention_picture
from notebooks.dien.pipeline import ClickModel
from utils.demo import shown_errors

CANDIDATES = 500  # the most popular movies outside the history are ranked
ROWS_SHOWN = 10
ADVENTURES = (
    "Star Wars: Episode IV - A New Hope (1977)",
    "Star Wars: Episode V - The Empire Strikes Back (1980)",
    "Raiders of the Lost Ark (1981)",
    "Terminator, The (1984)",
    "Alien (1979)",
)
INTRODUCTION = """# What would they watch next?

The model ranks 500 popular movies by the probability that this person watches them next. Add or remove a movie, or take
a user's history: the ranking follows. Click a row to see its attention."""
ONLY_TINY = """

**You chose `{model}`, and this page shows `tiny`.** Only `tiny` was trained on movies; the authors' checkpoint knows
books, by numbers without titles."""
ATTENTION = """## Attention weights: they scale a gate of the second GRU, and are no reason for the score

On average the weights of this model rise towards the latest movies, whatever the candidate is. In most histories the
same movie has the largest weight for almost every candidate. Click several rows to see it."""


def make_demo(model: str = "tiny", device: str = "CPU", ir: Path | None = None) -> gr.Blocks:
    """The Blocks of the demo. It always shows the tiny model, because only that one is trained on MovieLens.

    ir: the .xml file of the tiny model, by default that of `convert.prepare`.
    """
    movies = movielens()
    ir = ir or convert.prepare("tiny")

    with gr.Blocks(title="DIEN") as demo:
        gr.Markdown(INTRODUCTION + ("" if model == "tiny" else ONLY_TINY.format(model=model)))
        with gr.Row():
            user = gr.Number(value=1, precision=0, label=f"User, 1 to {len(movies.users)}")
            take = gr.Button("Take this user's history")
        history = gr.Dropdown(movies.movies, value=list(ADVENTURES), multiselect=True, label="History, oldest first")
        run = gr.Button("Rank", variant="primary")
        gr.Examples([[list(ADVENTURES)], [list(CARTOONS)]], history, example_labels=["Adventures", "Cartoons"])
        headers = ["rank", "movie", "genres", "probability"]
        look = {"wrap": True, "column_widths": ["8%", "43%", "32%", "17%"], "max_height": 800}
        table = gr.Dataframe(headers=headers, label="Ranked", interactive=False, **look)
        gr.Markdown(ATTENTION)
        picture = gr.Plot(label="Attention over the history")
        ranked = gr.State()  # the user and the history that the table belongs to

        def show_history(user: int | None) -> list[str]:
            with shown_errors():
                return history_of(user)

        def show_ranking(user: int | None, titles: list[str]) -> tuple[list[list], Figure, tuple]:
            with shown_errors():
                rows = rank(user, titles, device, ir)
                shown = [[*others, f"{score:.3f}"] for *others, score in rows]
                return shown, attention_of(user, titles, rows[0][1], device, ir), (user, titles)

        def show_attention(ranked: tuple, event: gr.SelectData) -> Figure:
            user, titles = ranked
            return attention_of(user, titles, event.row_value[1], device, ir)

        take.click(show_history, user, history, api_name="history")
        run.click(show_ranking, [user, history], [table, picture, ranked], api_name="rank")
        gr.on([demo.load, history.change], show_ranking, [user, history], [table, picture, ranked], api_name=False)
        table.select(show_attention, ranked, picture, api_name=False)
    return demo


def history_of(user: int | None) -> list[str]:
    """The titles that a user rated last before the held-out end, oldest first. ValueError for an unknown user."""
    movies = movielens()
    sequence = movies.sequences[_checked(user) - 1][:-HELD_OUT][-MAX_HISTORY:]
    return [movies.movies[movie - 1] for movie in sequence]


def rank(
    user: int | None, titles: list[str] | None, device: str = "CPU", ir: Path | None = None
) -> list[list[str | int | float]]:
    """Rank popular movies after a history: rows of rank, title, genres and score, best first.

    Raises ValueError for an unknown user or title and for an empty history.
    """
    movies, user, history = movielens(), _checked(user), _ids(titles)
    candidates = movies.candidates(history, CANDIDATES)
    scores, _ = _explain(user, history, candidates, device, ir)
    best = np.argsort(-scores)[:ROWS_SHOWN]
    return [
        [place, movies.movies[movie - 1], movies.movie_genres[movie - 1], float(score)]
        for place, (movie, score) in enumerate(zip(candidates[best], scores[best], strict=True), 1)
    ]


def attention_of(
    user: int | None, titles: list[str] | None, candidate: str, device: str = "CPU", ir: Path | None = None
) -> Figure:
    """The attention over a history when a candidate, a title, is scored. Raises ValueError as `rank` does."""
    _, attention = _explain(_checked(user), _ids(titles), _ids([candidate]), device, ir)
    return attention_picture(list(titles)[-MAX_HISTORY:], attention[0], candidate)


def _explain(
    user: int, history: np.ndarray, candidates: np.ndarray, device: str, ir: Path | None
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Scores and attention of candidates after one history."""
    category, count = movielens().category, len(candidates)
    histories, history_categories = [history] * count, [category[history]] * count
    model = _model(ir or convert.prepare("tiny"), device)
    return model.explain([user] * count, candidates, category[candidates], histories, history_categories)


def _ids(titles: list[str] | None) -> np.ndarray:
    """The ids of movies. Raises ValueError for an unknown title and for none at all."""
    if not titles:
        raise ValueError("The history is empty: choose at least one movie.")
    ids = {title: number for number, title in enumerate(movielens().movies, 1)}
    if unknown := [title for title in titles if title not in ids]:
        raise ValueError(f"MovieLens 1M has no movie {unknown[0]!r}. Choose from the list.")
    return np.array([ids[title] for title in titles])


def _checked(user: int | None) -> int:
    """The user's number. Raises ValueError for one that MovieLens does not have."""
    users = len(movielens().users)
    if user is None or not 1 <= user <= users:
        raise ValueError(f"There is no user {user}. Give a number from 1 to {users}.")
    return int(user)


@cache
def _model(ir: Path, device: str) -> ClickModel:
    return ClickModel(ir, device)
