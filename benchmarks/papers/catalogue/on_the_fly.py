"""A Drop-In Solution for On-the-Fly Adaptation of Speculative Decoding (Liu, Park, Shen)."""

from __future__ import annotations

from typing import Any

from benchmarks.papers.claims import Claim
from benchmarks.papers.entry import Paper, PaperEntry, PaperExperiment
from benchmarks.papers.experiments import arithmetic, choosing, eagle, gamma_rules, heads, theorems

PAIRS = "LLaMA 70B with 7B and 13B, BLOOM 7B, OPT 13B, Dolly 12B on A100, V100 and RTX 4090, temperature 0"
OURS = "The pair's recorded rounds, replayed under the costs of"
BEST = "in place of the paper's one window for the original method there is the best one, chosen on other texts"
SET_UP = "a list of the paper's set-up; ours stands in the head of every page of results"
EAGLE = (
    "An EAGLE layer that learned the target's answers drafts EAGLE-2's trees of up to 60 nodes at temperature 0, in "
    "the engine; time is told by the costs of an A100 (7B target; 33B beside). Fixed depths"
)
TREES = (
    "One small target and a draft of hundreds of answers; a level has 60 ÷ depth of the best nodes (16 at most), where "
    "EAGLE-2 expands ten a level and then takes the best 60; the rule may choose not to draft."
)
TWO = (
    "The pair's draft, and one of three of the target's layers that learned its answers, recorded over the same texts "
    "and replayed under the analytic rule (h = 6, no prior) by the costs of two A100, the larger one's pass 13 ÷ 7 of "
    "the smaller one's."
)
BETWEEN = "Two drafts of one small target, whose costs are told"
HELPS = "Does adaptive depth help EAGLE-2?"


def methods(name: str, experiment_costs: str, experiment: PaperExperiment) -> dict[str, Any]:
    """Return what Figures 3, 5 and 6 have in common."""
    return {
        "ran": f"{OURS} {experiment_costs}: the four methods with γ_max 5 to 8, the original with γ 5 to 8, and the "
        "upper bound, of which nothing is rejected. Q-learning after its 25 warm-up requests, h = 6, no prior.",
        "experiment": experiment,
        "claims": (
            Claim("The analytic method is faster than the original one.", "analytic_vs_original", 1.0),
            Claim("It is faster than the state machine.", "analytic_vs_state", 1.0),
            Claim("It is faster than the state machine with a cache.", "analytic_vs_cache", 1.0),
            Claim("It is faster than Q-learning.", "analytic_vs_rl", 1.0),
            Claim("Q-learning has the highest acceptance rate of the four.", "rl_acceptance_gap", 0.0),
        ),
        "differs": f"The acceptance is the pair's that runs, not {name}'s.",
    }


