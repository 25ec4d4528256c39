"""Online learning shown and measured: requests through the real engine while a worker process trains the draft.

    run_demo          osd.demo.runner.demo     four domains that ship with osd
    run_bench_online  osd.demo.runner.bench    any pair, any prompts, with the OSD paper's baselines

Both stream segments of prompts through one loop (osd.demo.runner.stream) and measure the same way
(osd.demo.runner.measure)."""
