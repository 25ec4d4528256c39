"""Checks whether a model computes trees as it computes the texts that are in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from osd.draft_tree import Tree, moves
from osd.models.attention_metadata import lay_out
from osd.models.decoder import Decoder, vocabulary_size
from osd.models.encoder_decoder import has_encoder
from osd.models.limits import position_limit
from osd.models.model import Model
from osd.models.proof import TOLERANCE, ProofRecord, off, proven_length, told, unit
from osd.models.twin import twin_of
from storage.errors import CannotServeTrees

TEXTS = (9, 5)
"""Lengths of the texts that the trees grow from."""
PARENTS = ((0, 0, 1, 1, 2, 3, 6), (0, 1, 0, 3))
"""A tree with branches, and a second one that is smaller."""
KEPT = (0, 2, 5)
"""A path of the first tree; it is compacted to places 0, 1, 2."""
AT_ONCE = 256
"""Tokens that a plain pass reads at most, unless one text is longer."""
ROOM = 24
"""Positions beyond the longest text that the caches have."""


@torch.inference_mode()
def check_model(model: Model) -> None:
    """Check that every node's logits are those of a plain pass over the text up to it, and also those of a token that
    is fed after a path was kept: of the model itself after short texts, and of its twin beyond all windows. Raises
    CannotServeTrees."""
    if has_encoder(model.module):
        raise CannotServeTrees(model=model.name, reason="Encoder-decoder targets draft chains.")
    reason = _reason_against(model, TEXTS)
    reason = reason or ProofRecord(model.module).recall(f"trees, {model.build.__name__}", lambda: _beyond(model))
    if reason:
        raise CannotServeTrees(model=model.name, reason=reason)


def _beyond(model: Model) -> str | None:
    twin = twin_of(model.module)
    length = proven_length(twin)
    small = Model(model.name, twin, position_limit(twin.config), model.build)
    longest = length - max(map(len, PARENTS))
    return _reason_against(small, (longest, longest // 3))


def _reason_against(model: Model, texts: Sequence[int]) -> str | None:
    try:
        worst = _worst(model, texts)
    except Exception as error:  # whatever fails inside a model that is not ours means the same here
        return f"Its forward pass fails with a tree ({told(error)})."
    if worst <= TOLERANCE * unit(model.module):
        return None
    return f"With a tree of tokens its logits differ by {worst:.2g} from a plain forward pass."


def _worst(model: Model, lengths: Sequence[int]) -> float:
    vocabulary = vocabulary_size(model.module)
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(0, vocabulary, (n,), generator=generator).tolist() for n in lengths]
    trees = [_tree(parents, vocabulary) for parents in PARENTS]
    decoder = model.decoder(len(texts), max(lengths) + ROOM)
    for row, text in enumerate(texts):
        decoder.prefill(row, text[:-1])
    logits = _feed(decoder, texts, trees)
    worst = max(off(*pair) for pair in _at_nodes(model, logits, texts, trees))
    return max(worst, off(*_go_on(decoder, model, texts, trees[0])))


def _tree(parents: tuple[int, ...], vocabulary: int) -> Tree:
    tree = Tree()
    for node, parent in enumerate(parents, 1):
        tree.add(parent, node % vocabulary)
    return tree


def _feed(decoder: Decoder, texts: list[list[int]], trees: list[Tree]) -> Tensor:
    width = max(len(tree) for tree in trees) + 1
    lines = [[text[-1], *tree.tokens] for text, tree in zip(texts, trees, strict=True)]
    tokens = torch.tensor([[*line, *[0] * (width - len(line))] for line in lines], device=decoder.device)
    starts, counts = [len(text) - 1 for text in texts], [len(line) for line in lines]
    return decoder.scored(tokens, starts, counts, lay_out(trees, width, decoder.device)).table(width)


def _at_nodes(
    model: Model, logits: Tensor, texts: list[list[int]], trees: list[Tree]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for every node our logits (V,) and those of a plain pass over all that it sees."""
    for own, text, tree in zip(logits, texts, trees, strict=True):
        ways = [text]
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            ways.append([*ways[parent], token])
        yield from zip(own, _plain(model, ways), strict=False)


def _go_on(decoder: Decoder, model: Model, texts: list[list[int]], tree: Tree) -> tuple[Tensor, Tensor]:
    """Return both logits for a token that is fed to the first row after a path was kept."""
    decoder.cache.close_up([len(text) - 1 for text in texts], [(0, *move) for move in moves(KEPT)])
    text = [*texts[0], *tree.follow(KEPT)[: len(KEPT) - 1], 0]
    return decoder.logits(torch.tensor([[0]], device=decoder.device), [len(text) - 1])[0, 0], _plain(model, [text])[0]


def _plain(model: Model, texts: Sequence[list[int]]) -> Tensor:
    """Return the module's own logits (N, V) after each text. Short texts share a pass, for a module whose weights are
    packed lays them out anew in each; what fills them up stands behind them, and no logits change with that."""
    longest = max(map(len, texts))
    lines = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=model.device)
    last = torch.tensor([len(text) - 1 for text in texts], device=model.device)
    together = max(1, AT_ONCE // longest)
    parts = zip(torch.split(lines, together), torch.split(last, together), strict=True)
    return torch.cat([_after(model.module, *part) for part in parts])


def _after(module: PreTrainedModel, tokens: Tensor, last: Tensor) -> Tensor:
    logits: Tensor = module(input_ids=tokens, use_cache=False).logits
    return logits[torch.arange(len(last), device=last.device), last]
