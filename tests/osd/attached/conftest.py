"""A fake vLLM around the real plugin."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.fake_vllm import TOKEN, FakeEngine, plugin
from tests.support.models import noisy, random_module


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a target, of a draft that is sometimes right, and of a better one."""
    root = tmp_path_factory.mktemp("vllm")
    target = random_module("llama")
    for name, module in {"target": target, "draft": noisy(target, 0.4), "better": noisy(target, 0.1)}.items():
        module.save_pretrained(root / name)
    (root / "target" / "tokenizer.json").write_text("{}")
    return {name: root / name for name in ("target", "draft", "better")} | {"root": root}


@pytest.fixture
def fake(tmp_path: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """The engine behind the fake."""
    monkeypatch.setenv("OSD_VLLM_TOKEN", TOKEN)
    monkeypatch.setenv("OSD_VLLM_ENGINE", "gpu-1")
    monkeypatch.setenv("OSD_VLLM_FOLDERS", f"{folders['root']}:{tmp_path}")
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))
    plugin(monkeypatch)
    yield FakeEngine(folders["target"], folders["draft"], 3)