ON_THE_FLY = Paper(
    "on_the_fly", "A Drop-In Solution for On-the-Fly Adaptation of Speculative Decoding in Large Language Models",
    "Liu, Park, Shen",
    (
        PaperEntry(
            "Table 1", "Throughput of adaptive windows over the original method (SPS) and over no speculation (ARS)",
            f"{PAIRS}: SPS 3.55 to 16.48 % (abstract; 77.5 % on XSum, where the original slows down), ARS 1.0 to 3.4 "
            "×.",
            ran=f"{OURS} two A100 with LLaMA 70B and 7B: the analytic rule (h = 6, no prior), fixed windows, the "
                "target "
            "alone, by domain.",
            experiment=gamma_rules.ON_THE_FLY,
            claims=(
                Claim("The analytic rule is at least 3.55 % faster than fixed windows of 5 to 8 (as in Figure 3).",
                      "vs_windows_5_to_8", 1.0355),
                Claim("The analytic rule is faster than the best fixed window, chosen on other texts.",
                      "vs_best_window", 1.0, question="Which γ rule on which costs?"),
                Claim("So it is with constants that are chosen on other texts, as the window is.",
                      "chosen_vs_best_window", 1.0),
                Claim("It never is slower than no speculation, on any domain (to 1 %).", "least_vs_alone", 0.99),
                Claim("The original method is slower than no speculation on some domain.",
                      "least_of_window_5_vs_alone", at_most=1.0),
            ),
            differs=f"One pair, four domains; {BEST}.",
        ),
        PaperEntry(
            "Table 2", "The same with a draft chosen for each prompt",
            "LLaMA 70B with 7B and 13B, BLOOM 7B with 560M, 1B1 and 1B7: 0 to 0.8 points more on A100, up to 8.8 on "
            "V100; 3.55 to 16.48 % in all.",
            ran=f"{TWO} The router's regression (r = 16, `router.choose_by = prompt`) learns from a third of the texts "
            "of each data set, 25 at most, and chooses for the others.",
            experiment=choosing.SELECTION,
            claims=(
                Claim("A draft chosen for each prompt is at least as fast as the better one for each data set (to "
                      "1 %).", "chosen_vs_one_draft", 0.99),
                Claim("It is faster than that by some (the paper's best is 8 %).", "chosen_vs_one_draft", 1.0),
                Claim("It is at least 3.55 % faster than the original method, windows of 5 to 8 with the small draft.",
                      "chosen_vs_original", 1.0355),
            ),
            differs=f"{BETWEEN}; the prompt's vector is without perplexity.",
        ),
        PaperEntry(
            "Table 3", "Against SpecDec++",
            "LLaMA 70B/7B on A100 and BLOOM 7B/560M on 4090: 2.11, 2.41, 2.28 × against 2.04, 2.23, 2.26 ×, 5.7 % on "
            "average, without training.",
            ran=f"{OURS} two A100: the analytic rule (h = 6, no prior) against SpecDec++ with a trained head, its "
            "threshold chosen on other texts; sampled at temperature 1.",
            experiment=heads.AGAINST_LENGTHS,
            claims=(Claim("The analytic rule is faster than SpecDec++.", "analytic_vs_specdecpp", 1.0),),
            differs="The head has seen hundreds of prompts, not 40,000.",
        ),
        PaperEntry("Table 4", "GPUs", "V100, A100, RTX 4090.", not_reproduced=SET_UP),
        PaperEntry("Table 5", "Prompt sets and system prompts", "HumanEval, XSum, GSM8K, Finance-Alpaca.",
                   not_reproduced=SET_UP),
        PaperEntry("Table 6", "Model pairs", "Six pairs, parameters 4 to 96 × apart.", not_reproduced=SET_UP),
        PaperEntry("Table 7", "Qwen2.5 7B with 0.5B on an RTX 4090", "SPS 1.57 to 3.67 %, ARS 1.13 to 1.57 ×.",
                   not_reproduced="a 7B target needs a GPU; with such a pair it is Table 1 with --target and --draft"),
        PaperEntry(
            "Table 8", "ShareGPT", "A100 and 4090: SPS 3.50 to 7.89 %, ARS 1.18 to 2.20 ×.",
            ran=f"{OURS} two A100: as Table 1, over the data sets of `--prompts` that are chat (named oasst, sharegpt, "
            "mt_bench or chat). No chat is among the prompts that ship: without such a file the entry says so.",
            experiment=gamma_rules.CHAT,
            claims=(
                Claim("The analytic rule is at least 3.5 % faster than fixed windows of 5 to 8.", "vs_windows_5_to_8",
                      1.035),
                Claim("It is at least 1.18 times as fast as no speculation.", "vs_alone", 1.18),
            ),
            differs=f"Other chats than ShareGPT's; {BEST}.",
        ),
        PaperEntry(
            "Table 9", "Temperature 1", "BLOOM 7B/560M on 4090 and LLaMA 70B/7B on A100: SPS 2.38 to 9.83 %.",
            ran=f"{OURS} two A100, sampled at temperature 1: as Table 1.",
            experiment=gamma_rules.SAMPLED,
            claims=(
                Claim("The analytic rule is at least 2.38 % faster than fixed windows of 5 to 8 when sampling, too.",
                      "vs_windows_5_to_8", 1.0238),
                Claim("It is faster than the best fixed window.", "vs_best_window", 1.0),
            ),
            differs=f"As Table 1: {BEST}.",
        ),
        PaperEntry(
            "Table 10", "Adaptive depth for EAGLE-2",
            "MT-Bench, five targets: SPS 1.14 to 7.07 % over EAGLE-2 on A100, ARS 2.28 to 4.01 ×; HumanEval, GSM8K and "
            "Alpaca 2.55 to 6.23 %.",
            ran=f"{EAGLE} 1 to 8 and 6 (EAGLE-2's own), depths by the analytic rule (h = 6, no prior, as many nodes), "
            "and analytic and goodput with osd's own choice of nodes.",
            experiment=eagle.DEPTHS,
            claims=(
                Claim("A depth that the analytic rule sets is at least 1.14 % faster than EAGLE-2's fixed 6.",
                      "analytic_vs_depth_6", 1.0114, question=HELPS),
                Claim("A depth that the analytic rule sets is faster than the best fixed one, chosen on other texts.",
                      "analytic_vs_best_depth", 1.0, question=HELPS),
                Claim("It is at least 2.28 times as fast as no speculation.", "analytic_vs_alone", 2.28),
            ),
            differs=TREES,
        ),
        PaperEntry(
            "Table 11", "EAGLE-2 in detail",
            "MT-Bench: served tokens a second 1.4 to 6.2 % more, those selected from trees 1 to 51 % fewer, those "
            "verified −6 to +12 %, acceptance up to 0.14 higher.",
            ran="As Table 10: the analytic rule's depth against a depth of 6. Speculation: verified nodes a second of "
            "drafting; verification: tokens a second of the target's passes; acceptance: accepted tokens ÷ levels of "
            "the trees.",
            experiment=eagle.IN_DETAIL,
            claims=(
                Claim("More tokens a second are served.", "serving", 1.0),
                Claim("Fewer tokens a second are selected from trees.", "speculation", at_most=1.0),
                Claim("As many tokens a second are verified (0.94 to 1.12 × there).", "verification", 0.94, 1.12),
                Claim("The acceptance rate is no lower.", "acceptance_gap", 0.0),
            ),
            differs=TREES,
        ),
        PaperEntry(
            "Table 12", "History h and γ_max", "BLOOM 7B/560M on A100, h 5 to 7, γ_max 5 to 8: all within 4.2 % of "
            "each "
            "other on a data set, no h best everywhere.",
            ran=f"{OURS} an A100 with c = 0.13: the analytic rule with h 5, 6, 7 and γ_max 5 to 8.",
            experiment=gamma_rules.HISTORIES,
            claims=(Claim("The history's length hardly matters: 7 rounds within 4 % of 5 where they differ most.",
                          "h_7_vs_5", 0.96, 1.04),),
        ),
        PaperEntry(
            "Table 13", "Dimensions r of a prompt's vector", "BLOOM 7B/560M on 4090, r 4 to 16: 74.00 to 75.55 tokens "
            "a second.",
            ran=f"{TWO} The router's regression over 4, 8, 10, 12 and 16 features chooses as in Table 2.",
            experiment=choosing.R,
            claims=(Claim("r hardly matters: every one within 2.1 % of 16.", "r_farthest_from_16", 0.979, 1.021),),
            differs=f"{BETWEEN}.",
        ),
        PaperEntry("Figure 1", "The framework, and a text with its γ", "A diagram.", not_reproduced="a diagram"),
        PaperEntry(
            "Figure 2", "Acceptance rate ρ and tokens a pass by α and c, at the best window",
            "Computed: ρ and d·ρ rise with α.",
            ran="The best window by Eq. 1 over α from 0.05 to 0.95 and c from 0.02 to 0.4, and ρ = (1 − α^(γ+1)) ÷ "
            "((1 − α) d).",
            experiment=arithmetic.WINDOWS,
            claims=(
                Claim("Tokens a pass rise with α.", "least_step_of_tokens_a_pass", 0.0),
                Claim("ρ rises with α.", "least_step_of_rho", 0.0),
                Claim("ρ is a rate: at most 1.", "most_rho", at_most=1.0),
            ),
        ),
        PaperEntry(
            "Figure 3", "Adaptive methods with OPT 13B and 125M on A100: throughput and acceptance rate",
            "The analytic method is the fastest overall; Q-learning accepts most and is slower.",
            **methods("OPT 13B and 125M", "an A100 with c = 0.08", gamma_rules.METHODS_OPT),
        ),
        PaperEntry(
            "Figure 4", "The best window by α and c", "Computed: larger for larger α and smaller c.",
            ran="As Figure 2.", experiment=arithmetic.WINDOWS,
            claims=(
                Claim("The best window never shrinks as α rises.", "least_step_with_alpha", 0.0),
                Claim("It never grows as drafting costs more.", "least_step_with_cost", 0.0),
            ),
        ),
        PaperEntry(
            "Figure 5", "Adaptive methods with BLOOM 7B and 560M", "As Figure 3.",
            **methods("BLOOM 7B and 560M", "an A100 with c = 0.13", gamma_rules.METHODS_BLOOM),
        ),
        PaperEntry(
            "Figure 6", "Adaptive methods with LLaMA 70B and 7B", "As Figure 3.",
            **methods("LLaMA 70B and 7B", "two A100 with LLaMA 70B and 7B", gamma_rules.METHODS_LLAMA),
        ),
        PaperEntry("Figure 7", "Adaptive methods with Qwen2.5 7B and 0.5B on an RTX 4090", "As Figure 3.",
                   not_reproduced="a 7B target needs a GPU; with such a pair it is Figure 3 with --target and --draft"),
        PaperEntry(
            "Theorem 1", "The adaptive estimate of acceptance varies less than that of a fixed window",
            "Var(β̂ adaptive) ≤ Var(β̂ fixed), and so the mean absolute error, for every β.",
            ran="Texts of known β (0.2, 0.5, 0.8, 0.95): Eq. 2 over the last h = 6 rounds under the analytic rule and "
            "under a window of 5, replayed with the costs of two A100; errors over seeds.",
            experiment=theorems.ESTIMATES,
            claims=(
                Claim("The adaptive estimate varies at most as much at β = 0.2.", "variance_ratio_0.2", at_most=1.0),
                Claim("So it does at β = 0.5.", "variance_ratio_0.5", at_most=1.0),
                Claim("So it does at β = 0.8.", "variance_ratio_0.8", at_most=1.0),
                Claim("So it does at β = 0.95.", "variance_ratio_0.95", at_most=1.0),
            ),
        ),
        PaperEntry(
            "Theorem 2", "Throughput from acceptance rate", "R = L ÷ (b n + a L ÷ ρ), ρ the accepted share of what was "
            "drafted.",
            ran="Both sides for fixed windows 1 to 12 on the recorded rounds, costs of two A100.",
            experiment=theorems.THROUGHPUT,
            claims=(
                Claim("The formula gives the throughput to within 5 %, with ρ as the theorem words it.", "off_by",
                      at_most=0.05),
                Claim("It does with ρ = L ÷ drafted, which the proof's L = d n ρ means.", "off_by_as_proved",
                      at_most=0.05),
            ),
        ),
        PaperEntry(
            "Theorem 3", "When a larger draft pays", "Where Δn > (Δc ÷ Δρ) L.",
            ran=f"{TWO} n, ρ = L ÷ drafted and c of every text, and which draft was the faster; `router.choose_by = "
            "theorem` applies it to what the regression expects of a prompt (Table 2 has its speed).",
            experiment=choosing.LARGER,
            claims=(
                Claim("Where the condition holds as printed, the larger draft is the faster (19 of 20 texts).",
                      "as_printed_sufficient", 0.95),
                Claim("With Δ(c ÷ ρ) L on the right, as Eq. 3 gives it, it says which draft is the faster (19 of 20 "
                      "texts).", "as_derived_right", 0.95),
            ),
            differs=f"{BETWEEN}.",
        ),
    ),
)  # fmt: skip
