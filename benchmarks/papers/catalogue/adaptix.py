"""Adaptix (Liu, Lei, Zhang, Xu)."""

from __future__ import annotations

from benchmarks.papers.claims import Claim
from benchmarks.papers.entry import Paper, PaperEntry
from benchmarks.papers.experiments import corpora, trees

SET_UP = "Vicuna 7B, 13B, 33B and LLaMA-2-chat 7B, 13B, A6000 (33B: H100), greedy, UltraChat or The Stack as corpus"
BENCH = "`python -m benchmarks trees`, its corpus the target's own answers to other prompts of the same kinds"

ADAPTIX = Paper(
    "adaptix", "Adaptive Draft-Verification for Efficient Large Language Model Decoding", "Liu, Lei, Zhang, Xu",
    (
        PaperEntry("Figure 1", "Four ways to draft", "A diagram.",
                   not_reproduced="a diagram of speculative decoding, Lookahead, REST and Adaptix"),
        PaperEntry("Figure 2", "Adaptix' data flow", "A diagram.",
                   not_reproduced="a diagram of the method; [ngram.md](ngram.md) is ours"),
        PaperEntry(
            "Table 1", "Latency and average accept length against REST, Lookahead and autoregressive decoding",
            f"{SET_UP}; MT-Bench with Vicuna-7B: 12.95 ms a token and 2.42 tokens a pass, REST 16.31 and 1.97, "
            "Lookahead 18.93 and 1.89, autoregressive 24.77.",
            ran=f"{BENCH}: the n-gram tree with 150 searches, beside suffixes of the corpus (as REST retrieves), "
                "prompt "
            "look-up and the target alone.",
            experiment=trees.METHODS,
            claims=(
                Claim("It is faster than the target alone.", "speed_up", 1.0),
                Claim("It accepts more than retrieval from the corpus does (1.2 × there).", "longer_than_suffix", 1.0),
                Claim("It accepts more than prompt look-up does.", "longer_than_lookup", 1.0),
            ),
            differs="No Lookahead decoding; a corpus of thousands of tokens, not of hundreds of megabytes.",
        ),
        PaperEntry(
            "Figure 3", "Speed-up on MT-Bench, Alpaca and HumanEval",
            f"{SET_UP}: 1.9 to 2.5 × the target alone, most on HumanEval (33B: nearly 2.5 ×).",
            ran=f"{BENCH}: as Table 1.", experiment=trees.METHODS,
            claims=(Claim("It is 1.9 times as fast as the target alone, or more.", "speed_up", 1.9),),
            differs="As Table 1.",
        ),
        PaperEntry(
            "Stability", "Speed-up by category of task", f"{SET_UP}: from 2.17 × (extraction) to 2.69 × (coding).",
            ran=f"{BENCH}: the tree with 150 searches against the target alone, by what the lines of `--prompts` name "
                "as category or domain (spec_bench.jsonl.gz has six); else by the domains of the prompts that ship.",
            experiment=corpora.CATEGORIES,
            claims=(
                Claim("It is at least 2.17 times as fast as the target alone in every category.", "least_speed_up",
                      2.17),
                Claim("Categories hardly differ: the fastest is at most 1.24 times the slowest, as there.",
                      "most_vs_least", at_most=1.24),
            ),
            differs="As Table 1; the extremes of several categories, whose errors are those of single ones.",
        ),
        PaperEntry(
            "Figure 4", "Adaptive against not adaptive by length (a), by top-p (b), by temperature (c)",
            "Vicuna-7B, MT-Bench: the adaptive matrix is ahead at every length; top-p and temperature hardly matter.",
            ran=f"{BENCH}: adaptive and frozen tables; temperatures 0 to 1 and top-p 0.25 to 1 at temperature 1.",
            experiment=trees.ROBUSTNESS,
            claims=(
                Claim("A table that learns as it decodes accepts more than a frozen one.", "adaptive_vs_frozen", 1.0),
                Claim("Temperature hardly matters: at 1 it accepts 95 % of what it does at 0.", "hot_vs_greedy", 0.95),
                Claim("Top-p hardly matters: 95 % with 1 of what it is with 0.25.", "top_p_1_vs_0.25", 0.95),
            ),
            differs="Sampling keeps the target's distribution here; the paper accepts a token that equals a sampled "
                    "one.",
        ),
        PaperEntry(
            "Table 2", "Effect of the corpus' size",
            "Vicuna-7B, MT-Bench: 121k conversations (253 MB) 2.30 tokens a pass and 13.09 ms, 774k (574 MB) 2.42 and "
            "12.95.",
            ran=f"{BENCH}: shares of the corpus from nothing to all.", experiment=trees.ROBUSTNESS,
            claims=(Claim("The whole corpus accepts more than a tenth of it (1.05 × there with a sixth).",
                          "whole_corpus_vs_tenth", 1.0),),
            differs="As Table 1.",
        ),
        PaperEntry(
            "Figure 5", "Effect of the number of searches",
            "Vicuna-7B, MT-Bench: more searches accept more, the best number is between; greedy search with 150 "
            "iterations accepts 1.493 tokens a pass, tree search 2.30 to 2.42.",
            ran=f"{BENCH}: 10, 50, 150 and 300 searches, and greedy search.", experiment=trees.METHODS,
            claims=(
                Claim("More searches accept more: 300 against 10.", "most_vs_fewest_searches", 1.0),
                Claim("Tree search accepts half as much again as greedy search, or more (1.54 × there).",
                      "tree_vs_greedy", 1.5),
                Claim("Tree search accepts more than greedy search.", "tree_vs_greedy", 1.0,
                      question="Tree search against greedy search?"),
            ),
        ),
        PaperEntry(
            "N-gram order", "Bi-, tri- and 4-grams", "Vicuna-7B, MT-Bench: 1.80, 2.30 and 1.82 tokens a pass.",
            ran=f"{BENCH}: the paper's matrix, which asks the longest context alone, of each order; and 4-grams with "
            "shorter contexts behind them.",
            experiment=trees.METHODS,
            claims=(
                Claim("Tri-grams accept more than bi-grams.", "tri_vs_bi_gram", 1.0),
                Claim("Tri-grams accept more than 4-grams.", "tri_vs_four_gram", 1.0),
                Claim("They do, too, where shorter contexts stand behind both.", "tri_vs_four_gram_with_shorter", 1.0),
            ),
        ),
        PaperEntry(
            "Memory", "Memory against REST", "574 MB against 12 GB: 5.6 % (as printed; it is 4.8 %).",
            ran="Bytes of osd's table of tri-grams and of a datastore as REST's (the tokens of the corpus and its "
                "sorted suffixes, 8 bytes a token), of the same corpora: up to 3,000 prompts of each data set.",
            experiment=corpora.MEMORY,
            claims=(
                Claim("The matrix takes 5.6 % of the bytes of REST's datastore, or less.", "matrix_vs_rest",
                      at_most=0.056),
                Claim("It takes fewer bytes than that.", "matrix_vs_rest", at_most=1.0),
                Claim("A larger corpus makes its share smaller.", "whole_vs_part_of_corpus", at_most=1.0),
            ),
            differs="Corpora of 10⁵ tokens in place of some 10⁸; the table has the shorter contexts too. Errors are "
                    "over corpora.",
        ),
    ),
)  # fmt: skip
