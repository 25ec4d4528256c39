"""The benches replay and topk, small, with the pair that ships with osd: the figures agree."""

import json

import numpy as np

from benchmarks.replay import POSITIONS, draw_requests, renewed
from storage.replay.segments import require_shapes

FIGURES = (
    "ingest_positions_per_s", "bytes_per_position", "read_positions_per_s", "recorder_share", "claim_ms",
    "purge_one_request_ms", "purge_bytes_rewritten",
)  # fmt: skip


def test_the_replay_bench_ends_with_its_figures(bench, tmp_path):
    done = bench("replay", "--small", "--directory", tmp_path, "--json")
    assert done.exit_code == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert all(last[name] > 0 for name in FIGURES)
    assert last["positions"] == last["requests"] * POSITIONS
    assert abs(last["bytes"] / last["positions"] - last["bytes_per_position"]) < 0.1
    assert last["bytes_per_position"] <= 300, "of a format, not of a machine"
    assert [path.name for path in tmp_path.glob("osd-bench-*")] == [], "the store is gone"


def test_its_requests_are_whole_and_their_own():
    pool = draw_requests(3, 16, seed=1)
    for one in pool + renewed(pool, 10, 5.0):
        require_shapes(one)
        mass = np.exp(one.topk_logprobs.astype(np.float32)).sum(axis=1) + one.outside
        np.testing.assert_allclose(mass, 1, atol=0.01)
        assert (one.topk_logprobs[:, :-1] >= one.topk_logprobs[:, 1:]).all()
        assert all(len(set(ids)) == len(ids) for ids in one.topk_ids.tolist())
    ids = [one.request_id for one in renewed(pool, 0, 5.0) + renewed(pool, 3, 5.0)]
    assert len(set(ids)) == 6


def test_the_topk_bench_stays_within_its_bounds(bench, tmp_path):
    done = bench("topk", "--count", "1", "--each", "2", "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert last["within"] is True
    for row in last["rows"]:
        assert all(row[name] <= row[f"{name}_bound"] + 1e-9 for name in ("overlap", "kl", "gradient"))
    at_one = [row["overlap"] for row in last["rows"] if row["temperature"] == 1.0]
    assert at_one == sorted(at_one, reverse=True), "more kept, less error"
    wide = last["bytes_per_position"]["zstd"]
    assert list(wide.values()) == sorted(wide.values())
    assert (tmp_path / "topk.png").stat().st_size > 10_000
