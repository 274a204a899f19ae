"""The list of papers: complete, and every measured row that it names exists."""

from collections import Counter

from notebooks.llm_methods.figures import RELATIONS, coverage, papers
from notebooks.llm_methods.pipeline import MECHANISMS, METHODS

OF_UPDATES = {"Q4'23": 9, "Q2'24": 37, "Q4'24": 53, "Q1'25": 29}
OTHER_GROUPS = {"studies", "other models", "training", "pruning and sparsity", "early exit"}


def test_every_method_of_the_updates_is_there_once():
    listed = papers()
    assert Counter(paper["update"] for paper in listed) == OF_UPDATES
    assert len({paper["paper"] for paper in listed}) == len(listed)
    assert all(paper["url"].startswith("https://") for paper in listed)


def test_each_stands_under_a_mechanism_and_says_what_there_is():
    for paper in papers():
        assert paper["mechanism"] in {*MECHANISMS, *OTHER_GROUPS}
        assert paper["relation"] in RELATIONS
        assert paper["note"].endswith("."), paper["paper"]
        assert paper["methods"] or paper["relation"] != "ships"


def test_the_methods_that_it_names_exist_and_a_star_marks_what_was_not_measured():
    named = {name for paper in papers() for name in paper["methods"].split(";") if name}
    assert named <= {method.name for method in METHODS}
    assert "NF4*" in coverage(named - {"NF4"}) and "NF4*" not in coverage(named)


def test_the_table_has_a_line_for_each():
    assert coverage(set()).count("](https://") == sum(OF_UPDATES.values())
