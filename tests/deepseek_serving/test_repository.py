"""A model repository is written whole or not at all, and what is not whole is refused by name."""

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebooks.deepseek_serving.server import repository
from tests.deepseek_serving.fakes import toy_ir


def test_what_is_written_is_read_again(tmp_path):
    chosen = {"cache_size": 3, "enable_prefix_caching": False, "plugin_config": {"KV_CACHE_PRECISION": "u8"}}
    folder = repository.write(tmp_path / "repo", "toy-1.5", toy_ir(tmp_path / "ir"), **chosen)
    found = repository.read(folder)
    assert found.name == "toy-1.5" and found.model == folder / "toy-1.5" and found.context == 1000
    assert found.options == repository.Options(**chosen)
    assert json.loads((folder / "config.json").read_text(encoding="utf-8")) == {
        "model_config_list": [{"config": {"name": "toy-1.5", "base_path": "toy-1.5"}}]
    }
    names = {file.name for file in found.model.iterdir()}
    assert "graph.pbtxt" in names and "manifest.json" not in names and len(names) == 8


def test_the_graph_has_what_model_server_wants(toy):
    graph = repository.parse((toy / "toy/graph.pbtxt").read_text(encoding="utf-8"))
    (node,) = graph["node"]
    assert node["calculator"] == ["HttpLLMCalculator"]
    assert node["input_stream"] == ["LOOPBACK:loopback", "HTTP_REQUEST_PAYLOAD:input"]
    assert node["output_stream"] == ["LOOPBACK:loopback", "HTTP_RESPONSE_PAYLOAD:output"]
    assert node["input_stream_info"] == [{"tag_index": ["LOOPBACK:0"], "back_edge": [True]}]
    assert node["input_side_packet"] == ["LLM_NODE_RESOURCES:llm"]
    (handler,) = node["input_stream_handler"]
    assert handler["input_stream_handler"] == ["SyncSetInputStreamHandler"]
    options = node["node_options"][0]["type.googleapis.com/mediapipe.LLMCalculatorOptions"][0]
    assert options["models_path"] == ["./"] and options["max_num_seqs"] == [2]


def test_the_weights_are_not_copied_where_links_will_do(toy):
    weights = toy / "toy/openvino_model.bin"
    assert os.stat(weights).st_nlink == 2 and weights.read_bytes() == bytes(range(16))


