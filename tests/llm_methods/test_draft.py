"""The trained draft: what it learns, what is stored of it, and texts that are written once. On a small random Llama."""

from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from notebooks.llm_methods import convert
from notebooks.llm_methods.convert import drafting
from notebooks.llm_methods.training import draft
from tests.utils.models.small import tiny_llama


@pytest.fixture(scope="module")
def teacher():
    return tiny_llama().eval()


@pytest.fixture(scope="module")
def texts(teacher):
    """Token ids [528, 32] that the teacher wrote."""
    torch.manual_seed(1)
    begun = torch.randint(0, 256, (528, 2))
    length = {"min_new_tokens": 30, "max_new_tokens": 30}
    written = teacher.generate(begun, attention_mask=torch.ones_like(begun), do_sample=True, pad_token_id=0, **length)
    return written.numpy().astype(np.int32)


@pytest.fixture(scope="module")
def student(teacher, texts, tmp_path_factory):
    """A draft with the first of two layers, trained for 200 steps, and the file of its training state."""
    network, path = pruned(teacher), tmp_path_factory.mktemp("draft") / "draft.pt"
    draft.distil(network, teacher, texts[:-16], path, steps=200)
    return network, path


def pruned(teacher):
    network = deepcopy(teacher)
    drafting.prune(network, [0])
    return network


def test_a_draft_comes_nearer_to_its_model_in_texts_that_it_has_not_seen(teacher, texts, student):
    with torch.no_grad():
        before, after = (draft.compared(network, teacher, texts[-16:]) for network in (pruned(teacher), student[0]))
    assert after["loss"] < 0.85 * before["loss"]  # one random layer cannot do all that two do
    assert after["agreement"] > before["agreement"]
    assert len(teacher.model.layers) == 2 and len(student[0].model.layers) == 1


def test_layers_and_norm_are_trained_and_the_embedding_is_not(teacher, student):
    same = {name: torch.equal(x, teacher.model.state_dict()[name]) for name, x in student[0].model.state_dict().items()}
    assert [name for name, unchanged in same.items() if unchanged] == ["embed_tokens.weight"]


def test_a_run_that_was_stopped_goes_on(teacher, texts, student):
    again = pruned(teacher)
    draft.distil(again, teacher, texts[:-16], student[1], steps=200)  # all steps are done: only the state is read
    assert all(torch.equal(x, y) for x, y in zip(again.parameters(), student[0].parameters(), strict=True))


def test_a_draft_is_stored_without_the_embedding_at_8_bits(teacher, student, tmp_path):
    teacher.save_pretrained(tmp_path / "model")
    draft.save(student[0], tmp_path / "draft.safetensors")
    stored = load_file(tmp_path / "draft.safetensors")
    assert not [name for name in stored if "embed" in name or "lm_head" in name]
    assert stored["layers.0.mlp.up_proj.weight"].dtype == torch.int8
    loaded = drafting.trained(tmp_path / "model", tmp_path / "draft.safetensors")
    assert torch.equal(loaded.model.embed_tokens.weight, teacher.model.embed_tokens.weight)
    for name, x in student[0].model.layers.state_dict().items():
        rounded = loaded.model.layers.state_dict()[name]
        step = x.abs().amax(-1, keepdim=True) / 127 if x.ndim == 2 else x.abs() * 2**-10
        assert ((x - rounded).abs() <= 0.52 * step).all(), name


def test_a_missing_draft_and_that_of_another_model_are_errors(teacher, tmp_path):
    teacher.save_pretrained(tmp_path / "model")
    file = tmp_path / "draft.safetensors"
    with pytest.raises(ValueError, match="is missing. `python -m notebooks.llm_methods.training draft` trains"):
        drafting.trained(tmp_path / "model", file)
    save_file({"layers.0.mlp.up_proj.weight": torch.ones(3, 4), "norm.weight": torch.ones(4)}, file)
    with pytest.raises(ValueError, match="is not a draft of the model in"):
        drafting.trained(tmp_path / "model", file)


class FakePipeline:
    """Writes the same token again and again; keeps what it was given."""

    def __init__(self):
        self.asked = []

    def generate(self, prompts, settings):
        self.asked.append([(prompt.data[0].tolist(), one) for prompt, one in zip(prompts, settings, strict=True)])
        return [SimpleNamespace(m_generation_ids=[[99] * one.max_new_tokens]) for one in settings]


def test_three_of_four_questions_are_the_models_own():
    from transformers import AutoTokenizer

    writer = draft.Writer.__new__(draft.Writer)
    writer.tokenizer = AutoTokenizer.from_pretrained(convert.checkpoint_folder())
    writer.books = np.array(writer.tokenizer("Once upon a time there was a king. " * 40)["input_ids"])
    writer.pipeline = FakePipeline()
    made = writer.dialogues(range(8, 16))
    questions, answers = writer.pipeline.asked
    assert made.shape == (8, draft.TOKENS) and (made[:, -1] == 99).all()
    assert len(questions) == 6 and len(answers) == 8
    assert all(writer.tokenizer.decode(ids).endswith("<|im_start|>user\n") for ids, _ in questions)
    texts = [writer.tokenizer.decode(ids) for ids, _ in answers]
    assert ["king" in text for text in texts] == [True, False, False, False] * 2
    assert all(text.endswith("<|im_start|>assistant\n") for text in texts)
    assert len({one.rng_seed for _, one in answers}) == 8 and all(one.ignore_eos for _, one in answers)


def test_on_a_gpu_the_network_writes_as_many_tokens_and_cuts_at_the_end(teacher):
    network, starts = deepcopy(teacher), [[1, 2, 3], [4], [5, 6]]
    torch.manual_seed(0)
    written = draft.write_with_torch(network, starts, [5, 7, 20], 1e-4, None)
    assert [len(text) for text in written] == [5, 7, 20]
    for start, text in zip(starts, written, strict=True):  # what stands before a shorter start has no influence
        ids = torch.tensor([start])
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": len(text), "pad_token_id": 0}
        assert network.generate(ids, do_sample=False, **options)[0, len(start) :].tolist() == text
    end = written[2][4]
    cut = draft.write_with_torch(network, starts, [5, 7, 20], 1e-4, end)[2]
    assert cut == written[2][: written[2].index(end) + 1]


def test_texts_that_are_there_are_not_written_again(tmp_path, monkeypatch):
    written = []

    class FakeWriter:
        def __init__(self, folder):
            pass

        def dialogues(self, numbers):
            written.append((numbers[0], len(numbers)))
            return np.full((len(numbers), draft.TOKENS), numbers[0], np.int32)

    monkeypatch.setattr(draft, "Writer", FakeWriter)
    monkeypatch.setattr(draft, "AT_ONCE", 4)
    first = draft.write_texts(tmp_path / "model", tmp_path, 10)
    assert written == [(0, 4), (4, 4), (8, 2)] and first.shape == (10, draft.TOKENS)
    (tmp_path / "texts-00004.npy").unlink()
    assert np.array_equal(draft.write_texts(tmp_path / "model", tmp_path, 10), first)
    assert written[3:] == [(4, 4)]
