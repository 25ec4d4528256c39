"""A folder is loaded whole or refused with the first of what is wrong: nothing is drawn at random in its place."""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from threading import Thread

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

import osd
from osd.draft import Draft
from osd.engine.engine import Engine
from osd.models.hf_forward import HuggingFaceForward
from osd.models.lora.merging import merged
from osd.models.pair import Pair, load_model, load_pair
from osd.models.target_only import load_alone
from osd.models.vocabulary import load_tokenizer
from osd.models.weights import read_weights
from storage.errors import ModelNotLoaded
from storage.records import Request
from storage.sampling import Sampling
from tests.support.models import alone, random_module
from tests.support.settings import settings_of

SHIPPED = Path(osd.__file__).parent / "demo" / "pair"
CPU = torch.device("cpu")
Tensors = dict[str, Tensor]
TIED, UNTIED = "gpt2", "llama"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small model with an output layer of its own, and one whose output layer is its embeddings."""
    root = tmp_path_factory.mktemp("whole")
    for kind in (TIED, UNTIED):
        random_module(kind).save_pretrained(root / kind)
    return {kind: root / kind for kind in (TIED, UNTIED)}


def rename(tensors: Tensors, name: str) -> None:
    tensors[name + "_"] = tensors.pop(name)


def drop(tensors: Tensors, name: str) -> None:
    del tensors[name]


def prefix(tensors: Tensors, name: str) -> None:
    moved = {f"foo.{each}": tensor for each, tensor in tensors.items()}
    tensors.clear()
    tensors.update(moved)


def widen(tensors: Tensors, name: str) -> None:
    tensors[name] = torch.cat([tensors[name], tensors[name][:1]])


def add(tensors: Tensors, name: str) -> None:
    tensors[f"{name.rpartition('.')[0]}.of_another_model"] = torch.zeros(3)


def poison(tensors: Tensors, name: str) -> None:
    tensors[name].view(-1)[-1] = math.nan


def overflow(tensors: Tensors, name: str) -> None:
    tensors[name].view(-1)[0] = -math.inf


DAMAGES: list[Callable[[Tensors, str], None]] = [rename, drop, prefix, widen, add, poison, overflow]


@settings(max_examples=60)
@given(kind=st.sampled_from([TIED, UNTIED]), damage=st.sampled_from(DAMAGES), where=st.integers(0, 99))
def test_a_damaged_folder_never_loads_silently(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, kind: str,
    damage: Callable[[Tensors, str], None], where: int,
) -> None:  # fmt: skip
    folder = Path(shutil.copytree(folders[kind], tmp_path_factory.mktemp("damaged") / "model"))
    tensors = load_file(folder / "model.safetensors")
    name = sorted(tensors)[where % len(tensors)]
    damage(tensors, name)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelNotLoaded) as refused:
        read_weights(folder, torch.float32)
    assert "foo." in str(refused.value) if damage is prefix else name.rpartition(".")[0] in str(refused.value)


@settings(max_examples=30)
@given(kind=st.sampled_from([TIED, UNTIED]), at=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_never_loads_silently(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, kind: str, at: float
) -> None:
    folder = Path(shutil.copytree(folders[kind], tmp_path_factory.mktemp("cut") / "model"))
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: int(at * len(content))])
    with pytest.raises(ModelNotLoaded):
        read_weights(folder, torch.float32)


@pytest.mark.parametrize("kind", [TIED, UNTIED])
def test_a_whole_folder_loads_as_it_was_saved(folders: dict[str, Path], kind: str) -> None:
    loaded = read_weights(folders[kind], torch.float32).state_dict()
    saved = random_module(kind).state_dict()
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)


def test_an_output_layer_that_is_neither_there_nor_tied_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders[UNTIED], tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    save_file({name: each for name, each in tensors.items() if name != "lm_head.weight"}, folder / "model.safetensors")
    with pytest.raises(ModelNotLoaded, match=r"lack lm_head\.weight of LlamaForCausalLM.*tie_word_embeddings"):
        load_model(folder, CPU)
    with pytest.raises(ModelNotLoaded, match=r"lm_head\.weight"):
        load_alone(folder, device="cpu")
    with pytest.raises(ModelNotLoaded, match=r"lm_head\.weight"):
        load_pair(folders[UNTIED], folder, device="cpu")


def test_what_a_sentence_does_not_name_it_counts(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders[TIED], tmp_path / "model"))
    save_file({"wte.weight": torch.zeros(97, 32)}, folder / "model.safetensors")
    with pytest.raises(ModelNotLoaded, match=r"transformer\.h\.0\.attn\.c_attn\.bias, .* and 24 more tensors"):
        read_weights(folder, torch.float32)


def test_an_adapter_that_lacks_a_factor_is_not_merged(tmp_path: Path) -> None:
    adapter = get_peft_model(random_module(UNTIED), LoraConfig(r=2, target_modules="all-linear"))
    assert isinstance(adapter, PeftModel)
    adapter.save_pretrained(str(tmp_path))
    merged(random_module(UNTIED), tmp_path)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    tensors.pop(min(tensors))
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="missing adapter keys"):
        merged(random_module(UNTIED), tmp_path)


# tokenizers


@pytest.fixture
def talking(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED / "draft", tmp_path / "draft"))


@pytest.mark.parametrize("kind", [TIED, UNTIED])  # of the one transformers makes a tokenizer that knows a single token
def test_only_a_folder_without_tokenizer_files_has_no_tokenizer(folders: dict[str, Path], kind: str) -> None:
    assert load_tokenizer(folders[kind]) is None


@settings(max_examples=30)
@given(at=st.floats(0, 1, exclude_max=True), file=st.sampled_from(["tokenizer.json", "tokenizer_config.json"]))
def test_a_tokenizer_cut_short_is_refused(tmp_path_factory: pytest.TempPathFactory, at: float, file: str) -> None:
    folder = Path(shutil.copytree(SHIPPED / "draft", tmp_path_factory.mktemp("cut") / "draft"))
    content = (folder / file).read_text(encoding="utf-8").rstrip()
    (folder / file).write_text(content[: int(at * len(content))], encoding="utf-8")
    with pytest.raises(ModelNotLoaded, match="Its tokenizer cannot be read: "):
        load_tokenizer(folder)


@pytest.mark.parametrize("kind", [TIED, UNTIED])
def test_settings_of_a_tokenizer_without_its_vocabulary_are_refused(
    talking: Path, folders: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    folder = Path(shutil.copytree(folders[kind], tmp_path / kind))
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    with pytest.raises(ModelNotLoaded, match="tokenizer"):
        load_tokenizer(folder)


def test_a_package_that_a_tokenizer_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: found("no-such" if name == "sentencepiece" else name))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model(["▁", "a", "b", "ab"]))
    with pytest.raises(ModelNotLoaded, match=r"pip install sentencepiece"):
        load_tokenizer(tmp_path)


def sentencepiece_model(pieces: list[str]) -> bytes:
    """A model as SentencePiece saves it: field 1 repeats (text, score, kind), in protobuf's own encoding."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    kinds = [("<unk>", 2), ("<s>", 3), ("</s>", 3), *((piece, 1) for piece in pieces)]
    body = [
        field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", -float(i)) + bytes([3 << 3, kind]))
        for i, (text, kind) in enumerate(kinds)
    ]
    return b"".join(body)


