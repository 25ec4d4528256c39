"""Drafts on the Hub: a version goes there as a plain folder with a model card, and comes from there as number 0.

What leaves the machine is the weights, the configuration, the tokenizer and sums: no text, no token of a prompt, no
folder's name. But weights are learned from traffic, and a draft vocabulary is the list of tokens that it used most.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import HfApi, ModelCardData, snapshot_download
from jinja2 import Environment, StrictUndefined

from osd.hotswap.export import export
from osd.models.features.files import VOCABULARY
from osd.models.model_digest import model_digest
from osd.models.pair import load_pair
from osd.models.weights import first_line
from storage.distribution import osd_version
from storage.errors import BadInput, HubRefused
from storage.insights.statistics import rate
from storage.outcomes.outcomes import LOG_ROWS
from storage.records import DraftVersion
from storage.sql.ledger import require_name
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS, read_config, speculative_config
from storage.versions.lineage import taught_by
from storage.versions.weights import MARKER, PROVENANCE

TEMPLATE = Path(__file__).parent / "card.md.jinja"
KEPT = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "LICENSE", "NOTICE"]
"""Files that are fetched of a repository: what osd keeps of a model's folder, without its card."""
ALGORITHMS = dict.fromkeys(FEATURE_KINDS, "") | {"eagle": "EAGLE", "eagle3": "EAGLE3"}
"""Kind -> SGLang's algorithm, empty where osd knows none."""


def push(store: Store, version_id: str, repo: str, *, private: bool = True) -> str:
    """Upload a version with a model card to a repository of the Hub, which is made where there is none; return its
    address. Raises UnknownVersion, BadInput, WeightsDamaged, StoreWriteFailed, and HubRefused."""
    version = store.versions.get(version_id)
    with TemporaryDirectory(prefix="osd-push-") as made:
        folder = export(store, version.id, Path(made) / "draft")
        for name in (PROVENANCE, MARKER):  # they tell of this machine, as folders in config.json do
            (folder / name).unlink(missing_ok=True)
        for path in folder.glob("*config*.json"):
            facts = json.loads(path.read_text("utf-8"))
            plain = {name: value for name, value in facts.items() if "name_or_path" not in name}
            path.write_text(json.dumps(plain, indent=2) + "\n", "utf-8")
        (folder / "README.md").write_text(model_card(store, version, repo, read_config(folder)), "utf-8")
        with _hub(repo):
            address = str(HfApi().create_repo(repo, private=private, exist_ok=True))
            HfApi().upload_folder(repo_id=repo, folder_path=folder, commit_message=f"{version.id}, by osd")
    return address


def model_card(store: Store, version: DraftVersion, repo: str, config: dict[str, Any]) -> str:
    """Return the card of a version: what it is for, what it learned from, what it brings, how it is served."""
    lineage = store.versions.lineage(version.id)
    domains, gone = store.db.read(taught_by, [each.run_id for each in lineage if each.run_id])
    digest = store.targets.of_lines().get(version.draft)
    name = store.targets.name_of(digest) or "TARGET"
    is_public = name.count("/") == 1 and not Path(name).exists()
    target = name if is_public else Path(name).name
    tokens = config.get("num_heads") or config.get("block_size", 5) - 1
    speculation = json.dumps(speculative_config(version.kind, repo, tokens))
    tags = ["speculative-decoding", "draft", version.kind, "osd"]
    data = ModelCardData(base_model=target if is_public else None, pipeline_tag="text-generation", tags=tags)
    page = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    listed = config.get(VOCABULARY)
    few = config.get("truncated_vocab_size") or (len(listed) if listed else config.get("draft_vocab_size"))
    return page.from_string(TEMPLATE.read_text("utf-8")).render(
        data=data.to_yaml(), repo=repo, version=version, osd=osd_version(), target=target, target_digest=digest,
        root=lineage[-1], domains=domains, gone=gone, requests=gone + sum(count for count, _ in domains.values()),
        acceptance=live_acceptance(store, version.id), gate=version.evidence, speculation=speculation,
        algorithm=ALGORITHMS.get(version.kind, "STANDALONE"),
        few=few if few and few < config.get("vocab_size", 0) else None,
    )  # fmt: skip


def live_acceptance(store: Store, version_id: str) -> dict[str, tuple[int, float, float | None]]:
    """Return, by route, how many of the version's logged requests were judged, their α = accepted ÷ (accepted +
    rejections), and its standard error over requests (None with fewer than two)."""
    judged: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for each in store.outcomes.recent(version=version_id, limit=LOG_ROWS):
        if each.alpha is not None:
            judged[each.route].append((each.accepted, each.accepted + each.rejections))
    found = {route: (len(counts), rate(counts)) for route, counts in sorted(judged.items())}
    return {
        route: (count, of.value or 0.0, None if of.variance is None else of.variance**0.5)
        for route, (count, of) in found.items()
    }


def new_from_hub(store: Store, draft: str, target: str, repo: str) -> DraftVersion:
    """Fetch a draft from a repository of the Hub and enter it as number 0 of a draft's line for a target, once both
    were loaded as servers load them. Raises BadInput for a name that is taken or cannot be one, HubRefused, PairError,
    StoreError."""
    require_name(draft)
    folder = fetch(repo)
    load_pair(target, folder, device="cpu")
    digest = model_digest(target)
    if digest and (taken := store.versions.find(draft, digest)):
        raise BadInput(reason=f"The draft {draft} has a number 0 for this target ({taken.id}); give another name.")
    facts = {"from": repo, "revision": folder.name, "target": digest}
    return store.versions.register_root(draft, folder, facts, target=digest)


def fetch(repo: str) -> Path:
    """Fetch a model of the Hub, and return its folder in the cache. Raises HubRefused."""
    with _hub(repo):
        return Path(snapshot_download(repo, allow_patterns=KEPT))


@contextmanager
def _hub(repo: str) -> Iterator[None]:
    """Say what the Hub refused. Raises HubRefused."""
    try:
        yield
    except Exception as error:  # of the Hub's client, its HTTP client's, the system's
        raise HubRefused(repo=repo, reason=first_line(error)) from None
