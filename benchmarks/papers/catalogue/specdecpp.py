"""SpecDec++ (Huang, Guo, Wang)."""

from __future__ import annotations

from benchmarks.papers.claims import Claim
from benchmarks.papers.entry import Paper, PaperEntry
from benchmarks.papers.experiments import forward_times, gamma_rules, heads

LLAMA = "LLaMA-2-chat 7B and 70B in bfloat16, two A100-80G, T = 1, top-k 50, 512 tokens, 150 prompts of each set"
OURS = "Heads trained offline on 400 prompts (small: 48) of the first data set (T = 1, top-k 50, mixing 15 %, ten \
epochs), rounds sampled at T = 1, replayed"
LESS = "Hundreds of prompts for training where the paper has 40,000. A head reads a 1 M draft's embedding; at T = 1 \
that draft is accepted at 0.15 to 0.6, so that two tokens, SpecDec++'s least, are often the best length."

SPECDECPP = Paper(
    "specdecpp", "SpecDec++: Boosting Speculative Decoding via Adaptive Candidate Lengths", "Huang, Guo, Wang",
    (
        PaperEntry(
            "Theorem 4.1", "The oracle: stop just before each rejection",
            "Greedy LLaMA-2-chat 7B and 70B on Alpaca: N_target ÷ N = 0.164 ± 0.078, nothing discarded, 2.92 × the "
            "target alone where the best fixed length gives 1.90 ×. Lemma 3.1: N_draft + N_target = N + N_discarded.",
            ran="The oracle and fixed lengths 2 to 14 on the pair's recorded greedy rounds, costs of two A100 (t_draft "
            "23.4 ms, t_target 112 ms); the best length is chosen on other texts.",
            experiment=gamma_rules.ORACLE_BOUND,
            claims=(
                Claim("The oracle discards nothing.", "discarded", at_most=0.0),
                Claim("There is much to win: the oracle is at least 1.3 × as fast as the best fixed length (1.54 × in "
                      "the paper).", "oracle_vs_best_k", 1.3),
                Claim("The oracle is never slower than the target alone.", "oracle_vs_alone", 1.0),
                Claim("Lemma 3.1 holds, but for the tokens that a text's end cuts off (5 %).", "lemma_off_by",
                      at_most=0.05),
            ),
        ),
        PaperEntry(
            "Theorem 4.3", "Stopping by a threshold is optimal",
            "Where the chance that some drafted token was refused is at least (c₂ + Δ) ÷ (c₁ + c₂ + Δ), stopping costs "
            "less than going on.",
            not_reproduced="a proof, with a constant Δ that nobody can know; what follows from it is SpecDec++ itself, "
            "Figure 3 and Table 1",
        ),
        PaperEntry(
            "Figure 1", "Throughput of SpecDec++ and SpecDec on three sets",
            f"{LLAMA}: +7.2 % on Alpaca, +11.1 % on HumanEval, +9.4 % on GSM8K. It draws Table 1.",
            ran=f"{OURS}: w_rej = 6, D = 3, thresholds 0.1 to 0.9 against lengths 2 to 14, each chosen on other texts, "
            "costs of two A100 (t_draft 23.4 ms, t_target 112 ms).",
            experiment=heads.AGAINST_LENGTHS,
            claims=(Claim("SpecDec++ is at least 7.2 % faster than the best fixed length.", "specdecpp_vs_best_k",
                          1.072),),
            differs=LESS,
        ),
        PaperEntry("Figure 2", "How SpecDec++ stops", "A diagram.", not_reproduced="a diagram of the method; "
                   "`osd/gamma/rules/specdecpp.py` is the method"),
        PaperEntry(
            "Figure 3", "Discard rate against verification rate: Pareto frontiers",
            f"{LLAMA}: SpecDec++ lies below SpecDec everywhere, on Alpaca where its heads were trained and on "
            "HumanEval "
            "and GSM8K where they were not.",
            ran=f"{OURS}: w_rej = 6, D = 3, thresholds 0.1 to 0.9 against lengths 2 to 14, each chosen on other texts, "
            "costs of two A100 (t_draft 23.4 ms, t_target 112 ms).",
            experiment=heads.AGAINST_LENGTHS,
            claims=(
                Claim("SpecDec++ wins on the data set that its head was trained on.", "in_distribution", 1.0),
                Claim("It wins on data sets that its head has not seen.", "out_of_distribution", 1.0),
                Claim("Its frontier is better, so it wins with cheaper drafts (c = 0.13), too.", "with_cheaper_drafts",
                      1.0),
            ),
            differs=LESS,
        ),
        PaperEntry(
            "Figure 4", "t_draft and t_target in three settings",
            "Draws Table 2: the head's cost is lost in the noise, stand-alone passes are a little faster.",
            ran="`benchmarks gamma`, temperature 1, batch 1, on the machine that runs: lengths 2, 4, 8, SpecDec++ with "
                "a trained "
            "head, and the target alone, by turns; the model is fitted over texts for each data set.",
            experiment=forward_times.FORWARD_TIMES,
            claims=(
                Claim("The head's cost is negligible: a draft pass takes at most 5 % more.", "draft_pass_with_head",
                      at_most=1.05),
                Claim("A target pass takes at most 5 % more than stand-alone (4 % there).", "target_vs_stand_alone",
                      at_most=1.05),
            ),
            differs="Rounds are told by the median of their kind, which takes the machine's noise out of R². No draft "
                    "alone.",
        ),
        PaperEntry("Figure 5", "Pareto frontiers with Gemma", "Gemma-1.1-2B-it and Gemma-2-27B-it, one A100-80G: "
                   "SpecDec++ lies below SpecDec on all three sets.",
                   not_reproduced="a 27B target needs a GPU; with such a pair it is Figure 3 with --target and "
                                  "--draft"),
        PaperEntry(
            "Table 1", "Best throughputs of SpecDec++ and SpecDec",
            f"{LLAMA}: 18.88, 20.61, 20.95 tokens a second against 17.62, 18.55, 19.14 (Alpaca, HumanEval, GSM8K).",
            ran=f"{OURS}: w_rej = 6, D = 3, thresholds 0.1 to 0.9 against lengths 2 to 14, each chosen on other texts, "
            "costs of two A100 (t_draft 23.4 ms, t_target 112 ms).",
            experiment=heads.AGAINST_LENGTHS,
            claims=(Claim("SpecDec++ is faster than the best fixed length.", "specdecpp_vs_best_k", 1.0,
                          question="Which γ rule on which costs?"),
                    Claim("It is with thresholds up to 0.999, too, for drafts that are accepted less.",
                          "wide_vs_best_k", 1.0),
                    Claim("With those it is on the data set that its head was trained on.", "wide_in_distribution",
                          1.0)),
            differs=LESS,
        ),
        PaperEntry(
            "Table 2", "Forward times by linear regression",
            f"{LLAMA}: stand-alone t_draft 20.7 ms and t_target 108 ms, SpecDec 23.6 and 112, SpecDec++ 23.1 and 111; "
            "R² ≥ 0.98.",
            ran="`benchmarks gamma`, temperature 1, batch 1, on the machine that runs: lengths 2, 4, 8, SpecDec++ with "
                "a trained "
            "head, and the target alone, by turns; the model is fitted over texts for each data set.",
            experiment=forward_times.FORWARD_TIMES,
            claims=(Claim("Time is linear in the passes of both models: R² of 0.98 or more.", "r2", 0.98),),
            differs="Rounds are told by the median of their kind, which takes the machine's noise out of R². No draft "
                    "alone.",
        ),
        PaperEntry(
            "Table 3", "Heads by loss weight w_rej and depth D",
            f"{LLAMA}, w_rej 1, 3, 6, 12 × D 0 to 4, best h of 0.1 to 0.9: within 3 % of each other; w_rej = 6, D = 3 "
            "or "
            "4, h = 0.7 reach 99 % of the best everywhere; a larger w_rej wants a larger h.",
            ran=f"{OURS} and of every other w_rej and D (small: 1 and 0 alone), costs of two A100.",
            experiment=heads.SHAPES_OF_HEADS,
            claims=(
                Claim("w_rej = 6 and D = 3 reach 99 % of the best shape.", "papers_shape_vs_best", 0.99),
                Claim("A larger w_rej wants a larger threshold: 6 against 1.", "threshold_6_minus_1", 0.0),
            ),
            differs=LESS,
        ),
        PaperEntry("Table 4", "Speed-up with Gemma",
                   "Gemma-1.1-2B-it and Gemma-2-27B-it, one A100-80G: 1.35, 2.07, 1.58 × against 1.33, 1.84, 1.47 ×.",
                   not_reproduced="a 27B target needs a GPU; with such a pair it is Table 1 with --target and --draft"),
    ),
)  # fmt: skip