def test_a_target_that_accelerate_places_decodes_beside_a_draft_elsewhere(
    folders: dict[str, Path],
) -> None:
    """Here all devices are the CPU, of which PyTorch knows several names."""
    folder = folders["llama"]
    spread = load_model(folder, torch.device("cpu"), device_map="auto")
    pair = Pair(spread, load_model(folder, torch.device("cpu")), None, frozenset())
    engine = Engine(pair, settings_of(serve__max_batch=2, serve__max_length=64, gamma__rule="fixed", gamma__initial=3))
    moved: list[str] = []
    engine.pool.decoder.device = torch.device("cpu", 0)
    whole = Draft.to
    for sampling in (Sampling(0.0), Sampling(1.0, seed=3)):
        asked = Request((3, 4, 5), max_new_tokens=12, sampling=sampling, ignore_eos=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Draft, "to", lambda draft, device: (moved.append(str(device)), whole(draft, device))[1])
            (done,) = engine.run([asked])
        if sampling.greedy:
            assert list(done.tokens) == alone(spread.module, asked.prompt_tokens, 12)
    assert len(moved) > 3 and set(moved) == {"cpu"}


def test_quantised_weights_stay_where_they_were_packed(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of the libraries that read them is needed by osd: what they would be asked is looked at."""
    folder = shutil.copytree(folders["llama"], tmp_path / "quantised")
    config = json.loads((folder / "config.json").read_text())
    quantised = config | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (folder / "config.json").write_text(json.dumps(quantised))
    asked: list[object] = []

    def read(name: str | Path, dtype: object, device_map: object = None) -> object:
        asked.append(device_map)
        module = read_weights(folders["llama"], torch.float32)
        for part in module.modules():
            if isinstance(part, torch.nn.Linear):
                part.__class__ = type("PackedLinear", (torch.nn.Linear,), {})
        module.to = None  # as transformers refuses for such models
        return module

    monkeypatch.setattr("osd.models.pair.read_weights", read)
    model = load_model(folder, torch.device("cpu"))
    assert asked == [{"": "cpu"}] and model.build is HuggingFaceForward


def test_threads_that_load_at_once(folders: dict[str, Path]) -> None:
    """transformers exchanges the tying of weights while it loads: what it leaves is as it was, and each model whole."""
    tie, default, loaded = PreTrainedModel.tie_weights, torch.get_default_dtype(), list[PreTrainedModel]()
    threads = [
        Thread(target=lambda dtype=dtype: loaded.extend(read_weights(folders[TIED], dtype) for _ in range(12)))
        for dtype in (torch.float32, torch.bfloat16, torch.float32)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert PreTrainedModel.tie_weights is tie and torch.get_default_dtype() is default
    assert len(loaded) == 36
    assert all(one.lm_head.weight is one.transformer.wte.weight for one in loaded)
