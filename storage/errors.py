"""Every error that osd raises on purpose, as one tree.

    OsdError
    ├── BadInput                 what the caller gave cannot be used; nothing was changed
    │   ├── BadRequest             a prompt or its sampling settings
    │   ├── BadPromptFile          a file of prompts, or a line in one
    │   ├── BadBenchFile           a recording or a cost table of `python -m benchmarks gamma`
    │   ├── BadSetting             osd.toml, OSD_… or a command's option
    │   ├── DuplicateRoute
    │   ├── DefaultRoute           what cannot be done to the route `default`
    │   ├── RouteWithoutDraft
    │   ├── BadPattern             a route's regular expression
    │   ├── BadExport              a file of `osd replay import`
    │   ├── FeaturesNotKept        hidden states asked of a store that has none
    │   ├── BadRouteFile           a file of `osd router import`, `teach` or `eval`
    │   └── NeedsYes               a command that asks, where nobody can answer
    ├── NotFound                 a thing asked for by name is not there
    │   ├── UnknownVersion
    │   ├── UnknownDraft
    │   ├── UnknownRoute
    │   ├── UnknownRequest
    │   │   └── ForgottenAhead     of which nothing is known yet
    │   ├── UnknownTopic
    │   ├── UnknownKey
    │   ├── UnknownServer
    │   ├── UnknownTrainer
    │   ├── UnknownEngine
    │   └── UnknownProposal
    ├── PairError                the two models cannot serve together
    │   ├── ModelNotLoaded
    │   ├── GenerationConfigRefused
    │   ├── VocabularyMismatch
    │   ├── CannotServeRagged
    │   ├── CannotServeTrees
    │   ├── BadProposal
    │   ├── HeadNotLoaded
    │   ├── HeadMismatch
    │   ├── AdapterMismatch
    │   ├── NotPlain               an adapter that can only be merged
    │   └── DraftUnsound
    ├── StoreError               what is kept cannot be reached or trusted
    │   ├── DatabaseUnreachable
    │   ├── SchemaOutdated
    │   │   ├── SchemaTooOld
    │   │   └── SchemaTooNew
    │   ├── StoreWriteFailed
    │   ├── HubRefused             a repository of the Hub
    │   ├── PlaceUnreachable       where samples or weights are kept, when that is no folder
    │   ├── CannotDecrypt
    │   ├── SegmentDamaged
    │   ├── WeightsDamaged
    │   ├── ModelFileDamaged
    │   ├── ForgottenSince         a table that may have learned from what was forgotten
    │   ├── DraftHeld              a draft that people decided to leave as it is
    │   └── WrongState
    ├── LeaseError               somebody else is training this draft
    │   ├── LeaseHeld
    │   └── LeaseLost
    └── TrainingFailed           a training run ended without a candidate

A class's docstring is its message: the sentence says what was wrong and what would be right, and its
``{names}`` are filled from the keyword arguments, which stay readable as ``error.facts``.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar


class OsdError(Exception):
    """{reason}"""

    exit_code: ClassVar[int] = 1

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        template = " ".join(inspect.cleandoc(type(self).__doc__ or "{reason}").split())
        super().__init__(template.format_map(facts))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts)


def _rebuild(cls: type[OsdError], facts: dict[str, Any]) -> OsdError:
    return cls(**facts)


class BadInput(OsdError):
    """{reason}"""

    exit_code = 2


class BadRequest(BadInput):
    """{field}: {reason}"""


class BadPromptFile(BadInput):
    """{path}: {reason}"""


class BadBenchFile(BadInput):
    """{path}: {reason}"""


class BadSetting(BadInput):
    """{source}: {key}: {reason}"""


class DuplicateRoute(BadInput):
    """There is a route named {route!r} already; `osd router change` alters it."""


class DefaultRoute(BadInput):
    """The route {route!r} cannot be {action}: {reason}."""


class RouteWithoutDraft(BadInput):
    """The route {route!r} has no draft that could serve it ({reason}). Name one that has weights with --draft, or make
    one with --new-draft; `osd drafts list` shows those there are."""


class BadPattern(BadInput):
    """The regular expression {pattern!r} does not compile ({reason}). Routes use RE2's syntax, which has neither
    look-around nor back-references."""


class BadRouteFile(BadInput):
    """{path}: {reason} Nothing was changed."""


class BadExport(BadInput):
    """{path}: {reason} Nothing was kept."""


class FeaturesNotKept(BadInput):
    """The store has no hidden states that this draft could learn from. {reason} Set learn.teacher = "recompute", so
    that the target reads the recorded texts again; or serve.record_hidden_states = true with serve.record = "verified",
    and learn from what is served from then on."""


class NeedsYes(BadInput):
    """{question} Nobody can answer: there is no terminal. Give --yes to go on."""


class NotFound(OsdError):
    """{reason}"""

    exit_code = 3


class UnknownVersion(NotFound):
    """There is no draft version {version!r}; `osd drafts list` shows those there are."""


class UnknownDraft(NotFound):
    """There is no draft named {draft!r}; known: {known}."""


class UnknownRoute(NotFound):
    """There is no route named {route!r}; known: {known}."""


class UnknownRequest(NotFound):
    """There is no request {request_id!r} in the replay store."""


class ForgottenAhead(UnknownRequest):
    """There is no request {request_id!r} in the replay store. It is noted: should it still come, from a server's memory
    or disk, it will not be kept."""


class UnknownTopic(NotFound):
    """No example of the topic {topic!r} was taught; known: {known}."""


class UnknownProposal(NotFound):
    """There is no proposal {proposal}; `osd router proposals` shows those there are."""


class UnknownKey(NotFound):
    """There is no API key {key!r}; `osd keys list` shows those there are."""


class UnknownServer(NotFound):
    """There is no serving process {server!r}; known: {known}."""


class UnknownTrainer(NotFound):
    """There is no living trainer {trainer!r}; known: {known}. `osd trainer list` shows them."""


class UnknownEngine(NotFound):
    """There is no engine {engine!r}; attached are: {known}. `osd engines add` attaches one."""


class PairError(OsdError):
    """{reason}"""

    exit_code = 4


class ModelNotLoaded(PairError):
    """{path}: {reason} Give a Hugging Face folder (config.json, model.safetensors, tokenizer.json) or a hub name."""


class NotEnoughMemory(PairError):
    """{path} needs {need:.2f} GB of memory in {dtype}, and {free:.2f} GB are free: nothing was loaded. serve.dtype =
    bfloat16 needs half of what float32 does."""


class GenerationConfigRefused(PairError):
    """{path}: its generation_config.json asks for {name} = {value!r}, which osd has not. Take it out, or set
    serve.generation_config = vllm, with which nothing of that file but the end tokens is read."""


class VocabularyMismatch(PairError):
    """The draft {draft} and the target {target} do not share a vocabulary ({reason}). Speculative
    decoding compares them token by token, so choose a draft with the target's own tokenizer, or set drafters.kind =
    universal."""


class KindMismatch(PairError):
    """The target {target} and the draft {draft} do not go together: one is an encoder-decoder model, the other is not.
    Choose a draft of the target's own kind, with its tokenizer."""


