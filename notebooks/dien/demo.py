"""The demo: choose a history of movies, and see other movies ranked and the attention over the history."""

from __future__ import annotations

from functools import cache

import gradio as gr
import numpy as np
from matplotlib.figure import Figure

from notebooks.dien import convert
from notebooks.dien.data import HELD_OUT, MAX_HISTORY, movielens
from notebooks.dien.figures import attention_picture
from notebooks.dien.pipeline import ClickModel

CANDIDATES = 500  # the most popular movies outside the history are ranked
ROWS_SHOWN = 10
ADVENTURES = (
    "Star Wars: Episode IV - A New Hope (1977)",
    "Star Wars: Episode V - The Empire Strikes Back (1980)",
    "Raiders of the Lost Ark (1981)",
    "Terminator, The (1984)",
    "Alien (1979)",
)
CARTOONS = ("Lion King, The (1994)", "Aladdin (1992)", "Beauty and the Beast (1991)", "Toy Story (1995)")


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo. It always shows the tiny model, because only that one is trained on MovieLens."""
    movies = movielens()
    with gr.Blocks(title="DIEN") as demo:
        gr.Markdown(
            "# What would they watch next?\n"
            "Build a history, oldest first, or take a user's. Five hundred popular movies are ranked by the "
            "probability of a click; the picture shows which part of the history the best one was judged by."
        )
        with gr.Row():
            user = gr.Number(value=1, precision=0, label=f"User, 1 to {len(movies.users)}")
            take = gr.Button("Take this user's history")
        history = gr.Dropdown(movies.movies, value=list(ADVENTURES), multiselect=True, label="History, oldest first")
        run = gr.Button("Rank", variant="primary")
        table = gr.Dataframe(headers=["movie", "genre", "probability of a click"], label="Ranked", interactive=False)
        picture = gr.Plot(label="Attention over the history")
        gr.Examples([[list(ADVENTURES)], [list(CARTOONS)]], history)

        def show_history(user: int | None) -> list[str]:
            try:
                return history_of(user)
            except ValueError as error:
                raise gr.Error(str(error)) from error

        def show_ranking(user: int | None, titles: list[str]) -> tuple[list[list], Figure]:
            try:
                return rank(user, titles, device)
            except (ValueError, OSError) as error:  # others stay tracebacks in the log
                raise gr.Error(str(error)) from error

        take.click(show_history, user, history, api_name="history")
        run.click(show_ranking, [user, history], [table, picture], api_name="rank")
    return demo


def history_of(user: int | None) -> list[str]:
    """The titles that a user rated last before the held-out end, oldest first. ValueError for an unknown user."""
    movies = movielens()
    sequence = movies.sequences[_checked(user) - 1][:-HELD_OUT][-MAX_HISTORY:]
    return [movies.movies[movie - 1] for movie in sequence]


def rank(user: int | None, titles: list[str] | None, device: str = "CPU") -> tuple[list[list], Figure]:
    """Rank popular movies after a history: rows of title, genre and score, best first, and the first one's attention.

    Raises ValueError for an unknown user or title and for an empty history.
    """
    movies, user = movielens(), _checked(user)
    titles = list(titles or [])
    if not titles:
        raise ValueError("The history is empty: choose at least one movie.")
    ids = {title: number for number, title in enumerate(movies.movies, 1)}
    if unknown := [title for title in titles if title not in ids]:
        raise ValueError(f"MovieLens 1M has no movie {unknown[0]!r}. Choose from the list.")
    history = np.array([ids[title] for title in titles])
    popular = np.argsort(-movies.popularity)
    candidates = popular[(movies.popularity[popular] > 0) & ~np.isin(popular, history)][:CANDIDATES]
    count = len(candidates)
    scores, attention = _model(device).explain(
        [user] * count,
        candidates,
        movies.category[candidates],
        [history] * count,
        [movies.category[history]] * count,
    )
    best = np.argsort(-scores)[:ROWS_SHOWN]
    rows = [
        [
            movies.movies[candidates[i] - 1],
            movies.genres[movies.category[candidates[i]] - 1],
            round(float(scores[i]), 4),
        ]
        for i in best
    ]
    return rows, attention_picture(titles[-MAX_HISTORY:], attention[best[0]], rows[0][0])


def _checked(user: int | None) -> int:
    """The user's number. Raises ValueError for one that MovieLens does not have."""
    users = len(movielens().users)
    if user is None or not 1 <= user <= users:
        raise ValueError(f"There is no user {user}. Give a number from 1 to {users}.")
    return int(user)


@cache
def _model(device: str) -> ClickModel:
    return ClickModel(convert.prepare("tiny"), device)
