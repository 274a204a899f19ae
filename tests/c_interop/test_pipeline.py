"""The C library through ctypes: tokens, streamed text, errors, handles, threads."""

import ctypes
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from notebooks.c_interop import network
from notebooks.c_interop.convert import build_folder
from notebooks.c_interop.pipeline import LLM, LLMError, library, load, source
from notebooks.c_interop.pipeline import declarations as c
from tests.c_interop.tools import TEXT

PROMPT = "a prompt"


@pytest.mark.parametrize("prompt", [PROMPT, "你", "🙂 emoji"])
def test_tokens_depend_on_all_that_the_model_gets(model, prompt):
    """Prompt, cache, positions and mask: the model adds them up."""
    assert model.generate(prompt, 40, ignore_end=True).ids == network.arithmetic([*prompt.encode()], 40)


def test_each_answer_begins_with_an_empty_cache(model):
    assert model.generate(PROMPT, 8).ids == model.generate(PROMPT, 8).ids


def test_text_is_what_python_decodes(model):
    """Random bytes: what is no character becomes U+FFFD, as in Python."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        prompt = "".join(map(chr, rng.integers(32, 1000, 5)))
        answer = model.generate(prompt, 60, ignore_end=True)
        assert answer.text == bytes(answer.ids).decode(errors="replace")


def test_pieces_are_whole_characters(reciter):
    pieces = []
    answer = reciter.generate("x", 64, on_text=pieces.append)
    assert "".join(pieces) == answer.text == TEXT
    assert pieces[:4] == ["你", "好", " ", "🙂"]
    assert (answer.reason, answer.ids[-1]) == ("end", network.END)


def test_an_answer_that_is_cut_within_a_character_ends_with_a_mark(reciter):
    assert reciter.generate("x", 5).text == "你\ufffd"
    assert reciter.generate("x", 6).text == "你好"


def test_the_end_can_be_ignored(reciter):
    size = len(TEXT.encode())
    answer = reciter.generate("x", size + 4, ignore_end=True)
    assert (len(answer.ids), answer.reason, answer.text) == (size + 4, "length", TEXT + "你")


@pytest.mark.parametrize(("ends", "made"), [("104", 1), ("[300, 104]", 1), ("[300]", 8)])
def test_ends_are_read_from_the_configuration(tmp_path, built, ends, made):
    folder = network.save_recitation(tmp_path, [*b"hello"])
    (folder / "generation_config.json").write_text(
        f'{{\n "eos_token_id": {ends}, "pad_token_id": 1}}', encoding="utf-8"
    )
    with LLM(folder, built=built) as opened:
        assert len(opened.generate("x", 8).ids) == made


def test_the_callback_can_stop(reciter):
    answer = reciter.generate("x", 64, on_text=lambda text: text == "好")
    assert (answer.text, answer.reason) == ("你好", "stopped")


def test_what_the_callback_raises_is_raised_here_and_all_goes_on(reciter):
    with pytest.raises(ZeroDivisionError):
        reciter.generate("x", 64, on_text=lambda _: 1 / 0)
    assert reciter.generate("x", 64).text == TEXT


def test_another_thread_can_cancel(model):
    started = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(model.generate, PROMPT, 1 << 17, lambda _: started.set(), True)
        started.wait(60)
        model.cancel()
        assert answer.result(60).reason == "cancelled"
    assert model.generate(PROMPT, 5, ignore_end=True).reason == "length"


def test_threads_share_a_model(model):
    prompts = [f"prompt {i}" for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda prompt: model.generate(prompt, 40, ignore_end=True).ids, prompts))
    assert answers == [network.arithmetic([*prompt.encode()], 40) for prompt in prompts]


def test_counts_and_times(model):
    answer = model.generate(PROMPT, 10, ignore_end=True)
    assert (answer.prompt_tokens, len(answer.ids), answer.reason) == (len(PROMPT), 10, "length")
    assert 0 < answer.first_ms <= answer.infer_ms
    assert answer.tokenize_ms + answer.infer_ms + answer.detokenize_ms <= answer.whole_ms
    assert answer.overhead_us > 0


def test_a_closed_model_is_an_error(arithmetic, built):
    model = LLM(arithmetic, built=built)
    model.close()
    for call in (model.close, model.cancel, lambda: model.generate(PROMPT, 1)):
        with pytest.raises(LLMError, match="is not open: it was closed") as error:
            call()
        assert error.value.status == c.LLM_BAD_HANDLE


def test_a_later_model_does_not_get_an_old_handle(arithmetic, built):
    old = LLM(arithmetic, built=built)
    old.close()
    with LLM(arithmetic, built=built) as new:
        with pytest.raises(LLMError, match="is not open"):
            old.cancel()
        assert new.generate(PROMPT, 1).ids


def test_a_model_that_generates_cannot_be_closed(arithmetic, built):
    model, errors = LLM(arithmetic, built=built), []

    def close(_: str) -> bool:
        with pytest.raises(LLMError, match="The model generates in 1 threads. Call llm_cancel") as error:
            model.close()
        errors.append(error.value.status)
        return True

    model.generate(PROMPT, 20, on_text=close)
    model.close()
    assert errors == [c.LLM_BUSY]


@pytest.mark.parametrize(
    ("prompt", "tokens", "message"),
    [
        ("", 5, "needs a prompt"),
        ("a\0b", 5, "The prompt has a NUL at byte 1. Remove it."),
        (PROMPT, 0, "1 to 1048576 new tokens; got 0"),
        (PROMPT, 1 << 20 | 1, "got 1048577"),
    ],
)
def test_bad_requests_are_sentences(model, prompt, tokens, message):
    with pytest.raises(LLMError, match=message) as error:
        model.generate(prompt, tokens)
    assert error.value.status == c.LLM_BAD_ARGUMENT


@pytest.mark.parametrize("prompt", [b"\xff", b"ab\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80"])
def test_a_prompt_that_is_no_utf8_is_a_sentence(model, prompt):
    with pytest.raises(LLMError, match="no UTF-8 at byte [02]. Encode it as UTF-8"):
        model.generate(_Bytes(prompt), 5)


class _Bytes(str):
    """A text that encodes to given bytes."""

    def __new__(cls, data: bytes):
        text = super().__new__(cls)
        text.data = data
        return text

    def encode(self, *_) -> bytes:
        return self.data


def test_a_missing_folder_is_a_sentence(built, tmp_path):
    with pytest.raises(LLMError, match=r"no generation_config.json in the folder .*nowhere. Give the folder") as error:
        LLM(tmp_path / "nowhere", built=built)
    assert error.value.status == c.LLM_NOT_FOUND


@pytest.mark.parametrize("name", ["openvino_model.xml", "openvino_tokenizer.xml", "openvino_detokenizer.xml"])
def test_a_missing_model_is_a_sentence(built, arithmetic, tmp_path, name):
    folder = shutil.copytree(arithmetic, tmp_path / "model")
    (folder / name).unlink()
    with pytest.raises(LLMError, match=rf"{name}|device CPU"):
        LLM(folder, built=built)


def test_a_wrong_device_is_a_sentence(built, arithmetic):
    with pytest.raises(LLMError, match="cannot be compiled for the device TOASTER: .*TOASTER"):
        LLM(arithmetic, "TOASTER", built=built)


def test_a_wrong_property_is_a_sentence(built, arithmetic):
    with pytest.raises(LLMError, match="cannot be compiled for the device CPU: .*COLOUR"):
        LLM(arithmetic, properties={"COLOUR": "blue"}, built=built)


def test_properties_reach_the_device(built, arithmetic):
    with LLM(arithmetic, properties={"INFERENCE_PRECISION_HINT": "f32"}, built=built) as opened:
        assert opened.generate(PROMPT, 3).ids == network.arithmetic([*PROMPT.encode()], 3)


def test_a_detokenizer_without_strings_is_a_sentence(built, arithmetic, tmp_path):
    folder = shutil.copytree(arithmetic, tmp_path / "model")
    for suffix in ("xml", "bin"):
        shutil.copy(folder / f"openvino_model.{suffix}", folder / f"openvino_detokenizer.{suffix}")
    with pytest.raises(LLMError, match="makes no strings. Convert the tokenizer again."):
        LLM(folder, built=built)


def test_a_library_for_another_openvino_is_a_sentence(built, arithmetic):
    other = library(build_folder(), version="2025.1.0")
    with pytest.raises(LLMError, match="built for OpenVINO 2025.1.0, and 20.* was loaded. Build it again.") as error:
        LLM(arithmetic, built=other)
    assert error.value.status == c.LLM_WRONG_VERSION


def test_declarations_of_another_version_are_an_error(built, monkeypatch):
    monkeypatch.setattr(c, "LLM_VERSION", 2)
    with pytest.raises(ValueError, match="has version 1 of llm.h, not 2 as these declarations"):
        load(built)


def test_what_is_no_library_is_a_sentence(tmp_path):
    (tmp_path / "libllm.so").write_text("no library", encoding="utf-8")
    with pytest.raises(ValueError, match="is no library of llm.h"):
        load(tmp_path / "libllm.so")


@pytest.fixture
def raw(built):
    """The functions of llm.h without the class in front of them."""
    return load(built)


def last_error(raw) -> str:
    buffer = ctypes.create_string_buffer(512)
    raw.llm_last_error(buffer, 512)
    return buffer.value.decode()


def test_null_is_an_error_everywhere(raw, arithmetic):
    handle, ids = ctypes.c_uint64(), (ctypes.c_int64 * 4)()
    folder, none = str(arithmetic).encode(), ctypes.POINTER(ctypes.c_int64)()
    bad = c.LLM_BAD_ARGUMENT
    assert raw.llm_open(1, None, b"CPU", None, None, 0, handle) == bad
    assert raw.llm_open(1, folder, None, None, None, 0, handle) == bad
    assert raw.llm_open(1, folder, b"CPU", None, None, 0, None) == bad
    assert raw.llm_open(1, folder, b"CPU", None, None, 1, handle) == bad
    assert raw.llm_open(1, folder, b"CPU", None, (ctypes.c_char_p * 2)(b"a", None), 1, handle) == bad
    assert last_error(raw) == "Name or value of property 0 is NULL."
    assert raw.llm_open(2, folder, b"CPU", None, None, 0, handle) == c.LLM_WRONG_VERSION
    assert raw.llm_open(1, folder, b"CPU", b"nowhere.so", None, 0, handle) == c.LLM_FAILED
    assert last_error(raw).startswith("The tokenizers cannot be loaded from nowhere.so: ")
    assert handle.value == 0
    assert raw.llm_open(1, folder, b"CPU", None, None, 0, handle) == c.LLM_OK
    nobody = c.llm_callback()
    assert raw.llm_generate(handle, None, 1, 4, 0, nobody, None, ids, 4, None) == bad
    assert raw.llm_generate(handle, b"a", 1, 4, 0, nobody, None, none, 4, None) == bad
    assert raw.llm_generate(handle, b"a", 1, 4, 0, nobody, None, ids, 4, None) == c.LLM_OK
    assert list(ids) == network.arithmetic([97], 4)
    assert raw.llm_close(handle) == c.LLM_OK
    for nothing in (0, 1, 1 << 32, (1 << 64) - 1):
        assert raw.llm_close(nothing) == raw.llm_cancel(nothing) == c.LLM_BAD_HANDLE


def test_a_small_buffer_is_an_error_before_anything_is_written(raw, arithmetic):
    handle, ids = ctypes.c_uint64(), (ctypes.c_int64 * 4)()
    assert raw.llm_open(1, str(arithmetic).encode(), b"CPU", None, None, 0, handle) == c.LLM_OK
    arguments = (handle, b"a", 1, 5, 0, c.llm_callback(), None, ids, 4, None)
    assert raw.llm_generate(*arguments) == c.LLM_TOO_SMALL
    assert last_error(raw) == "There is room for 4 ids, and up to 5 are made. Give a larger buffer."
    assert list(ids) == [0] * 4
    assert raw.llm_close(handle) == c.LLM_OK


def test_the_last_error_fits_into_any_buffer(raw):
    raw.llm_close(7)
    size = raw.llm_last_error(None, 0)
    buffer = ctypes.create_string_buffer(b"#" * 12)
    assert raw.llm_last_error(buffer, 11) == size > 11
    assert buffer.raw == b"The handle\0#\0"


def test_the_error_belongs_to_its_thread(raw):
    raw.llm_close(7)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(last_error, raw).result() == ""
    assert last_error(raw).startswith("The handle 7")


def test_there_is_an_end_to_open_models(built, arithmetic):
    small = library(build_folder(), source().replace("#define MODELS 64", "#define MODELS 2"))
    with LLM(arithmetic, built=small), LLM(arithmetic, built=small):
        with pytest.raises(LLMError, match="2 models are open, and there can be no more. Close one.") as error:
            LLM(arithmetic, built=small)
    assert error.value.status == c.LLM_BUSY
    LLM(arithmetic, built=small).close()