class DecoderOnly(PairError):
    """{model} is an encoder-decoder model, and {what} takes decoder-only ones. osd serves it with its own engine
    (`osd serve`, `osd generate`)."""


class CannotServeRagged(PairError):
    """{model}: {reason} osd serves rows of different length in one batch, which this model cannot do."""


class CannotServeTrees(PairError):
    """{model}: {reason} It serves chains; set drafters.kind = causal."""


class BadProposal(PairError):
    """A drafter proposed no tree ({reason}). Parents are earlier tokens, and what it learned from must have been
    tokenized as the target is."""


class HeadNotLoaded(PairError):
    """{path} is no acceptance head ({reason}). `python -m trainer head` makes one, a folder with
    acceptance_head.json and model.safetensors."""


class HeadMismatch(PairError):
    """The acceptance head {head} does not belong to the draft {draft}: {reason}. A head reads the embeddings of
    the draft that it was trained for; train one for this draft with `python -m trainer head`."""


class AdapterMismatch(PairError):
    """The adapter {version} does not stand over its draft's number 0: {reason}. It was refused; the version that
    serves goes on serving. An adapter fits the weights that it was trained over, and no others."""


class NotPlain(PairError):
    """The adapter {version} is more than a sum of low-rank products ({reason}). It can be merged into its base, and not
    served beside it."""


class DraftUnsound(PairError):
    """The draft version {version} does not run here: {reason}. It was refused; the version before it goes on
    serving."""


class StoreError(OsdError):
    """{reason}"""

    exit_code = 5


class DatabaseUnreachable(StoreError):
    """The database {url} does not answer ({reason}). Check that it runs, and storage.url in osd.toml or
    OSD_STORAGE__URL."""


class SchemaOutdated(StoreError):
    """The database {url} has schema {found}, this osd needs {needed}. Run `osd db upgrade`."""


class SchemaTooOld(SchemaOutdated):
    """The database {url} has schema {found}, and the oldest that this osd can open is {needed}. Check out commit
    002f94b5, run its `osd db upgrade`, and come back."""


class SchemaTooNew(SchemaOutdated):
    """The database {url} has schema {found}, newer than this osd's {needed}. Update osd."""


class StoreWriteFailed(StoreError):
    """{path} could not be written ({reason}). Nothing was published; free space or mend the permissions and
    run it again."""


class PlaceUnreachable(StoreError):
    """Nothing could be {what} at {url} ({reason}). The setting is {key}."""


class HubRefused(StoreError):
    """{repo}: {reason} Give the name of a repository (NAME/REPO), and a token where it needs one (`hf auth login`, or
    HF_TOKEN)."""


class CannotDecrypt(StoreError):
    """{path} is encrypted and cannot be read: {reason}. It was left as it is."""


class SegmentDamaged(StoreError):
    """The sample segment {path} cannot be read ({reason}). `osd replay purge --segment {segment}` drops it."""


class WeightsDamaged(StoreError):
    """The weights of {version} are not what was published ({reason}). They were refused; the version that
    serves goes on serving. `osd drafts rollback` returns to its parent."""


class ModelFileDamaged(StoreError):
    """{path} is not {what} that this osd can read ({reason}). It was refused and nothing was changed; write it
    anew with what trained it, or take a copy of it that is whole."""


class ForgottenSince(StoreError):
    """{what} began to learn before requests were forgotten, and may hold something of them. It was not kept; what it
    learned from others is learned anew from the requests that are kept."""


class WrongState(StoreError):
    """{version} is {state}, and {action} needs {needed}."""


class DraftHeld(StoreError):
    """The draft {draft} is {held}: nothing replaces it. `osd drafts resume {draft}` lets it learn again."""


class LeaseError(OsdError):
    """{reason}"""

    exit_code = 6


class LeaseHeld(LeaseError):
    """The draft {draft} is being trained by {holder} until {until}. One worker trains a draft at a time;
    a dead worker's lease ends by itself."""


class LeaseLost(LeaseError):
    """The lease on the draft {draft} is no longer held by {holder}: another worker took over. This run's
    result is thrown away."""


class TrainingFailed(OsdError):
    """Training run {run} of the draft {draft} failed: {reason}"""

    exit_code = 7
