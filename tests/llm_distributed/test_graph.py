"""Where AllReduce stands in the graph of a share, and what is no share."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from notebooks.llm_distributed.pipeline import graph
from notebooks.llm_distributed.pipeline.graph import MODEL_XML, AllReduce, parallelise
from notebooks.llm_distributed.pipeline.group import Group
from notebooks.llm_distributed.pipeline.shares import Share


class Doubling(Group):
    """As if another rank always had the same array."""

    def __init__(self) -> None:
        super().__init__(0, 2, 1.0)

    def _exchange(self, array):
        return [array, array]


@pytest.fixture
def model(shares) -> ov.Model:
    return ov.Core().read_model(shares(2)[0] / MODEL_XML)


@pytest.fixture(autouse=True)
def group():
    AllReduce.group = Doubling()
    yield AllReduce.group
    AllReduce.group = None


def of_type(model: ov.Model, kind: str) -> list[ov.Node]:
    return [node for node in model.get_ordered_ops() if node.get_type_name() == kind]


def test_it_stands_between_products_and_the_residual_stream(model, shares):
    first, end = Share.read(shares(2)[0]).vocabulary
    assert parallelise(model, first, end) == 5  # two layers, and the embedding
    sources = [node.input_value(0).get_node() for node in of_type(model, "AllReduce")]
    assert [node.get_type_name() for node in sources] == ["Multiply", *["MatMul"] * 4]
    names = [node.get_friendly_name() for node in sources[1:]]
    assert ["o_proj" in name for name in names] == [True, False] * 2 and all("proj" in name for name in names)
    readers = [next(iter(node.output(0).get_target_inputs())).get_node() for node in of_type(model, "AllReduce")[1:]]
    assert [node.get_type_name() for node in readers] == ["Add"] * 4


def test_it_is_found_in_compressed_weights_too(model):
    import nncf

    compressed = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    assert parallelise(compressed, 0, 51) == 5


def test_the_embedding_gives_zeros_for_tokens_of_other_ranks(group):
    ids = ops.parameter([-1, -1], np.int64, name="ids")
    table = np.arange(12, dtype=np.float32).reshape(4, 3) + 1
    found = ops.gather(ops.constant(table), ids, ops.constant(0))
    model = ov.Model([ops.result(found)], [ids])
    graph.split_embedding(model, 10, 14)
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    result = compiled(np.array([[9, 10, 13, 14]]))[0]
    assert np.array_equal(result[0], 2 * np.array([[0, 0, 0], table[0], table[3], [0, 0, 0]]))
    assert group.calls == 1 and group.bytes_sent == 48


def test_it_is_written_to_a_file_and_read_again(tmp_path, group):
    x = ops.parameter([-1, 3], np.float32, name="x")
    model = ov.Model([ops.result(AllReduce([x.output(0)]))], [x])
    ov.save_model(model, tmp_path / "sum.xml")
    core = ov.Core()
    core.add_extension(AllReduce)
    read = core.compile_model(core.read_model(tmp_path / "sum.xml"), "CPU")
    assert np.array_equal(read(np.ones((2, 3), np.float32))[0], np.full((2, 3), 2))


def test_what_is_no_share_is_an_error(model):
    with pytest.raises(ValueError, match="no embedding of 7 tokens. Give it the share that it was cut for"):
        parallelise(model, 0, 7)
    x = ops.parameter([-1, 3], np.float32, name="x")
    with pytest.raises(ValueError, match="No product with weights is added to a residual stream"):
        parallelise(ov.Model([ops.result(ops.relu(x))], [x]), 0, 1)
