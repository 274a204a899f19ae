"""Stop strings and thoughts do not depend on where the text is cut into pieces."""

from hypothesis import given
from hypothesis import strategies as st

from notebooks.ollama_openvino.server.answers import StopFilter, Thoughts, held

TEXTS = st.text(st.sampled_from("ab</think>\n"), max_size=60)


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[begin:end] for begin, end in zip(places, places[1:], strict=False)] or [""]


def filtered(parts: list[str], stop: list[str]) -> tuple[str, bool]:
    one, sent = StopFilter(stop), ""
    for i, part in enumerate(parts):
        sent += one.feed(part, i == len(parts) - 1)
        if one.found:
            break
    return sent, one.found


@given(
    TEXTS, st.lists(st.text(st.sampled_from("ab<"), min_size=1, max_size=4), max_size=3), st.lists(st.integers(0, 99))
)
def test_text_ends_before_the_first_stop_string(text, stop, cuts):
    sent, found = filtered(pieces(text, cuts), stop)
    assert found == any(mark in text for mark in stop)
    assert text.startswith(sent) and (found or sent == text)
    assert not any(mark in sent for mark in stop)
    if found:
        rest = text[len(sent) :]
        assert any(rest.startswith(mark) for mark in stop) or any(mark in text[: len(sent) + 4] for mark in stop)


def test_what_may_become_a_stop_string_waits():
    one = StopFilter(["END"])
    assert [one.feed(part) for part in ("a E", "N", "x EN")] == ["a ", "", "ENx "]
    assert one.feed("D more") == "" and one.found
    assert held("abc", []) == 0


def separated(parts: list[str], inside: bool) -> tuple[str, str]:
    one, thoughts, answer = Thoughts(inside), "", ""
    for i, part in enumerate(parts):
        more = one.feed(part, i == len(parts) - 1)
        thoughts, answer = thoughts + more[0], answer + more[1]
    return thoughts, answer


@given(TEXTS, st.booleans(), st.lists(st.integers(0, 99)))
def test_thoughts_do_not_depend_on_the_pieces(text, inside, cuts):
    assert separated(pieces(text, cuts), inside) == separated([text], inside)


def test_thoughts_and_answer():
    assert separated(["<thi", "nk>why", "</th", "ink>\n\nbecause"], inside=False) == ("why", "because")
    assert separated(["why</think>", "\n", "because"], inside=True) == ("why", "because")
    assert separated(["<b>no thoughts</b>"], inside=False) == ("", "<b>no thoughts</b>")
    assert separated(["  plain"], inside=False) == ("", "  plain")
    assert separated(["only thoughts"], inside=True) == ("only thoughts", "")
