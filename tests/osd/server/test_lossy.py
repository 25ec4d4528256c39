"""A server in a lossy mode says so: in answers, whole and streamed, in metrics, and in the totals that it leaves."""

from __future__ import annotations

from pathlib import Path

from tests.osd.server.conftest import serving
from tests.support.waiting import until


def test_every_answer_names_the_mode_and_so_do_metrics_and_totals(tmp_path: Path) -> None:
    with serving(tmp_path, OSD_SERVE__LOSSY="typical", OSD_STORAGE__FLUSH_SECONDS="0.1") as server:
        ask = server.client().completions.with_raw_response.create
        asked = {"model": "target", "prompt": "How many", "max_tokens": 12}
        whole = ask(**asked, temperature=1.0)
        assert whole.headers["x-osd-lossy"] == "typical" and whole.parse().osd["lossy"] == "typical"
        streamed = ask(**asked, temperature=1.0, stream=True)
        assert streamed.headers["x-osd-lossy"] == "typical" and list(streamed.parse())
        ask(**asked, temperature=0)
        assert 'osd_engine_lossy{mode="typical"} 1.0' in server.get("/metrics").text
        with server.store() as store:
            until(lambda: sum(row.requests for row in store.outcomes.acceptance()) == 3, "all three are counted")
            found = {row.by["controller"]: row.requests for row in store.outcomes.acceptance(by=["controller"])}
        assert found == {"fixed": 1, "fixed (lossy typical)": 2}
