"""The class of the README that makes a LangChain retriever."""

import re

from utils.paths import ROOT

README = ROOT / "notebooks" / "rag_serving" / "README.md"


def test_langchain_gets_the_passages_of_a_search(retriever):
    (block,) = re.findall(r"^```python\n(# for LangChain\n.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    names: dict = {}
    exec(block, names)
    retriever.ingest("flat.txt", "The flat of the Miller family has number 4711.")
    retriever.ingest("pipes.txt", "Water runs through pipes.")
    documents = names["Passages"](retriever=retriever, k=1).invoke("Which number has the flat?")
    expected = retriever.search("Which number has the flat?", k=1)
    assert [own.page_content for own in documents] == [own.text for own in expected]
    assert documents[0].metadata["source"] == "flat.txt" and documents[0].metadata["score"] > 0
