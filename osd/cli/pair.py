"""Which pair a command serves with: the one asked for, the one in the settings, or the one that ships with osd."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import osd
from osd.models.needs_draft import MODELLESS
from storage.errors import BadSetting
from storage.settings import ServeSettings

if TYPE_CHECKING:
    from osd.models.pair import Pair

OR_ELSE = f", or set serve.drafter to one that needs no draft model ({', '.join(MODELLESS)})"
SHIPPED = Path(osd.__file__).parent / "demo" / "pair"


@dataclass(frozen=True, slots=True)
class PairNames:
    """Folders or hub names of a target and a draft."""

    target: str
    draft: str
    """Empty where drafts need no model."""
    shipped: bool = False
    """Whether it is osd's own small pair because no other was named."""

    def load(self, serve: ServeSettings) -> Pair:
        """Both models in memory. Raises PairError."""
        if not self.draft:
            from osd.models.target_only import load_alone

            return load_alone(self.target, device=serve.device, dtype=serve.dtype)
        from osd.models.pair import load_pair

        return load_pair(self.target, self.draft, device=serve.device, dtype=serve.dtype)


def choose_pair(
    serve: ServeSettings, target: str | None = None, draft: str | None = None, *, alone: bool = False
) -> PairNames:
    """The pair to serve with. ``alone``: a target without a draft will do where ``serve.drafter`` needs none. Raises
    BadSetting when one half is named without the other."""
    target, draft = target or serve.target, draft or serve.draft
    if target and draft:
        return PairNames(target, draft)
    if target and alone and serve.drafter in MODELLESS:
        return PairNames(target, "")
    if target or draft:
        given, missing = ("target", "draft") if target else ("draft", "target")
        raise BadSetting(
            source="pair",
            key=f"serve.{missing}",
            reason=f"a {given} is named without a {missing}; give --{missing} too{OR_ELSE * (alone and bool(target))}",
        )
    return PairNames(str(SHIPPED / "target"), str(SHIPPED / "draft"), shipped=True)
