"""Online learning shown and measured: requests through the real engine while a worker process trains the draft.

    run_demo          osd.online.demo     four domains that ship with osd
    run_bench_online  osd.online.bench    any pair, any prompts, with the OSD paper's baselines

Both stream segments of prompts through one loop (osd.online.stream) and measure the same way (osd.online.measure).
"""
