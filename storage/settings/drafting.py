"""Who proposes tokens (``[drafters]``, ``[ngram]``), and how many before the target looks: ``[gamma]``, with a table
for each rule that has settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from storage.settings.section import OpenSection, Section


class DrafterSettings(OpenSection):
    kind: str = "causal"
    """Who drafts: causal, the draft, in chains; tree, the draft, in trees where it reads the target's hidden states
    (Medusa, EAGLE, DFlash …); blended, the draft and a table of n-grams that learns from what is served, where
    that is more often right; trigram, that table alone; lookup, in a request's own text; universal, a draft with a
    vocabulary of its own, which does not learn; or a drafter that an installed package brings."""
    tree_nodes: int = Field(default=24, ge=1, le=1024)
    """Drafted tokens of a row at most where drafts are trees."""


class NgramSearchSettings(Section):
    """How drafts are searched for in a table."""

    method: Literal["mcts", "greedy"] = "mcts"
    """Tree search, or the likeliest token at each place."""
    searches: int = Field(default=150, ge=1, le=4096)
    """Searches for a row's draft; 150 as in the paper of Adaptix."""
    budget_us: float | None = Field(default=None, gt=0)
    """Microseconds for the rows of a round instead: as many searches as fit."""
    breadth: int = Field(default=16, ge=1, le=64)
    """Successors that are considered after each token."""
    c1: float = Field(default=1.25, ge=0)
    """C1 of Eq. 3: how much is explored."""
    c2: float = Field(default=19652.0, gt=0)
    """C2 of Eq. 3: after how many searches more is."""
    weight: float = Field(default=128.0, ge=0)
    """Weight of an n-gram of the request itself, beside one of the table."""
    kappa: float = Field(default=10.0, ge=0)
    """Weight of shorter contexts beside the longest one, in counts; 0 is the paper's Eq. 1."""
    shortest: int = Field(default=0, ge=0, le=3)
    """Tokens of the shortest context that is looked up; `ngram.order` − 1 is the paper's matrix alone."""


class NgramSettings(Section):
    corpus: Path | None = None
    """Folder of `osd corpus build` that a table starts from, where none was kept yet."""
    table: str = "ngram"
    """The draft in the store whose versions the shared tables are kept as; other routes' are TABLE.ROUTE. A tenant's
    own are not kept: they learn from its recorded requests again."""
    order: int = Field(default=4, ge=2, le=4)
    """Tokens of the longest n-grams that are counted. A table that was kept with fewer goes on with so many."""
    memory_mb: int = Field(default=64, ge=1)
    """Memory of one table."""
    tables: int = Field(default=8, ge=1)
    """Tables in memory: one a route for each tenant, or for all where `privacy.share_tables` says so. The one unused
    longest makes room."""
    keep_seconds: float = Field(default=600, gt=0)
    """How often tables that learned a tenth more are kept as a new version; they are at the end, too."""
    search: NgramSearchSettings = NgramSearchSettings()


class GoodputSettings(Section):
    """All are ratios, or counts of tokens and rounds: none depends on how fast a machine is."""

    memory: float = Field(default=100.0, gt=1)
    """Verdicts on drafted tokens that are remembered, of those that tell most."""
    spread: float = Field(default=1.0, gt=0)
    """How far requests, and tokens, differ in log-odds of acceptance (standard deviation), beforehand."""
    stake: float = Field(default=8.0, ge=0)
    """Tokens that an engine may lose by drafts, as far as it can tell, before it knows what they are worth."""
    share: float = Field(default=0.01, ge=0, lt=1)
    """Share of all tokens that drafts may lose after that; where they do not pay, tries cost half of it."""
    stale: float = Field(default=16_384.0, gt=0)
    """Tokens without drafts after which most of what was known of a draft is forgotten."""
    patience: float = Field(default=32.0, ge=1)
    """Rounds over which the price of time is averaged."""
    head: bool = False
    """Whether the draft's acceptance head is asked as well (a head is then loaded, and trained, as for specdecpp)."""


class AnalyticSettings(Section):
    history: int = Field(default=12, ge=1)
    """h: newest rounds of a request from which its acceptance is estimated."""
    prior_trials: float = Field(default=6.0, ge=0)
    """Drafted tokens that the engine's recent acceptance counts for beside a request's own history; 0, as in the paper,
    goes by that alone."""
    estimator: Literal["ratio", "truncated"] = "ratio"
    """How it is estimated: Eq. 2 of on-the-fly adaptation, or the root of its Eq. 11."""


class QLearningSettings(Section):
    warmup: int = Field(default=25, ge=0)
    """Requests in which gammas are tried at random, fewer and fewer."""
    alpha: float = Field(default=0.1, gt=0, le=1)
    """α: how far a round moves its entry of the table."""
    discount: float = Field(default=0.9, ge=0, lt=1)
    """λ: worth of the round after, beside this one's reward."""
    epsilon: float = Field(default=0.05, ge=0, le=1)
    """ε: share of gammas that are tried at random after the warm-up."""
    rest: float = Field(default=0.0, ge=0, le=1)
    """Reward of a round without a draft: the accepted share of drafted tokens below which drafting does not pay."""
    seed: int = 0
    """Seeds the random gammas."""


class GammaTuneSettings(Section):
    eta: float = Field(default=0.5, gt=0, le=1)
    """η: weight of the newest round in the moving average."""
    delta: int = Field(default=2, ge=1)
    """δ: tokens by which a window that was accepted whole is lengthened."""


class GammaTunePlusSettings(GammaTuneSettings):
    threshold: float = Field(default=0.4, gt=0, lt=1)
    """τ: drafting stops after a token where the draft is less sure than this."""


class ConfidenceSettings(Section):
    threshold: float = Field(default=0.4, gt=0, lt=1)
    """τ: drafting stops after a token where the draft is less sure than this."""
    tokens: int = Field(default=20, ge=1)
    """Drafted tokens of a round at most, transformers' num_assistant_tokens; and no more than gamma.max."""
    adapts: bool = False
    """Whether τ moves to what a request's judged tokens say, as in transformers."""


class SpecDecSettings(Section):
    threshold: Annotated[float, Field(gt=0, lt=1)] | Literal["costs"] = 0.7
    """h: drafting stops once the head's chance that a token was refused is above it; "costs": h from what passes cost,
    and no drafts where they do not pay."""
    head: Path | None = None
    """Folder of the acceptance head to start from; None waits until the first one was learned."""


class GammaSettings(OpenSection):
    rule: str = "goodput"
    """Who decides: goodput, fixed, analytic, fsm, cache_fsm, q_learning, gammatune, gammatune_plus, heuristic,
    confidence, moving_average, specdecpp, or a rule that an installed package brings."""
    routes: dict[str, str] = Field(default={})
    """Other rules for single routes: route = rule."""
    initial: int = Field(default=4, ge=0)
    """Drafted tokens of a request's first round (every round, for fixed)."""
    max: int = Field(default=12, ge=1)
    """Drafted tokens of a round at most."""
    goodput: GoodputSettings = GoodputSettings()
    analytic: AnalyticSettings = AnalyticSettings()
    q_learning: QLearningSettings = QLearningSettings()
    gammatune: GammaTuneSettings = GammaTuneSettings()
    gammatune_plus: GammaTunePlusSettings = GammaTunePlusSettings()
    confidence: ConfidenceSettings = ConfidenceSettings()
    specdecpp: SpecDecSettings = SpecDecSettings()

    @property
    def rules(self) -> set[str]:
        """All rules that are asked for: the default one and those of single routes."""
        return {self.rule, *self.routes.values()}
