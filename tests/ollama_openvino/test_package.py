"""Packages: the same bytes for the same files, and no harm from those of others."""

import gzip
import io
import tarfile

import pytest

from notebooks.ollama_openvino.pipeline import PackageError, file_sha256, kind_of, pack, package, unpack
from tests.ollama_openvino.fakes import archive, member, toy_ir, toy_package


def test_the_same_files_give_the_same_package_and_come_back(tmp_path):
    ir = toy_ir(tmp_path / "one" / "model")
    again = toy_ir(tmp_path / "two" / "model")
    (again / "config.json").touch()
    assert pack(ir, tmp_path / "a.tar.gz") == pack(again, tmp_path / "b.tar.gz") == file_sha256(tmp_path / "a.tar.gz")
    folder = unpack(tmp_path / "a.tar.gz", tmp_path / "unpacked")
    assert folder == tmp_path / "unpacked" / file_sha256(tmp_path / "a.tar.gz") / "model"
    names = {file.name for file in ir.iterdir()} - {"manifest.json"}
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {n: (ir / n).read_bytes() for n in names}
    (again / "config.json").write_text("{}", encoding="utf-8")
    assert pack(again, tmp_path / "c.tar.gz") != file_sha256(tmp_path / "a.tar.gz")


def test_a_package_of_the_tar_command_is_read(tmp_path):
    """`tar -zcvf X.tar.gz X` writes folders, times and owners, too."""
    ir = toy_ir(tmp_path / "X")
    with tarfile.open(tmp_path / "X.tar.gz", "w:gz") as tar:
        tar.add(ir, "X")
    with tarfile.open(tmp_path / "dot.tar.gz", "w:gz") as tar:
        tar.add(ir, ".")
    assert unpack(tmp_path / "X.tar.gz", tmp_path / "u").name == "X"
    assert kind_of(unpack(tmp_path / "dot.tar.gz", tmp_path / "u")) == "completion"


HOSTILE = {
    "up": ([member("toy/../../evil")], "names a path outside"),
    "absolute": ([member("/tmp/evil")], "names a path outside"),
    "backslash": ([member("..\\evil")], "names a path outside"),
    "drive": ([member("C:/evil")], "names a path outside"),
    "symlink": ([member("toy/link", tarfile.SYMTYPE, "/etc"), member("toy/link/passwd")], "no plain file"),
    "hard link": ([member("toy/link", tarfile.LNKTYPE, "/etc/passwd")], "no plain file"),
    "pipe": ([member("toy/pipe", tarfile.FIFOTYPE)], "no plain file"),
    "device": ([member("toy/null", tarfile.CHRTYPE)], "no plain file"),
    "twice": ([member("toy/a"), member("toy/./A")], "is in the package twice"),
    "many": ([member(f"toy/{i}") for i in range(1100)], "more than 1000 files"),
    "long name": ([member("toy/" + "x" * (2 * 2**20))], "larger than any name"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_package_is_refused_and_leaves_nothing(tmp_path, kind):
    members, message = HOSTILE[kind]
    hostile = archive(tmp_path / "hostile.tar.gz", *members)
    with pytest.raises(PackageError, match=message):
        unpack(hostile, tmp_path / "unpacked")
    assert list((tmp_path / "unpacked").iterdir()) == []
    assert {file.name for file in tmp_path.iterdir()} == {"hostile.tar.gz", "unpacked"}


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path, monkeypatch):
    bomb = tmp_path / "bomb.tar.gz"
    with tarfile.open(bomb, "w:gz") as tar:
        info = tarfile.TarInfo("toy/zeros")
        info.size = 50 * 2**20
        tar.addfile(info, io.BytesIO(bytes(info.size)))
    assert bomb.stat().st_size < 2**20
    extracted = []
    monkeypatch.setattr(tarfile.TarFile, "extract", lambda *a, **k: extracted.append(a))
    with pytest.raises(PackageError, match="more than 1048576 bytes"):
        unpack(bomb, tmp_path / "unpacked", max_bytes=2**20)
    assert extracted == []


def test_a_sparse_file_is_refused(tmp_path):
    """It claims to hold more bytes than the archive has."""
    header = tarfile.TarInfo("toy/sparse")
    header.size = 0
    header.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**40)}
    content = b"0\n".ljust(512, b"\0")
    header.size = len(content)
    with tarfile.open(tmp_path / "sparse.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(header, io.BytesIO(content))
    with pytest.raises(PackageError, match="no plain file"):
        unpack(tmp_path / "sparse.tar.gz", tmp_path / "unpacked")


def test_damage_is_found(tmp_path):
    good = toy_package(tmp_path).read_bytes()
    cases = {"cut": good[: len(good) // 2], "text": b"hello", "zip": gzip.compress(b"hello"), "flip": None}
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 255
    cases["flip"] = bytes(flipped)
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(PackageError):
            unpack(tmp_path / name, tmp_path / "unpacked")
    assert list((tmp_path / "unpacked").iterdir()) == []


def test_another_digest_than_announced_is_refused(tmp_path):
    good = toy_package(tmp_path)
    try:
        result = str(unpack(good, tmp_path / "unpacked", digest="0" * 64))
    except PackageError as error:
        result = str(error)
    assert "was changed or cut short" in result
    assert not (tmp_path / "unpacked").exists()


def test_a_package_without_a_model_is_refused(tmp_path):
    with pytest.raises(PackageError, match="openvino_model.xml is missing"):
        unpack(archive(tmp_path / "empty.tar.gz", member("toy/readme"), whole=False), tmp_path / "unpacked")
    ir = toy_ir(tmp_path / "ir")
    (ir / "openvino_detokenizer.bin").unlink()
    with pytest.raises(PackageError, match="openvino_detokenizer.bin is missing"):
        pack(ir, tmp_path / "a.tar.gz")
    assert not (tmp_path / "a.tar.gz").exists()


def test_a_failed_pack_keeps_the_earlier_package(tmp_path, monkeypatch):
    good = toy_package(tmp_path)
    before = good.read_bytes()

    def fails(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(package.tarfile.TarFile, "addfile", fails)
    with pytest.raises(OSError, match="disk is full"):
        pack(tmp_path / "ir", good)
    assert good.read_bytes() == before and not list(tmp_path.glob(".*partial*"))
