"""``--worker-extension-cls vllm_tap.TappedWorker``: osd's worker extension, which also writes down what each round of
speculation drafted and emitted, as the V1 runner of vLLM 0.32 knows it: osd recovers the same from outside."""

from __future__ import annotations

import json
import os
from typing import Any

from osd_vllm.worker import OsdWorker  # type: ignore[import-not-found]


class TappedWorker(OsdWorker):  # type: ignore[misc]
    """Writes a line of JSON a round and request into the file OSD_TAP."""

    _osd_tapped: Any = None

    def osd_draft_info(self) -> Any:
        """Hang the tap up the first time that anybody asks what drafts here."""
        runner = self.model_runner
        if self._osd_tapped is None and getattr(runner, "rejection_sampler", None) is not None:
            self._osd_tapped = open(os.environ["OSD_TAP"], "a", buffering=1)  # noqa: SIM115  (as long as the worker)
            runner.rejection_sampler.register_forward_hook(self._osd_note, with_kwargs=True)
        return super().osd_draft_info()

    def _osd_note(self, _: Any, given: Any, options: Any, output: Any) -> None:
        metadata = given[0] if given else options["metadata"]
        drafted, place = metadata.draft_token_ids.tolist(), 0
        rows = zip(
            self.model_runner.input_batch.req_ids, metadata.num_draft_tokens, output.sampled_token_ids.tolist(),
            strict=False,
        )  # fmt: skip
        for request, count, emitted in rows:
            if count:
                said = {"request": request, "drafted": drafted[place : place + count]}
                self._osd_tapped.write(json.dumps({**said, "emitted": [t for t in emitted if t >= 0]}) + "\n")
            place += count
