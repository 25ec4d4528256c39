"""Adaptix (Liu, Lei, Zhang, Xu)."""

from __future__ import annotations

from osd.bench.papers.entry import Paper, PaperEntry

SET_UP = "Vicuna 7B, 13B, 33B and LLaMA-2-chat 7B, 13B, A6000 (33B: H100), greedy, UltraChat or The Stack as corpus"
TREES = "`osd bench trees` as an experiment of this bench, with a corpus of the target's own answers"

ADAPTIX = Paper(
    "adaptix", "Adaptive Draft-Verification for Efficient Large Language Model Decoding", "Liu, Lei, Zhang, Xu",
    (
        PaperEntry("Figure 1", "Four ways to draft", "A diagram.",
                   not_reproduced="a diagram of speculative decoding, Lookahead, REST and Adaptix"),
        PaperEntry("Figure 2", "Adaptix' data flow", "A diagram.",
                   not_reproduced="a diagram of the method; [ngram.md](ngram.md) is ours"),
        PaperEntry("Table 1", "Latency and average accept length against REST, Lookahead and autoregressive decoding",
                   f"{SET_UP}; MT-Bench with Vicuna-7B: 12.95 ms a token and 2.42 tokens a pass, REST 16.31 and 1.97, "
                   "Lookahead 18.93 and 1.89, autoregressive 24.77.", planned=TREES),
        PaperEntry("Figure 3", "Speed-up on MT-Bench, Alpaca and HumanEval",
                   f"{SET_UP}: 1.9 to 2.5 × the target alone, most on HumanEval (33B: nearly 2.5 ×).", planned=TREES),
        PaperEntry("Stability", "Speed-up by category of task",
                   f"{SET_UP}: from 2.17 × (extraction) to 2.69 × (coding).",
                   planned="traffic with categories: `--prompts spec_bench.jsonl.gz`, told by its own field"),
        PaperEntry("Figure 4", "Adaptive against not adaptive by length (a), by top-p (b), by temperature (c)",
                   "Vicuna-7B, MT-Bench: the adaptive matrix is ahead at every length; top-p and temperature hardly "
                   "matter.", planned=TREES),
        PaperEntry("Table 2", "Effect of the corpus' size",
                   "Vicuna-7B, MT-Bench: 121k conversations (253 MB) 2.30 tokens a pass and 13.09 ms, 774k (574 MB) "
                   "2.42 and 12.95.", planned=TREES),
        PaperEntry("Figure 5", "Effect of the number of searches",
                   "Vicuna-7B, MT-Bench: more searches accept more, the best number is between; greedy search with 150 "
                   "iterations accepts 1.493.", planned=TREES),
        PaperEntry("N-gram order", "Bi-, tri- and 4-grams",
                   "Vicuna-7B, MT-Bench: 1.80, 2.30 and 1.82 tokens a pass.", planned=TREES),
        PaperEntry("Memory", "Memory against REST", "574 MB against 12 GB: 5.6 % (as printed; it is 4.8 %).",
                   planned="REST's datastore beside the matrix, of the same corpus"),
    ),
)  # fmt: skip
