"""Sources that have all that the plugin relies on in vLLM, and nothing else, so that one thing can be taken out."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import ModuleType

from osd.attached.vllm.plugin.osd_vllm.needs import NEEDS


def write_sources(root: Path, without: str = "") -> Path:
    """Write a package; ``without`` one class, function, method, parameter or field. Return its folder."""
    classes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    functions: dict[str, list[str]] = defaultdict(list)
    for need in (need for needs in NEEDS.values() for need in needs):
        owner, _, method = need.name.partition(".")
        names = [name for name in need.names if name != without]
        made = f"def {method or owner}({', '.join(names)}): pass"
        if without and without in (owner, method):
            continue
        if method:
            classes[need.module][owner].add(f"    {made}")
        elif owner[0].isupper():
            classes[need.module][owner] |= {f"    {name} = 0" for name in names}
        else:
            functions[need.module].append(made)
    for module in {need.module for needs in NEEDS.values() for need in needs}:
        lines = [
            line for name, body in classes[module].items() for line in (f"class {name}:", "    pass", *sorted(body))
        ]
        (root / module).parent.mkdir(parents=True, exist_ok=True)
        (root / module).write_text("\n".join([*lines, *functions[module]]) + "\n")
    return root


def fake_vllm_module(version: str, sources: Path) -> ModuleType:
    """Return a package of that version whose sources are there, and which has nothing in it."""
    made = ModuleType("vllm")
    made.__version__, made.__file__ = version, str(sources / "__init__.py")  # type: ignore[attr-defined]
    return made
