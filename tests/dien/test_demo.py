"""The demo: its functions, over gradio_client, and in a real browser. Runs on the tiny model."""

import pytest
from gradio_client import Client

from notebooks.dien import demo
from utils.demo import start


@pytest.fixture(scope="module")
def address():
    blocks = demo.make_demo()
    yield start(blocks)
    blocks.close()


def test_the_ranking_is_sorted_and_knows_the_taste():
    rows, figure = demo.rank(1, list(demo.CARTOONS))
    scores = [score for _, _, score in rows]
    assert len(rows) == demo.ROWS_SHOWN and scores == sorted(scores, reverse=True) and 0 < scores[-1] <= scores[0] <= 1
    assert not {title for title, _, _ in rows} & set(demo.CARTOONS)
    others, _ = demo.rank(1, list(demo.ADVENTURES))
    assert [row[0] for row in others] != [row[0] for row in rows]
    bars = figure.axes[0].patches
    assert len(bars) == len(demo.CARTOONS)
    assert sum(bar.get_width() for bar in bars) == pytest.approx(1, abs=0.02)


def test_a_users_history_stops_before_the_held_out_end():
    movies = demo.movielens()
    titles = demo.history_of(1)
    held_out = {movies.movies[movie - 1] for movie in movies.sequences[0][-demo.HELD_OUT :]}
    assert 1 <= len(titles) <= demo.MAX_HISTORY and not set(titles) & held_out


@pytest.mark.parametrize(
    ("user", "titles", "sentence"),
    [
        (1, [], "The history is empty"),
        (0, ["Alien (1979)"], "There is no user 0. Give a number from 1 to 6040"),
        (None, ["Alien (1979)"], "There is no user None"),
        (1, ["Alien"], "MovieLens 1M has no movie 'Alien'"),
    ],
)
def test_bad_input_is_a_sentence(user, titles, sentence):
    with pytest.raises(ValueError, match=sentence):
        demo.rank(user, titles)


def test_a_client_gets_rankings_and_sentences(address):
    client = Client(address, verbose=False)
    assert client.predict(1, api_name="/history") == demo.history_of(1)
    table, picture = client.predict(1, list(demo.ADVENTURES), api_name="/rank")
    assert len(table["data"]) == demo.ROWS_SHOWN and "plot" in picture
    with pytest.raises(Exception, match="There is no user 0"):
        client.predict(0, api_name="/history")
    with pytest.raises(Exception, match="The history is empty"):
        client.predict(1, [], api_name="/rank")


def test_a_visitor_sees_ranking_and_attention(address, visit):
    from playwright.sync_api import expect

    best = demo.rank(1, list(demo.ADVENTURES))[0][0][0]
    with visit(address, height=1500) as page:
        page.get_by_role("button", name="Rank", exact=True).click()
        expect(page.get_by_text(best).first).to_be_visible(timeout=60_000)
        expect(page.get_by_role("img").last).to_be_visible(timeout=30_000)
        page.get_by_label("User, 1 to 6040").fill("0")
        page.get_by_role("button", name="Rank", exact=True).click()
        expect(page.get_by_text("There is no user 0. Give a number from 1 to 6040.")).to_be_visible(timeout=30_000)
