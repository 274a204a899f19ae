"""The demo: its functions, over gradio_client, and in a real browser. Runs on the tiny model."""

import re

import pytest
from gradio_client import Client

from notebooks.dien import demo
from utils.demo import start


@pytest.fixture(scope="module")
def address(serve_demo):
    return serve_demo(demo.make_demo())


def test_the_ranking_is_sorted_and_knows_the_taste():
    rows = demo.rank(1, list(demo.CARTOONS))
    scores = [score for *_, score in rows]
    assert len(rows) == demo.ROWS_SHOWN and scores == sorted(scores, reverse=True) and 0 < scores[-1] <= scores[0] <= 1
    assert [place for place, *_ in rows] == list(range(1, demo.ROWS_SHOWN + 1))
    titles = [title for _, title, *_ in rows]
    assert not set(titles) & set(demo.CARTOONS)
    assert [title for _, title, *_ in demo.rank(1, list(demo.ADVENTURES))] != titles


def test_genres_are_shown_in_full():
    assert any(", " in genres for _, _, genres, _ in demo.rank(1, list(demo.CARTOONS)))


def test_the_attention_has_a_bar_for_each_movie():
    figure = demo.attention_of(1, list(demo.CARTOONS), "Fantasia (1940)")
    bars = figure.axes[0].patches
    assert len(bars) == len(demo.CARTOONS)
    assert sum(bar.get_width() for bar in bars) == pytest.approx(1, abs=0.02)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(demo.CARTOONS)


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

    adventures, cartoons = (demo.rank(1, list(titles)) for titles in (demo.ADVENTURES, demo.CARTOONS))
    with visit(address, height=1700) as page:
        # The page opens with the default history ranked
        expect(page.get_by_text(adventures[0][1]).first).to_be_visible(timeout=180_000)
        picture = page.get_by_role("img").last
        expect(picture).to_have_attribute("src", re.compile("^data:"), timeout=180_000)

        # A click on another row shows another candidate's attention
        first = picture.get_attribute("src")
        page.get_by_text(adventures[3][1]).first.click()
        expect(picture).not_to_have_attribute("src", first, timeout=180_000)

        # Another history, by its example, is ranked at once
        page.get_by_text("Cartoons", exact=True).click()
        expect(page.get_by_text(demo.CARTOONS[0]).first).to_be_visible(timeout=180_000)
        expect(page.get_by_text(cartoons[0][1]).first).to_be_visible(timeout=180_000)
        page.get_by_role("button", name="Take this user's history").click()
        expect(page.get_by_text(demo.rank(1, demo.history_of(1))[0][1]).first).to_be_visible(timeout=180_000)

        # An error is a message
        page.get_by_label("User, 1 to 6040").fill("0")
        page.get_by_role("button", name="Rank", exact=True).click()
        expect(page.get_by_text("There is no user 0. Give a number from 1 to 6040.")).to_be_visible(timeout=180_000)


def test_the_page_says_that_it_shows_the_tiny_model(visit):
    from playwright.sync_api import expect

    blocks = demo.make_demo("released")
    with visit(start(blocks)) as page:
        expect(page.get_by_text("You chose released, and this page shows tiny.")).to_be_visible(timeout=180_000)
    blocks.close()