def test_weights_are_copied_where_links_will_not_do(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    folder = repository.write(tmp_path / "repo", "toy", toy_ir(tmp_path / "ir"))
    assert os.stat(folder / "toy/openvino_model.bin").st_nlink == 1 and repository.read(folder).name == "toy"


def test_a_new_repository_replaces_the_old_one(toy, tmp_path):
    repository.write(toy, "other", tmp_path / "ir", cache_size=2)
    assert repository.read(toy).name == "other" and not (toy / "toy").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ir", "toy"]


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a b", "c:d", "x" * 101])
def test_a_name_that_is_a_path_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match="cannot name a model"):
        repository.write(tmp_path / "repo", name, toy_ir(tmp_path / "ir"))
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": 1}, "has no option cache"),
        ({"cache_size": 0}, "cache_size is 0; it must be a whole number"),
        ({"max_num_seqs": 2.5}, "max_num_seqs is 2.5"),
        ({"enable_prefix_caching": 1}, "must be true or false"),
        ({"plugin_config": "{}"}, "must be a JSON object"),
    ],
)
def test_options_that_will_not_do_are_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        repository.write(tmp_path / "repo", "toy", toy_ir(tmp_path / "ir"), **options)
    assert not (tmp_path / "repo").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(ValueError, match="holds something other than a model repository"):
        repository.write(tmp_path / "mine", "toy", toy_ir(tmp_path / "ir"))
    assert (tmp_path / "mine/thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_a_failed_write_leaves_the_old_repository_and_nothing_else(toy, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(repository, "_link", fail)
    with pytest.raises(OSError, match="disk full"):
        repository.write(toy, "other", tmp_path / "ir")
    assert repository.read(toy).name == "toy"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ir", "toy"]


@pytest.mark.parametrize(
    "name",
    ["config.json", "toy/graph.pbtxt", "toy/config.json"]
    + [f"toy/{network}.{kind}" for network in repository.NETWORKS for kind in ("xml", "bin")],
)
def test_a_missing_file_is_named(name, toy):
    (toy / name).unlink()
    with pytest.raises(ValueError, match=f"{(toy / name).name} is missing"):
        repository.read(toy)


def refusal(folder: Path) -> str:
    """Why a repository is refused; empty where it is not."""
    try:
        repository.read(folder)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("network", repository.NETWORKS)
def test_weights_cut_short_are_refused(network, toy):
    weights = toy / f"toy/{network}.bin"
    data = weights.read_bytes()
    weights.unlink()  # it is a link
    weights.write_bytes(data[:-1])
    assert f"{network}.bin has 15 bytes where {network}.xml wants 16" in refusal(toy)


@pytest.mark.parametrize("network", repository.NETWORKS)
def test_a_network_cut_short_is_refused(network, toy):
    file = toy / f"toy/{network}.xml"
    text = file.read_text(encoding="utf-8")
    file.unlink()
    file.write_text(text[:-20], encoding="utf-8")
    with pytest.raises(ValueError, match=f"{network}.xml is damaged or cut short"):
        repository.read(toy)


def test_xml_of_another_kind_is_refused(toy):
    (toy / "toy/openvino_model.xml").write_text("<html><body/></html>", encoding="utf-8")
    with pytest.raises(ValueError, match="is not an OpenVINO IR"):
        repository.read(toy)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "is not a JSON object"),
        ("{}", "must list one model"),
        ('{"model_config_list": []}', "must list one model"),
        ('{"model_config_list": [{"config": {"name": "toy", "base_path": "../toy"}}]}', "plain names are wanted"),
        ('{"model_config_list": [{"config": {"name": "toy", "base_path": "/etc"}}]}', "plain names are wanted"),
        ('{"model_config_list": [{"config": {"name": 1, "base_path": "toy"}}]}', "plain names are wanted"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused(config, message, toy):
    (toy / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        repository.read(toy)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("HttpLLMCalculator", "PythonExecutor", "has 0 nodes with the calculator HttpLLMCalculator"),
        ('models_path: "./"', 'models_path: "/etc"', "models_path must be"),
        ("cache_size: 1", "cache_size: 0", "cache_size is 0"),
        ("cache_size: 1", "cache_size: 1 cache_size: 2", "an option is given twice"),
        ("cache_size: 1", "cache: 1", "does not know the option cache"),
        ('plugin_config: "{}"', 'plugin_config: "{"', "plugin_config is not JSON"),
        ("cache_size: 1", "cache_size: one", "one is no value"),
        ("cache_size: 1", "cache_size: $", "unexpected"),
        ("cache_size: 1", ": 1", "stands where a field's name should"),
    ],
)
def test_a_graph_that_cannot_be_used_is_refused(old, new, message, toy):
    graph = toy / "toy/graph.pbtxt"
    text = graph.read_text(encoding="utf-8")
    assert text.count(old) == 1
    graph.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        repository.read(toy)


@given(st.integers(min_value=0, max_value=800))
def test_a_graph_cut_anywhere_is_refused_or_whole(length):
    text = repository.GRAPH.format(
        calculator=repository.CALCULATOR, options=repository._options_text(repository.Options())
    )
    cut = text[:length]
    if cut.rstrip() == text.rstrip():
        return
    with pytest.raises(ValueError):
        repository._options(repository.parse(cut))


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=4))
def test_any_property_survives_the_text_format(properties):
    options = repository.Options(plugin_config=properties)
    text = repository.GRAPH.format(calculator=repository.CALCULATOR, options=repository._options_text(options))
    assert repository._options(repository.parse(text)) == options


def test_the_reader_takes_what_others_write():
    text = """
    # a comment { with braces
    node: { name: 'single "quotes"', node_options: { [type.googleapis.com / mediapipe.LLMCalculatorOptions]: {
        models_path: "./"; cache_size: 2, pipeline_type: LM_CB, ratio: -1.5e0 } } }
    """
    (node,) = repository.parse(text)["node"]
    assert node["name"] == ['single "quotes"']
    assert node["node_options"][0][repository.CALCULATOR][0] == {
        "models_path": ["./"],
        "cache_size": [2],
        "pipeline_type": ["LM_CB"],
        "ratio": [-1.5],
    }


def test_the_real_model_is_whole_and_keeps_its_chat_template(tiny, tmp_path):
    found = repository.read(tiny)
    assert found.name == "smollm2" and found.context == 8192
    assert (found.model / "chat_template.jinja").is_file() or "chat_template" in (
        found.model / "tokenizer_config.json"
    ).read_text(encoding="utf-8")
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny, damaged, ignore=shutil.ignore_patterns("openvino_model.bin"))
    with open(tiny / "smollm2/openvino_model.bin", "rb") as source:
        (damaged / "smollm2/openvino_model.bin").write_bytes(source.read(1 << 20))
    with pytest.raises(ValueError, match="openvino_model.bin has 1048576 bytes where"):
        repository.read(damaged)
