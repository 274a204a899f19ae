"""Error messages list all differences between a checkpoint and a network."""

import json
import re

import pytest

from utils.models import tensors

EXPECTED = {"a.weight": (2, 3), "a.bias": (2,), "b.scale": ()}


def test_nothing_is_wrong_with_the_same_tensors():
    assert tensors.tensor_mismatches(EXPECTED, {key: list(shape) for key, shape in EXPECTED.items()}) == ""


def test_all_that_is_wrong_is_listed_at_once():
    found = {"a.weight": (3, 2), "b.scale": (), "c": (1,)}
    message = tensors.tensor_mismatches(EXPECTED, found, not_finite=["b.scale"])
    assert message == "missing: a.bias; not known to it: c; of another shape: a.weight; not finite: b.scale"


def test_some_may_be_missing_and_some_may_be_there_unused():
    found = {"a.weight": (2, 3), "b.scale": (), "old.7.mask": (9,)}
    assert tensors.tensor_mismatches(EXPECTED, found, optional={"a.bias"}, unused=re.compile(r"old\.\d+\.mask")) == ""
    message = tensors.tensor_mismatches(EXPECTED, found | {"old.7.mask.x": (9,)}, unused=re.compile(r"old\.\d+\.mask"))
    assert message == "missing: a.bias; not known to it: old.7.mask.x"


def test_long_lists_end_with_a_number():
    assert tensors.listed([f"x{i}" for i in range(3)]) == "x0, x1, x2"
    names = [f"x{i}" for i in range(tensors.MAX_LISTED + 5)]
    assert tensors.listed(names).endswith(f"x{tensors.MAX_LISTED - 1} and 5 more")


def test_an_object_is_read(tmp_path):
    (tmp_path / "config.json").write_text('{"word": "é"}', encoding="utf-8")
    assert tensors.read_json(tmp_path / "config.json", "Toy") == {"word": "é"}


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe{}", b"[1]", b"3"])
def test_what_holds_no_object_is_an_error(tmp_path, content):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json (cannot be read|holds no object).*folder of a Toy checkpoint"):
        tensors.read_json(path, "Toy")


def test_one_file_or_those_of_an_index(tmp_path):
    (tmp_path / "m.bin").touch()
    assert tensors.shards(tmp_path, "m.bin", "Toy") == [tmp_path / "m.bin"]
    parts = ["m-2.bin", "m-1.bin"]
    (tmp_path / "m.bin.index.json").write_text(
        json.dumps({"weight_map": {"x": parts[0], "y": parts[1], "z": parts[0]}}), encoding="utf-8"
    )
    with pytest.raises(ValueError, match=r"lacks m-1\.bin, m-2\.bin\. Name the folder of a whole Toy checkpoint"):
        tensors.shards(tmp_path, "m.bin", "Toy")
    for name in parts:
        (tmp_path / name).touch()
    assert tensors.shards(tmp_path, "m.bin", "Toy") == [tmp_path / "m-1.bin", tmp_path / "m-2.bin"]


@pytest.mark.parametrize("names", [{}, {"x": "../m.bin"}, {"x": "/etc/passwd"}, {"x": "sub/m.bin"}])
def test_an_index_stays_in_its_folder(tmp_path, names):
    (tmp_path / "m.bin.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"index\.json names no files, or some outside its folder"):
        tensors.shards(tmp_path, "m.bin", "Toy")
